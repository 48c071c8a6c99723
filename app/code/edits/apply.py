"""Apply the hunks of one file. Every hunk is located in the original text; hunks must not overlap."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.code.edits import parse as text_lines
from app.code.edits.parse import indent_of
from app.code.edits.types import Applied, FileResult, Hunk, Match, Outcome, Refused

# Locate quoted code in a file: exactly one position, or none with a reason.
#
# Tolerance has limits. Code that occurs twice has no position. If code matches only with whitespace ignored, it has
# no position either when another place in the file is more similar to it as written.

# Map the indentation of quoted code to the indentation in the file.

# Returns a replacement line with the file's indentation, or None if that cannot be derived.
Reindent = Callable[[int, str], str | None]


def same(index: int, line: str) -> str:
    """Keep the line unchanged."""
    del index
    return line


def shifted(search: Sequence[str], found: Sequence[str]) -> Reindent | None:
    """The prefix that all lines gained, or all lost; None if there is no such prefix.

    Responses often lose the indentation of only their first line, so that line may differ from the rest.
    """
    whole = _shift(search, found)
    if whole is not None:
        return lambda _, line: _moved(line, whole)
    shift = _shift(search[1:], found[1:])
    if shift is None or indent_of(search[0]) or not any(line.strip() for line in search[1:]):
        return None
    head = indent_of(found[0])

    def reindent(index: int, line: str) -> str | None:
        return head + line if index == 0 and not indent_of(line) else _moved(line, shift)

    return reindent


def retabbed(search: Sequence[str], found: Sequence[str]) -> Reindent | None:
    """Convert spaces in the response to tabs in the file, or the reverse, at one constant width."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, found, strict=True) if s.strip()]
    if any(bool(s) != bool(f) for s, f in pairs):
        return None
    pairs = [pair for pair in pairs if pair[0]]
    if pairs and all(set(s) == {" "} and set(f) == {"\t"} for s, f in pairs):
        widths = {len(s) / len(f) for s, f in pairs}
        wide, narrow = " ", "\t"
    elif pairs and all(set(s) == {"\t"} and set(f) == {" "} for s, f in pairs):
        widths = {len(f) / len(s) for s, f in pairs}
        wide, narrow = "\t", " "
    else:
        return None
    width = widths.pop()
    if widths or width != int(width):
        return None
    unit = int(width)

    def reindent(_: int, line: str) -> str | None:
        indent, body = indent_of(line), line.lstrip(" \t")
        if not body or not indent:
            return body
        if set(indent) != {wide}:
            return None
        if narrow == " ":
            return " " * (unit * len(indent)) + body
        return None if len(indent) % unit else "\t" * (len(indent) // unit) + body

    return reindent


def _shift(search: Sequence[str], found: Sequence[str]) -> tuple[str, str] | None:
    """Return (prefix to remove, prefix to add); one of them is empty."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, found, strict=True) if s.strip()]
    if not pairs:
        return None
    first_s, first_f = pairs[0]
    if first_f.endswith(first_s):
        added = first_f[: len(first_f) - len(first_s)]
        if all(f == added + s for s, f in pairs):
            return "", added
    if first_s.endswith(first_f):
        removed = first_s[: len(first_s) - len(first_f)]
        if all(s == removed + f for s, f in pairs):
            return removed, ""
    return None


def _moved(line: str, shift: tuple[str, str]) -> str | None:
    removed, added = shift
    if not line.strip():
        return ""
    return added + line[len(removed) :] if line.startswith(removed) else None


# With fewer letters and digits, a match with whitespace ignored is too weak.
_LEAST_EVIDENCE = 4
# Fraction of equal lines from which another place may be the intended one.
_RIVAL_FRACTION = 0.5
# The same for snippets of up to three lines: difflib similarity of single lines.
_RIVAL_RATIO = 0.8
_SHORT_SEARCH = 3
# A line at more positions than this does not help to locate code, and would cost time.
_COMMON_LINE = 200
_SHOWN_CANDIDATES = 8


@dataclass(frozen=True)
class Location:
    """Lines `start` to `start + len(search)` (0-based) match `search`; `replace` replaces them."""

    start: int
    match: Match
    search: tuple[str, ...]
    replace: tuple[str, ...]
    reindent: Reindent


@dataclass(frozen=True)
class NotLocated:
    """The reason why there is no position, and similar 0-based lines. `absent`: the text occurs nowhere."""

    reason: str
    candidates: tuple[int, ...] = ()
    absent: bool = False


def locate(
    lines: Sequence[str], search: tuple[str, ...], replace: tuple[str, ...], *, at: int | None = None
) -> Location | NotLocated:
    """Find the only position of `search`; `at` (0-based) is the user's choice among several."""
    if not any(line.strip() for line in search):
        return NotLocated("the text to find is empty")
    for match, part, new in _attempts(search, replace):
        locations = [
            Location(start, match, part, new, reindent) for start, reindent in _matches(lines, part, match)
        ]
        if at is not None:
            locations = [location for location in locations if location.start == at]
        if not locations:
            continue
        if len(locations) > 1:
            shown = tuple(location.start for location in locations[:_SHOWN_CANDIDATES])
            return NotLocated(f"the text to find occurs {len(locations)} times", shown)
        if match != "exact" and at is None:
            doubt = _doubt(lines, locations[0])
            if doubt is not None:
                return doubt
        return locations[0]
    return NotLocated("the text to find is not in the file", _nearest(lines, search), absent=True)


def _attempts(
    search: tuple[str, ...], replace: tuple[str, ...]
) -> Iterator[tuple[Match, tuple[str, ...], tuple[str, ...]]]:
    yield "exact", search, replace
    yield "trailing space", search, replace
    trimmed, new = _without_outer_blanks(search, replace)
    if trimmed != search:
        yield "outer blank lines", trimmed, new
    yield "indentation", trimmed, new
    yield "tabs and spaces", trimmed, new


def _matches(lines: Sequence[str], part: Sequence[str], match: Match) -> Iterator[tuple[int, Reindent]]:
    """Yield every start at which `part` matches under the rule `match`."""
    size = len(part)
    if match == "exact":
        first, whole = part[0], list(part)
        for start in range(len(lines) - size + 1):
            if lines[start] == first and list(lines[start : start + size]) == whole:
                yield start, same
        return
    forgiving = match in {"indentation", "tabs and spaces"}
    key = str.strip if forgiving else str.rstrip
    wanted = [key(line) for line in part]
    given = [key(line) for line in lines]
    for start in range(len(lines) - size + 1):
        if given[start] != wanted[0] or given[start : start + size] != wanted:
            continue
        if not forgiving:
            yield start, same
            continue
        rule = shifted if match == "indentation" else retabbed
        reindent = rule(part, lines[start : start + size])
        if reindent is not None:
            yield start, reindent


def _without_outer_blanks(
    search: tuple[str, ...], replace: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Drop blank first and last lines of the search, and the matching ones of the replacement."""
    old, new = list(search), list(replace)
    while not old[0].strip():
        old.pop(0)
        if new and not new[0].strip():
            new.pop(0)
    while not old[-1].strip():
        old.pop()
        if new and not new[-1].strip():
            new.pop()
    return tuple(old), tuple(new)


def _doubt(lines: Sequence[str], location: Location) -> NotLocated | None:
    """Reason to reject a match with whitespace ignored; None if there is none."""
    letters = sum(char.isalnum() for line in location.search for char in line)
    if letters < _LEAST_EVIDENCE:
        return NotLocated("too little text to place without its exact whitespace", (location.start,))
    rivals = _rivals(lines, location.search, skip=location.start)
    if rivals:
        reason = (
            f"it fits line {location.start + 1} only with different whitespace ({location.match}), "
            f"and line {rivals[0] + 1} resembles it too"
        )
        return NotLocated(reason, (location.start, *rivals))
    return None


def _rivals(lines: Sequence[str], search: Sequence[str], skip: int | None = None) -> tuple[int, ...]:
    """Starts (0-based) of other places that equal most of `search` as written, best first."""
    size = len(search)
    positions: dict[str, list[int]] = defaultdict(list)
    wanted = set(search)
    for number, line in enumerate(lines):
        if line in wanted and line.strip():
            positions[line].append(number)
    votes: dict[int, int] = defaultdict(int)
    for offset, line in enumerate(search):
        found = positions.get(line, ())
        if len(found) <= _COMMON_LINE:
            for number in found:
                votes[number - offset] += 1
    telling = sum(1 for line in search if line.strip())
    scored = {
        max(start, 0): count / telling for start, count in votes.items() if count / telling >= _RIVAL_FRACTION
    }
    if size <= _SHORT_SEARCH:
        for start in range(len(lines) - size + 1):
            ratio = _similarity(search, lines[start : start + size])
            if ratio >= _RIVAL_RATIO:
                scored[start] = max(ratio, scored.get(start, 0.0))
    if skip is not None:
        scored = {start: share for start, share in scored.items() if abs(start - skip) >= size}
    return tuple(sorted(scored, key=lambda start: (-scored[start], start))[:_SHOWN_CANDIDATES])


def _similarity(search: Sequence[str], window: Sequence[str]) -> float:
    """Mean difflib ratio of aligned lines; 0 if indentation differs or a fast upper bound is too low."""
    total = 0.0
    for old, new in zip(search, window, strict=True):
        if old == new:
            total += 1.0
            continue
        if indent_of(old) != indent_of(new):
            return 0.0
        matcher = SequenceMatcher(None, old.strip(), new.strip(), autojunk=False)
        if matcher.real_quick_ratio() < _RIVAL_RATIO or matcher.quick_ratio() < _RIVAL_RATIO:
            return 0.0
        total += matcher.ratio()
    return total / len(search)


def _nearest(lines: Sequence[str], search: tuple[str, ...]) -> tuple[int, ...]:
    """Similar places to show with a refusal: as written, else with whitespace ignored."""
    trimmed, _ = _without_outer_blanks(search, ())
    return _rivals(lines, trimmed) or _rivals([line.strip() for line in lines], [line.strip() for line in trimmed])


# Longer hunks take seconds to align; model responses never contain one.
_MOST_LINES = 5000


def apply_hunks(text: str, hunks: Sequence[Hunk], picked: Mapping[int, int] | None = None) -> FileResult:
    """Locate every hunk and build the new text.

    `picked` maps a hunk's index to the 1-based line that the user chose among its candidates. Unchanged lines keep
    their bytes, endings included; new lines get the most common line ending.
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
    """The text with the applied hunks of `outcomes` (any subset of one result) inserted."""
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
    """Explain why; a hunk that is already in the file gets a different reason from one that never matched."""
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
    """Return True if the located lines already have around them the lines that the hunk would insert."""
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
    last = 0 if hunk.source == "diff" else len(original)  # a diff at the start of a file keeps its blank lines
    return Applied(hunk=hunk, match="exact", first=1, last=last, new_lines=new_lines)


def _filled(original: list[tuple[str, str]], hunk: Hunk, location: Location) -> Outcome:
    """Keep the file's lines where the response repeats them; re-indent and insert only new lines."""
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
