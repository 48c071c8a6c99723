"""Apply the hunks of one file, in order.

A hunk is located in the original text, which the response's author knows. If its text does not occur there, it is
located in what the earlier hunks left. A place that an earlier hunk changed is not used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import Final

from app.code.edits import parse as text_lines
from app.code.edits.locate import Location, NotLocated, locate, matches, same
from app.code.edits.parse import indent_of
from app.code.edits.types import Applied, FileResult, Hunk, Outcome, Refused

# Longer hunks take seconds to align; model responses never contain one.
_MOST_LINES = 5000
# Byte-order mark: it is not part of the first line.
_BOM: Final = "\ufeff"
_BARE_ELISION: Final = re.compile(r"^\s*(?:\.\.\.|…)\s*$")
# A comment in place of code: `# ...`, `// ... existing code ...`, `# rest of the file unchanged ...`.
_COMMENT: Final = re.compile(r"^\s*(?:#|//|--|;|%|\{?/\*|<!--)\s*(.*?)\s*(?:\*/\}?|-->)?\s*$")
_STANDS_FOR: Final = re.compile(
    r"\b(?:existing|rest of|remaining|unchanged|previous|other|omitted|same as|as before|no changes?)\b",
    re.IGNORECASE,
)
# These texts mark omitted code even without dots.
_SPELLED_OUT: Final = re.compile(
    r"^\(?(?:(?:the )?(?:rest|remainder) of (?:the |your )?(?:code|file|class|function|method|implementation)"
    r"|existing code|(?:the )?remaining code)"
    r"(?: (?:here|remains|stays|is|goes here|as before|unchanged|the same))*\)?[.:]?$",
    re.IGNORECASE,
)
# Files of text, where a line of `=` underlines a heading.
_TEXT_SUFFIXES: Final = frozenset({".rst", ".md", ".markdown", ".txt", ".mdx", ".adoc", ".text"})
_UNDERLINE: Final = re.compile(r"^={5,9}\s*$")
# A new text with fewer of the old lines may be a part of the file, and would delete the rest.
_LEAST_SHARED: Final = 0.5


def is_elision(line: str) -> bool:
    """Return True if a comment marks omitted code."""
    match = _COMMENT.match(line)
    if match is None:
        return False
    text = match.group(1)
    if not text.strip("."):
        return text.startswith("...")
    dotted = text.startswith(("...", "…")) or text.endswith(("...", "…"))
    if text.startswith("…") and not text.strip("… "):
        return True
    if text.startswith(("...", "…")) and text.endswith(("...", "…")):
        return True
    return (dotted and _STANDS_FOR.search(text) is not None) or _SPELLED_OUT.match(text) is not None


def apply_hunks(text: str, hunks: Sequence[Hunk], picked: Mapping[int, int] | None = None) -> FileResult:
    """Apply the hunks of one file in order and build the new text.

    `picked` maps a hunk's index to the 1-based line that the user chose among its candidates. Unchanged lines keep
    their bytes, endings included; a changed line keeps the ending of the line it replaces.
    """
    sheet = _Sheet(text)
    outcomes: list[Outcome] = []
    for index, hunk in enumerate(hunks):
        outcome: Outcome
        if hunk.kind == "delete" and any(other.kind != "mode" for other in (*hunks[:index], *hunks[index + 1 :])):
            outcome = Refused(hunk=hunk, reason="this answer also changes the file that it deletes")
        elif hunk.kind == "create" and any(h.kind in {"create", "whole"} for h in hunks[:index]):
            outcome = Refused(hunk=hunk, reason="this answer already makes a new file of that name")
        elif hunk.kind == "whole" and index:
            outcome = Refused(hunk=hunk, reason="this answer also changes the file that it writes as a whole")
        else:
            outcome = sheet.apply(hunk, (picked or {}).get(index), index)
        outcomes.append(outcome)
    return FileResult(text=sheet.text(), outcomes=tuple(outcomes))


def merge(text: str, outcomes: Sequence[Outcome]) -> str | None:
    """The text with only these hunks applied, offers included; None if one of them needs a hunk that is missing."""
    sheet = _Sheet(text)
    for index, outcome in enumerate(outcomes):
        applied = outcome if isinstance(outcome, Applied) else outcome.offer
        if applied is None:
            continue
        again = sheet.apply(applied.hunk, applied.picked, index, is_chosen=True)
        if not isinstance(again, Applied):
            return None
    return sheet.text()


@dataclass(frozen=True)
class _Line:
    """A line of the current text. `origin` is its 0-based line of the original, None for a new line."""

    content: str
    ending: str
    origin: int | None


class _Sheet:
    """A file's text while the hunks of a response are applied to it."""

    def __init__(self, text: str) -> None:
        self._mark = _BOM if text.startswith(_BOM) else ""
        self._original = text_lines.split(text.removeprefix(_BOM))
        self._eol = text_lines.ending_of(self._original)
        self._contents = [content for content, _ in self._original]
        self._lines = [_Line(content, ending, index) for index, (content, ending) in enumerate(self._original)]
        self._changed_by: dict[int, int] = {}
        self._final_newline: bool | None = None

    def text(self) -> str:
        """The current text. The last line has a newline unless the original ended without one."""
        if not self._lines:
            return self._mark
        parts = [line.content + (line.ending or self._eol) for line in self._lines]
        last = self._lines[-1]
        is_new = last.origin is None
        if self._final_newline is not None:
            parts[-1] = last.content + (last.ending or self._eol if self._final_newline else "")
        elif self._original and not self._original[-1][1]:
            parts[-1] = last.content + ("" if is_new else last.ending)
        elif not self._original:
            parts[-1] = last.content + last.ending
        return self._mark + "".join(parts)

    def apply(self, hunk: Hunk, picked: int | None, number: int, *, is_chosen: bool = False) -> Outcome:
        """Apply one hunk to the current text; `is_chosen`: the user chose it, so an offer is applied."""
        if hunk.kind in {"move", "mode"}:
            return Applied(hunk=hunk, match="exact", first=1, last=0, new_lines=())
        if hunk.kind == "delete":
            return self._deleted(hunk)
        divided = self._divided(_without_mark(hunk))
        if isinstance(divided, Refused):
            return divided
        if divided.kind == "whole":
            return self._written_whole(divided, is_chosen=is_chosen)
        return self._created(divided) if divided.kind == "create" else self._changed(divided, picked, number)

    def _divided(self, hunk: Hunk) -> Hunk | Refused:
        """The hunk divided so that its search text is in the file; the longest such text is chosen."""
        if not hunk.others:
            return hunk
        ways = ((hunk.search, hunk.replace), *hunk.others)
        if not self._lines and hunk.kind == "create" and _has_headings(hunk.path, hunk.replace):
            return replace(hunk, others=())
        lines = [line.content for line in self._lines]
        for search, new in reversed(ways):
            if not any(line.strip() for line in search):
                continue
            underlines = sum(1 for line in search if _UNDERLINE.match(line))
            if underlines != sum(1 for line in new if _UNDERLINE.match(line)) and not _has_headings(hunk.path, new):
                continue
            location = locate(lines, search, new)
            if isinstance(location, Location) and location.match in {"exact", "trailing space"}:
                return replace(hunk, kind="change", search=search, replace=new, others=())
        reason = f"the block has {len(ways)} dividers, so its halves are not certain"
        return Refused(hunk=hunk, reason=reason)

    def _created(self, hunk: Hunk) -> Outcome:
        if any(line.content.strip() for line in self._lines):
            return Refused(hunk=hunk, reason="there is already a file of that name with text in it")
        if any(is_elision(line) for line in hunk.replace):
            return Refused(hunk=hunk, reason="the new file leaves lines out with a comment")
        lines = [_Line(content, "\n", None) for content in hunk.replace]
        if hunk.final_newline is False and lines:
            lines[-1] = replace(lines[-1], ending="")
        last = (
            0 if hunk.source == "diff" else len(self._lines)
        )  # a diff at the start of a file keeps its blank lines
        self._lines[:last] = lines
        if self._original and hunk.final_newline is None:
            self._final_newline = True
        return Applied(
            hunk=hunk, match="exact", first=1, last=last, new_lines=tuple(x.content + x.ending for x in lines)
        )

    def _written_whole(self, hunk: Hunk, *, is_chosen: bool) -> Outcome:
        if not any(line.content.strip() for line in self._lines):
            return self._created(hunk)
        code, there = list(hunk.replace), {content.strip() for content in self._contents}
        if any(is_elision(line) or _BARE_ELISION.match(line) for line in code if line.strip() not in there):
            return Refused(hunk=hunk, reason="the text of the whole file leaves lines out")
        if code == self._contents:
            return Refused(hunk=hunk, reason="it changes nothing")
        old = [content for content in self._contents if content.strip()]
        shared = len({line.strip() for line in code} & {line.strip() for line in old})
        if shared < _LEAST_SHARED * len({line.strip() for line in old}):
            reason = f"it contains only {shared} of the file's {len(old)} lines, so it may be a part of the file"
            return Refused(hunk=hunk, reason=reason)
        location = Location(0, "exact", tuple(self._contents), hunk.replace, same)
        new = self._filled(hunk, location, list(self._lines))
        assert not isinstance(new, Refused)
        applied = Applied(
            hunk=hunk,
            match="exact",
            first=1,
            last=len(self._lines),
            new_lines=tuple(x.content + x.ending for x in new),
        )
        if is_chosen:
            self._lines = new
            return applied
        reason = "a fence contains the text of the whole file, which would replace it; choose this edit to write it"
        return Refused(hunk=hunk, reason=reason, offer=applied)

    def _deleted(self, hunk: Hunk) -> Outcome:
        if hunk.source != "patch" and list(hunk.search) != self._contents:
            return Refused(hunk=hunk, reason="the file to delete differs from what the answer quotes")
        return Applied(hunk=hunk, match="exact", first=1, last=len(self._contents), new_lines=())

    def _appended(self, hunk: Hunk) -> Outcome:
        """Append a patch's lines to the end of the file; the patch quotes none of its lines."""
        new = [_Line(content, self._eol, None) for content in hunk.replace]
        first = len(self._lines) + 1
        if self._lines and not self._lines[-1].ending:
            self._lines[-1] = replace(self._lines[-1], ending=self._eol)
        self._lines += new
        new_lines = tuple(line.content + line.ending for line in new)
        return Applied(hunk=hunk, match="exact", first=first, last=first - 1, new_lines=new_lines)

    def _changed(self, hunk: Hunk, picked: int | None, number: int) -> Outcome:
        if not any(line.strip() for line in hunk.search) and hunk.at_end and picked is None:
            return self._appended(hunk)
        located = _unusable(hunk) or self._placed(hunk, picked)
        if isinstance(located, Refused):
            return located
        location, start = located
        old_lines = self._lines[start : start + len(location.search)]
        filled = self._unfit(hunk, location, start) or self._filled(hunk, location, old_lines)
        if isinstance(filled, Refused):
            return filled
        end = start + len(old_lines)
        if hunk.final_newline is not None and end == len(self._lines):
            self._final_newline = hunk.final_newline
        elif hunk.search == hunk.replace:
            return Refused(hunk=hunk, reason="it changes nothing")
        unchanged = {line.origin for line in filled}
        for line in old_lines:
            if line.origin is not None and line.origin not in unchanged:
                self._changed_by[line.origin] = number
        self._lines[start:end] = filled
        return Applied(
            hunk=hunk,
            match=location.match,
            first=location.start + 1,
            last=location.start + len(location.search),
            new_lines=tuple(line.content + line.ending for line in filled),
            picked=picked,
        )

    def _unfit(self, hunk: Hunk, location: Location, start: int) -> Refused | None:
        """Refuse a located hunk that is already applied or omits lines; None if it may be applied."""
        near = (location.start + 1,)
        if self._is_done(hunk, location, start):
            return Refused(hunk=hunk, reason=f"it seems to be applied already, at line {near[0]}", candidates=near)
        quoted = {line.content for line in self._lines[start : start + len(location.search)]} | set(hunk.search)
        if any(is_elision(line) for line in location.replace if line not in quoted):
            reason = "the replacement leaves lines out with a comment, which would be written into the file"
            return Refused(hunk=hunk, reason=reason, candidates=near)
        return None

    def _placed(self, hunk: Hunk, picked: int | None) -> tuple[Location, int] | Refused:
        """The location of a hunk and its 0-based start in the current text."""
        at = None if picked is None else picked - 1
        located = _chosen(hunk, locate(self._contents, hunk.search, hunk.replace, at=at), self._contents)
        start = self._start_of(located) if isinstance(located, Location) else None
        if isinstance(located, Location) and start is not None and located.match == "exact":
            return located, start
        if isinstance(located, Location) or located.absent:
            current = [line.content for line in self._lines]
            now = _chosen(hunk, locate(current, hunk.search, hunk.replace, at=at), current)
            if isinstance(now, Location) and (now.match == "exact" or start is None):
                return now, now.start
        if isinstance(located, NotLocated):
            return self._not_placed(hunk, located)
        return self._refuse_overlap(hunk, located) if start is None else (located, start)

    def _refuse_overlap(self, hunk: Hunk, location: Location) -> Refused:
        """The hunk quotes lines that an earlier one changed."""
        others = {self._changed_by.get(location.start + offset) for offset in range(len(location.search))}
        earlier = min((other for other in others if other is not None), default=0)
        reason = f"it changes the same lines as edit {earlier + 1} of this answer"
        return Refused(hunk=hunk, reason=reason, candidates=(location.start + 1,))

    def _start_of(self, location: Location) -> int | None:
        """Current position of lines located in the original; None if an earlier hunk changed or split them."""
        size = len(location.search)
        for index, line in enumerate(self._lines):
            if line.origin == location.start:
                there = [other.origin for other in self._lines[index : index + size]]
                return index if there == list(range(location.start, location.start + size)) else None
        return None

    def _not_placed(self, hunk: Hunk, missing: NotLocated) -> Refused:
        """Explain why; a hunk that is already in the file gets a different reason from one that never matched."""
        reason = missing.reason
        if missing.absent and hunk.replace and any(line.strip() for line in hunk.replace):
            there = locate(self._contents, hunk.replace, hunk.search)
            if isinstance(there, Location) and there.match == "exact":
                reason = f"it seems to be applied already, at line {there.start + 1}"
        if missing.absent and any(_BARE_ELISION.match(line) or is_elision(line) for line in hunk.search):
            reason = "the text to find leaves lines out with '...'"
        return Refused(hunk=hunk, reason=reason, candidates=tuple(line + 1 for line in missing.candidates))

    def _is_done(self, hunk: Hunk, location: Location, start: int) -> bool:
        """Return True if the lines that the hunk would insert already surround the located lines."""
        if hunk.final_newline is not None:
            return False
        size, new = len(location.search), list(location.replace)
        lines = [line.content for line in self._lines]
        for offset in range(len(new) - size + 1):
            first = start - offset
            is_quoted = tuple(new[offset : offset + size]) == location.search
            if is_quoted and first >= 0 and lines[first : first + len(new)] == new:
                return True
        return False

    def _filled(self, hunk: Hunk, location: Location, old_lines: list[_Line]) -> list[_Line] | Refused:
        """Keep the file's lines where the response repeats them; re-indent and insert only new lines."""
        filled: list[_Line] = []
        matcher = SequenceMatcher(None, location.search, location.replace, autojunk=False)
        for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
            if tag == "equal":
                filled += old_lines[old_from:old_to]
                continue
            for index in range(new_from, new_to):
                line = location.reindent(index, location.replace[index])
                if line is None:
                    reason = f"the indentation of its new line {index + 1} has no counterpart at the place found"
                    return Refused(hunk=hunk, reason=reason, candidates=(location.start + 1,))
                replaced = old_from + index - new_from
                ending = old_lines[replaced].ending if replaced < old_to else ""
                filled.append(_Line(line, ending or self._eol, None))
        return filled


