"""What a model's answer asks to change, and what became of each request."""

from dataclasses import dataclass
from typing import Literal

HunkKind = Literal["change", "create", "delete"]
HunkSource = Literal["block", "diff"]
# How the place of a hunk was found, strictest first. Everything but `exact` is told to the person.
Match = Literal["exact", "trailing space", "outer blank lines", "indentation", "tabs and spaces"]


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One requested change of one file.

    `search` and `replace` are whole lines without line endings. The line a unified diff claims is not kept, since
    models count badly.
    """

    path: str
    kind: HunkKind
    search: tuple[str, ...]
    replace: tuple[str, ...]
    source: HunkSource
    ends_without_newline: bool = False


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """A piece of an answer that looks like an edit and cannot be read as one; `line` counts from 1.

    `code`: the text of what may be a whole file; it is no edit where it only quotes the file.
    """

    line: int
    reason: str
    path: str | None = None
    code: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Every edit of one answer, in the order given, and every piece that could not be read."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A hunk that has exactly one place: lines `first`..`last` (1-based, inclusive) of the original.

    `new_lines` (with line endings) replace them. For an insertion `last` is `first - 1`.
    """

    hunk: Hunk
    match: Match
    first: int
    last: int
    new_lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A hunk that is not applied. `candidates` are 1-based lines where it might have been meant."""

    hunk: Hunk
    reason: str
    candidates: tuple[int, ...] = ()


Outcome = Applied | Refused


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """The text of one file after its applied hunks, and the outcome of every hunk, in order."""

    text: str
    outcomes: tuple[Outcome, ...]

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The hunks that were not applied."""
        return tuple(o for o in self.outcomes if isinstance(o, Refused))
