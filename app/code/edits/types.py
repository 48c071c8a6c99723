"""Edits that a model's response requests, and their outcomes."""

from dataclasses import dataclass
from typing import Literal

HunkKind = Literal["change", "create", "delete"]
HunkSource = Literal["block", "diff"]
# Rules for locating a hunk, strictest first. The user is informed of all except `exact`.
Match = Literal["exact", "trailing space", "outer blank lines", "indentation", "tabs and spaces"]


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One requested change of one file.

    `search` and `replace` are whole lines without line endings. The line number of a unified diff is ignored,
    because models count badly.
    """

    path: str
    kind: HunkKind
    search: tuple[str, ...]
    replace: tuple[str, ...]
    source: HunkSource
    ends_without_newline: bool = False


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """A part of a response that looks like an edit but cannot be parsed; `line` counts from 1.

    `code` is the text of a possible whole file; it is not an edit if it only quotes the file.
    """

    line: int
    reason: str
    path: str | None = None
    code: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All edits of one response, in order, and all parts that could not be parsed."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A hunk with exactly one position: lines `first`..`last` (1-based, inclusive) of the original.

    `new_lines` (with line endings) replace them. For an insertion `last` is `first - 1`.
    """

    hunk: Hunk
    match: Match
    first: int
    last: int
    new_lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A hunk that is not applied. `candidates` are 1-based lines that may have been meant."""

    hunk: Hunk
    reason: str
    candidates: tuple[int, ...] = ()


Outcome = Applied | Refused


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """Text of one file with its applied hunks, and the outcome of every hunk, in order."""

    text: str
    outcomes: tuple[Outcome, ...]

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The hunks that were not applied."""
        return tuple(o for o in self.outcomes if isinstance(o, Refused))