def _unusable(hunk: Hunk) -> Refused | None:
    if len(hunk.search) > _MOST_LINES or len(hunk.replace) > _MOST_LINES:
        return Refused(hunk=hunk, reason=f"it is longer than {_MOST_LINES} lines")
    if hunk.search == hunk.replace and hunk.final_newline is None:
        return Refused(hunk=hunk, reason="it changes nothing")
    return None


def _has_headings(path: str, lines: Sequence[str]) -> bool:
    """Return True if every line that looks like a divider underlines a heading."""
    if PurePosixPath(path).suffix.lower() in _TEXT_SUFFIXES:
        return True
    under = [index for index, line in enumerate(lines) if _UNDERLINE.match(line)]
    return all(index and len(lines[index - 1].strip()) == len(lines[index].strip()) for index in under)


def _without_mark(hunk: Hunk) -> Hunk:
    """The hunk without a byte-order mark at the start of its texts."""
    search, new = hunk.search, hunk.replace
    if search and search[0].startswith(_BOM):
        search = (search[0].removeprefix(_BOM), *search[1:])
    if new and new[0].startswith(_BOM) and hunk.kind != "create":
        new = (new[0].removeprefix(_BOM), *new[1:])
    return hunk if (search, new) == (hunk.search, hunk.replace) else replace(hunk, search=search, replace=new)


