"""Edits that a model's response requests, and their outcomes."""

from dataclasses import dataclass
from typing import Literal

# `whole` replaces all lines of a file or makes it; `move` and `mode` change the file itself.
HunkKind = Literal["change", "create", "delete", "whole", "move", "mode"]
HunkSource = Literal["block", "diff", "patch", "fence"]
# Rules for locating a hunk, strictest first. The user is informed of all except `exact`.
Match = Literal["exact", "trailing space", "outer blank lines", "indentation", "tabs and spaces"]


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One requested change of one file.

    `search` and `replace` are whole lines without line endings. The line number of a unified diff is ignored,
    because models count badly. `others`: further ways to divide the block into (search, replace), where a line
    of its text looks like the divider. `scope`: lines above the place, outermost first; `at_end`: the
    place is the end of the file. `final_newline`: the file's last line shall have (True) or lose (False) its
    newline. `to` is the new path of a `move`, `executable` the new mode of a `mode`, `create` or `whole`.
    """

    path: str
    kind: HunkKind
    search: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    source: HunkSource
    others: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    scope: tuple[str, ...] = ()
    at_end: bool = False
    final_newline: bool | None = None
    to: str | None = None
    executable: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """A part of a response that looks like an edit but cannot be parsed; `line` counts from 1.

    `quoted` is its text to find if no file is named: it may belong to any file that holds this text.
    """

    line: int
    reason: str
    path: str | None = None
    quoted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ParsedEdits:
    """All edits of one response, in order, and all parts that could not be parsed."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A hunk with exactly one position: lines `first`..`last` (1-based, inclusive).

    The lines are those of the original, or of the text that the response's earlier edits leave if only they wrote
    the quoted text. `new_lines` (with line endings) replace them. For an insertion `last` is `first - 1`.
    `picked` is the line that the user chose.
    """

    hunk: Hunk
    match: Match
    first: int
    last: int
    new_lines: tuple[str, ...]
    picked: int | None = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A hunk that is not applied. `candidates` are 1-based lines that may have been meant.

    `offer` is what the user may apply nevertheless, by an explicit choice.
    """

    hunk: Hunk
    reason: str
    candidates: tuple[int, ...] = ()
    offer: Applied | None = None


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
