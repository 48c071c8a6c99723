"""Which markers the parser of a dialect looks for in which place; made once for each dialect."""

from functools import lru_cache
from typing import Final

import msgspec

from engine.chat.reasoning import Markers
from engine.chat.tools.dialect import Dialect, NamedCalls, Section, TaggedCalls
from engine.chat.tools.marks import Marks

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
