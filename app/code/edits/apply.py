"""Apply the hunks of one file: every hunk is placed on the original text, none may overlap another."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from app.code.edits import lines as text_lines
from app.code.edits.locate import Location, NotLocated, locate
from app.code.edits.types import Applied, FileResult, Hunk, Outcome, Refused

# Longer hunks cost seconds to align; an answer of a model never has one.
_MOST_LINES = 5000


def apply_hunks(text: str, hunks: Sequence[Hunk], picked: Mapping[int, int] | None = None) -> FileResult:
    """Place every hunk and build the new text.

    `picked` maps the index of a hunk to the 1-based line a person chose for it out of its candidates.
    Untouched lines keep their bytes, endings included; new lines take the ending most lines have.
    """
    original = text_lines.split(text)
    outcomes: list[Outcome] = []
    for index, hunk in enumerate(hunks):
        outcome = _apply_hunk(original, hunk, (picked or {}).get(index))
        if (
            isinstance(outcome, Applied)
            and hunk.kind == "create"
            and any(h.kind == "create" for h in hunks[:index])
        ):
            outcome = Refused(hunk=hunk, reason="this answer already makes a new file of that name")
        elif isinstance(outcome, Applied) and hunk.kind == "delete" and len(hunks) > 1:
            outcome = Refused(hunk=hunk, reason="this answer also changes the file that it deletes")
        if isinstance(outcome, Applied):
            clash = _overlapping(outcome, outcomes)
            if clash is not None:
                reason = f"it changes the same lines as edit {clash + 1} of this answer"
                outcome = Refused(hunk=hunk, reason=reason, candidates=(outcome.first,))
        outcomes.append(outcome)
    return FileResult(text=merge(text, outcomes), outcomes=tuple(outcomes))


def merge(text: str, outcomes: Sequence[Outcome]) -> str:
    """The text with the applied ones of `outcomes` (any subset of one result) put in."""
    original = text_lines.split(text)
    eol = text_lines.ending_of(original)
    result: list[tuple[str, str]] = []
    position = 0
    for applied in sorted((o for o in outcomes if isinstance(o, Applied)), key=lambda o: o.first):
        result += original[position : applied.first - 1]
        result += [pair for line in applied.new_lines for pair in text_lines.split(line)]
        position = applied.last
    result += original[position:]
    if not original:
        return "".join(content + ending for content, ending in result)
    joined = [content + (ending or eol) for content, ending in result]
    if joined and not original[-1][1]:
        joined[-1] = result[-1][0]
    return "".join(joined)


def _apply_hunk(original: list[tuple[str, str]], hunk: Hunk, picked: int | None) -> Outcome:
    lines = [content for content, _ in original]
    if hunk.kind == "create":
        return _placed_creation(original, hunk)
    if len(hunk.search) > _MOST_LINES or len(hunk.replace) > _MOST_LINES:
        return Refused(hunk=hunk, reason=f"it is longer than {_MOST_LINES} lines")
    if hunk.kind == "delete":
        return _placed_deletion(lines, hunk)
    if hunk.search == hunk.replace:
        return Refused(hunk=hunk, reason="it changes nothing")
    location = locate(lines, hunk.search, hunk.replace, at=None if picked is None else picked - 1)
    if isinstance(location, Location) and not _is_done(lines, location):
        return _filled(original, hunk, location)
    return _not_placed(lines, hunk, location)


def _not_placed(lines: list[str], hunk: Hunk, location: Location | NotLocated) -> Refused:
    """Say why; a hunk that is in the file already is told apart from one that never fitted."""
    if isinstance(location, Location):
        done: int | None = location.start
        near: tuple[int, ...] = (location.start,)
        reason = ""
    else:
        there = locate(lines, hunk.replace, hunk.search) if hunk.replace and location.absent else None
        done = there.start if isinstance(there, Location) and there.match == "exact" else None
        near, reason = location.candidates, location.reason
    if done is not None:
        reason = f"it seems to be applied already, at line {done + 1}"
    return Refused(hunk=hunk, reason=reason, candidates=tuple(line + 1 for line in near))


def _is_done(lines: list[str], location: Location) -> bool:
    """Whether the found lines already stand amid the lines that the hunk would insert around them."""
    size, new = len(location.search), list(location.replace)
    for offset in range(len(new) - size + 1):
        start = location.start - offset
        if (
            tuple(new[offset : offset + size]) == location.search
            and start >= 0
            and lines[start : start + len(new)] == new
        ):
            return True
    return False


def _placed_deletion(lines: list[str], hunk: Hunk) -> Outcome:
    if list(hunk.search) != lines:
        return Refused(hunk=hunk, reason="the file to delete differs from what the answer quotes")
    return Applied(hunk=hunk, match="exact", first=1, last=len(lines), new_lines=())


def _placed_creation(original: list[tuple[str, str]], hunk: Hunk) -> Outcome:
    if any(content.strip() for content, _ in original):
        return Refused(hunk=hunk, reason="there is already a file of that name with text in it")
    new_lines = tuple(line + "\n" for line in hunk.replace)
    if hunk.ends_without_newline and new_lines:
        new_lines = (*new_lines[:-1], hunk.replace[-1])
    last = 0 if hunk.source == "diff" else len(original)  # a diff that begins a file keeps its blank lines
    return Applied(hunk=hunk, match="exact", first=1, last=last, new_lines=new_lines)


def _filled(original: list[tuple[str, str]], hunk: Hunk, location: Location) -> Outcome:
    """Lines the answer keeps stay the file's own; only its new lines are re-indented and inserted."""
    eol = text_lines.ending_of(original)
    found = original[location.start : location.start + len(location.search)]
    new_lines: list[str] = []
    matcher = SequenceMatcher(None, location.search, location.replace, autojunk=False)
    for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if tag == "equal":
            new_lines += [content + (ending or eol) for content, ending in found[old_from:old_to]]
            continue
        for index in range(new_from, new_to):
            line = location.reindent(index, location.replace[index])
            if line is None:
                reason = f"the indentation of its new line {index + 1} has no counterpart at the place found"
                return Refused(hunk=hunk, reason=reason, candidates=(location.start + 1,))
            new_lines.append(line + eol)
    return Applied(
        hunk=hunk,
        match=location.match,
        first=location.start + 1,
        last=location.start + len(location.search),
        new_lines=tuple(new_lines),
    )


def _overlapping(new: Applied, earlier: Sequence[Outcome]) -> int | None:
    for index, other in enumerate(earlier):
        if isinstance(other, Applied) and new.first <= other.last and other.first <= new.last:
            return index
    return None
