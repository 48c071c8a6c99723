"""Finding markers in text that is still growing."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from engine.chat.reasoning import Markers
from engine.chat.tools.dialect import Dialect, NamedCalls, Section, TaggedCalls


class Found(NamedTuple):
    """A marker at a position; `mark` None: the text ends with what may become one."""

    at: int
    mark: str | None


class Marks:
    """A set of markers, compiled once. Empty strings among them are ignored."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        ordered = sorted(filter(None, set(marks)), key=lambda mark: (-len(mark), mark))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._longest = len(ordered[0]) if ordered else 0
        self._first = frozenset(mark[0] for mark in ordered)
        # Every proper beginning of a marker, and how long the longest such marker is.
        self._beginnings: dict[str, int] = {}
        for mark in reversed(ordered):
            self._beginnings.update({mark[:n]: len(mark) for n in range(1, len(mark))})

    def search(self, text: str) -> Found | None:
        """The first marker in the text, the longest one at its position; None if not even a beginning.

        The answer does not depend on how the text was cut into pieces: while an earlier or longer marker
        is still possible at the end of the text, the answer is to wait.
        """
        match = self._pattern.search(text) if self._pattern else None
        last = match.start() if match else len(text) - 1
        for at in range(max(0, len(text) - self._longest + 1), last + 1):
            if text[at] in self._first:
                length = self._beginnings.get(text[at:], 0)
                if length and (match is None or at < match.start() or length > match.end() - match.start()):
                    return Found(at, None)
        return Found(match.start(), match.group()) if match else None

    def begins(self, text: str) -> str | None:
        """The marker at the beginning of the text; empty string: it may become one; None: it is none."""
        match = self._pattern.match(text) if self._pattern else None
        length = self._beginnings.get(text, 0)
        if length and (match is None or length > match.end()):
            return ""
        return match.group() if match else None


@lru_cache(maxsize=512)
def compiled(marks: tuple[str, ...]) -> Marks:
    """The compiled set, cached: dialects use few of them."""
    return Marks(marks)


def earliest(text: str, marks: tuple[str, ...]) -> Found | None:
    """`Marks.search` for a set given as a tuple."""
    return compiled(marks).search(text)


# Code fences that models put around calls.
FENCES: Final = ("```json", "```tool_call", "```")


class ParserMarks(msgspec.Struct, frozen=True):
    """`starts` maps the mark of each section to it, `loose` are call marks outside of sections.

    `ends` close sections, `headers` begin a message's header, `stops` end a call that was not closed, `breakers`
    begin a call inside reasoning. `text`, `reasoning`, `section` and `closing` (behind such a call) are everything
    that means something in that place.
    """

    starts: dict[str, Section]
    loose: tuple[str, ...]
    ends: frozenset[str]
    headers: tuple[str, ...]
    stops: tuple[str, ...]
    breakers: frozenset[str]
    text: Marks
    reasoning: Marks
    section: Marks
    closing: Marks


@lru_cache(maxsize=256)
def marks_of(dialect: Dialect, *, calls: bool, reasoning: Markers | None) -> ParserMarks:
    """The marks of a dialect; without `calls` none that has to do with calls."""
    named = tuple(f for f in dialect.forms if calls and isinstance(f, (NamedCalls, TaggedCalls)))
    sections = dialect.sections if calls else ()
    starts = {section.start: section for section in sections}
    loose = tuple(form.start for form in named if form.loose and form.start)
    ends = tuple(end for section in sections for end in section.ends)
    form_ends = tuple(end for f in named for end in (f.ends if isinstance(f, NamedCalls) else (f.end,)))
    headers = dialect.headers.starts if dialect.headers else ()
    body_ends = dialect.headers.body_ends if dialect.headers else ()
    opening = (reasoning.start,) if reasoning else ()
    closing = (reasoning.end,) if reasoning else ()
    breakers = (*starts, *loose) if dialect.breaks_reasoning else ()
    return ParserMarks(
        starts=starts,
        loose=loose,
        ends=frozenset(ends),
        headers=headers,
        stops=(*ends, *starts),
        breakers=frozenset(breakers),
        text=Marks((*starts, *loose, *dialect.drops, *ends, *form_ends, *headers, *opening, *closing)),
        reasoning=Marks((*closing, *breakers, *headers, *body_ends)),
        section=Marks((*starts, *ends, *(f.start for f in named), *form_ends, *body_ends, *FENCES)),
        closing=Marks((*closing, *headers, *body_ends)),
    )
