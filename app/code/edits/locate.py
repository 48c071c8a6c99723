"""Locate quoted code in a file: exactly one position, or none with a reason.

Tolerance has limits. Code that occurs twice has no position. If code matches only with whitespace ignored, it has
no position either when another place in the file is more similar to it as written.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.code.edits.parse import indent_of
from app.code.edits.types import Match

# Map the indentation of quoted code to the indentation in the file.

# Returns a replacement line with the file's indentation, or None if that cannot be derived.
Reindent = Callable[[int, str], str | None]


def same(index: int, line: str) -> str:
    """Keep the line unchanged."""
    del index
    return line


def shifted(search: Sequence[str], file_lines: Sequence[str]) -> Reindent | None:
    """The prefix that all lines gained, or all lost; None if there is no such prefix.

    Responses often lose the indentation of only their first line, so that line may differ from the rest.
    """
    whole = _shift(search, file_lines)
    if whole is not None:
        return lambda _, line: _moved(line, whole)
    shift = _shift(search[1:], file_lines[1:])
    if shift is None or indent_of(search[0]) or not any(line.strip() for line in search[1:]):
        return None
    head = indent_of(file_lines[0])

    def reindent(index: int, line: str) -> str | None:
        return head + line if index == 0 and not indent_of(line) else _moved(line, shift)

    return reindent


def retabbed(search: Sequence[str], file_lines: Sequence[str]) -> Reindent | None:
    """Convert spaces in the response to tabs in the file, or the reverse, at one constant width."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, file_lines, strict=True) if s.strip()]
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


def _shift(search: Sequence[str], file_lines: Sequence[str]) -> tuple[str, str] | None:
    """Return (prefix to remove, prefix to add); one of them is empty."""
    pairs = [(indent_of(s), indent_of(f)) for s, f in zip(search, file_lines, strict=True) if s.strip()]
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
# This ratio for snippets of up to three lines: difflib similarity of single lines.
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
        locations = [Location(start, match, part, new, reindent) for start, reindent in matches(lines, part, match)]
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


def matches(lines: Sequence[str], part: Sequence[str], match: Match) -> Iterator[tuple[int, Reindent]]:
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
    part_keys = [key(line) for line in part]
    line_keys = [key(line) for line in lines]
    for start in range(len(lines) - size + 1):
        if line_keys[start] != part_keys[0] or line_keys[start : start + size] != part_keys:
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
    if letters < _LEAST_EVIDENCE and location.match != "trailing space":
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
    """Line numbers (from 0) of other places where the file almost matches `search`, best match first."""
    size = len(search)
    positions: dict[str, list[int]] = defaultdict(list)
    search_lines = set(search)
    for number, line in enumerate(lines):
        if line in search_lines and line.strip():
            positions[line].append(number)
    votes: dict[int, int] = defaultdict(int)
    for offset, line in enumerate(search):
        numbers = positions.get(line, ())
        if len(numbers) <= _COMMON_LINE:
            for number in numbers:
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
