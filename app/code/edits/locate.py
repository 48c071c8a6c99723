"""Where in a file a quoted piece of code is: exactly one place, or none with the reason.

Tolerance ends where doubt begins. A piece that occurs twice has no place; a piece that fits one place only
after forgiving whitespace has none either when another place resembles it more closely as written.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.code.edits.lines import indent_of
from app.code.edits.reindent import Reindent, retabbed, same, shifted
from app.code.edits.types import Match

# A whitespace-forgiving match of less than this many letters and digits says too little about its place.
_LEAST_EVIDENCE = 4
# Share of lines equal as written from which another place counts as the one that may have been meant.
_RIVAL_FRACTION = 0.5
# Similarity of single lines, from difflib, for the same decision on pieces of up to three lines.
_RIVAL_RATIO = 0.8
_SHORT_SEARCH = 3
# A line found at more positions than this tells nothing about a place and would cost time.
_COMMON_LINE = 200
_SHOWN_CANDIDATES = 8


@dataclass(frozen=True)
class Location:
    """Lines `start` to `start + len(search)` (0-based) hold `search`; `replace` belongs there."""

    start: int
    match: Match
    search: tuple[str, ...]
    replace: tuple[str, ...]
    reindent: Reindent


@dataclass(frozen=True)
class NotLocated:
    """Why there is no place, and 0-based lines that come near. `absent`: the text is nowhere at all."""

    reason: str
    candidates: tuple[int, ...] = ()
    absent: bool = False


def locate(
    lines: Sequence[str], search: tuple[str, ...], replace: tuple[str, ...], *, at: int | None = None
) -> Location | NotLocated:
    """Find the only place of `search`; `at` (0-based) is a place a person picked out of several."""
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
    """Every start at which `part` fits under the rule `match`."""
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
    """Drop blank first and last lines of the search, and with each the same one of the replacement."""
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
    """A reason not to trust a whitespace-forgiving match, if there is one."""
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
    """Mean difflib ratio of aligned lines; 0 as soon as indentation or a quick bound rules them out."""
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
    """Places to show with a refusal: near as written, else near with whitespace ignored."""
    trimmed, _ = _without_outer_blanks(search, ())
    return _rivals(lines, trimmed) or _rivals([line.strip() for line in lines], [line.strip() for line in trimmed])