def _chosen(hunk: Hunk, located: Location | NotLocated, lines: Sequence[str]) -> Location | NotLocated:
    """The only location that also matches the patch's other facts: the lines above it, or the end of the file."""
    if isinstance(located, Location) or located.absent or not (hunk.scope or hunk.at_end):
        return located
    starts = [start for start, _ in matches(lines, hunk.search, "exact")] if hunk.search else []
    if hunk.at_end:
        starts = [start for start in starts if start + len(hunk.search) == len(lines)]
    if hunk.scope:
        starts = _within(lines, hunk.scope, starts)
    return Location(starts[0], "exact", hunk.search, hunk.replace, same) if len(starts) == 1 else located


def _within(lines: Sequence[str], scope: Sequence[str], starts: Sequence[int]) -> list[int]:
    """Starts in the code indented below the last line of `scope`, whose lines must each occur once, in order."""
    first, depth = 0, -1
    for text in scope:
        same_text = [index for index in range(first, len(lines)) if lines[index].strip() == text.strip()]
        if len(same_text) != 1:
            return []
        first, depth = same_text[0] + 1, len(indent_of(lines[same_text[0]]))
    end = first
    while end < len(lines) and (not lines[end].strip() or len(indent_of(lines[end])) > depth):
        end += 1
    return [start for start in starts if first <= start < end]
