"""Dialect descriptors: how a family of models writes reasoning and tool calls. One parser reads them all."""

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from engine.chat.reasoning import Markers

IdStyle = Literal["call", "nine", "indexed"]

NAME_KEYS = frozenset({"name", "tool_name", "function_name", "tool"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input"})


class JsonCalls(msgspec.Struct, frozen=True):
    """`{"name": …, "arguments": {…}}`, alone or listed. `name_is_key`: `{"get_weather": {…}}`.

    `keys` and `listed` are the family's own format; other keys and lists are read as well.
    """

    name_is_key: bool = False
    keys: tuple[str, str] = ("name", "arguments")
    listed: bool = False


class NamedCalls(msgspec.Struct, frozen=True):
    """A header that contains the name, then the arguments as JSON.

    The header is everything from `start` to the first brace; `header` finds the group `name` in it. `ends`
    are dropped after the arguments. `quote`: the string delimiter if it is not a quotation mark.
    `strict`: a name that is not a tool of the request means that this was text. `spelling` is the header as the
    family writes it, for grammars; `{id}` and `{index}` stand for values that the model generates.
    """

    start: str
    header: re.Pattern[str]
    ends: tuple[str, ...] = ()
    quote: str | None = None
    loose: bool = False
    strict: bool = False
    spelling: str = "{name}"


class TaggedCalls(msgspec.Struct, frozen=True):
    """One tag for each argument.

    `start` NAME `name_end`, then any number of `key_open` KEY `key_close` [`value_open`] VALUE `value_close`,
    then `end`. If name and key are attributes, `name` and `key` find them (group `name`, `key`, and
    `kind`: the value's type). `{key}` in `value_close` stands for the key. `newlines`: one line break on
    each side of a value is layout. `loose`: the call may be outside its section. `nested`: the prefix of the
    tags of lists and objects inside a value. The spellings are how the family writes name and key, for grammars.
    """

    start: str
    name_end: str
    key_open: str
    key_close: str
    value_close: str
    end: str
    value_open: str = ""
    name: re.Pattern[str] | None = None
    key: re.Pattern[str] | None = None
    newlines: bool = False
    loose: bool = False
    nested: str = ""
    name_spelling: str = "{name}"
    key_spelling: str = "{key}"


class PythonCalls(msgspec.Struct, frozen=True):
    """`[get_weather(city="Paris"), …]`."""


Form = JsonCalls | NamedCalls | TaggedCalls | PythonCalls


class Section(msgspec.Struct, frozen=True):
    """The text around calls. Without `ends` it is over when something other than a call follows.

    `gap` is the layout that the family writes inside both markers; `single`: each call has a separate section.
    """

    start: str
    ends: tuple[str, ...] = ()
    gap: str = ""
    single: bool = True


class Headers(msgspec.Struct, frozen=True):
    """Messages inside one response: a header between `starts` and `end` gives the kind of its body.

    A header that contains one of `reasoning` opens reasoning; one that `call` matches (group `name`) opens a
    call's arguments; anything else opens visible text, without calls if it contains one of `text`. `body_ends`
    close a body.
    """

    starts: tuple[str, ...]
    end: str
    reasoning: tuple[str, ...]
    body_ends: tuple[str, ...]
    call: re.Pattern[str] | None = None
    text: tuple[str, ...] = ()


class Dialect(msgspec.Struct, frozen=True):
    """One family of models.

    `needs`: substrings that all its templates have; `lacks`: substrings that none has; the first matching dialect
    is used. `seeds`: ends of the prefill that belong to the response. `bare_json`: a call may be at the start
    of the response without any marker; `bare_first`: the family writes calls that way. `content_opening` must
    come before visible text. `call_preamble`: the markers of what may come before a call, if that is not only
    reasoning. `breaks_reasoning`: a call ends reasoning that was not closed.
    """

    name: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    reasoning: Markers | None = None
    sections: tuple[Section, ...] = ()
    forms: tuple[Form, ...] = (JsonCalls(),)
    headers: Headers | None = None
    drops: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    bare_json: bool = False
    bare_first: bool = False
    content_opening: str = ""
    call_preamble: tuple[str, str] | None = None
    breaks_reasoning: bool = False
    reasoning_anywhere: bool = False
    id_style: IdStyle = "call"

    def reasons_in(self, prefill: str) -> bool:
        """Whether the head of a response ends inside a message of reasoning, as when it is continued."""
        if self.headers is None or self.call_preamble is None:
            return False
        _, opening, prefix = prefill.rpartition(self.call_preamble[0])
        return bool(opening) and not any(end in prefix for end in self.headers.body_ends)

    def speaks_in(self, prefill: str) -> bool:
        """Whether the head of a response ends in visible text, as when that text is continued."""
        if not self.content_opening or self.reasons_in(prefill):
            return False
        if self.reasoning is not None:
            _, start, block = prefill.rpartition(self.reasoning.start)
            if start and self.reasoning.end not in block:
                return False
        return self.content_opening in prefill


# Search for markers in text that is still growing.


class MarkerMatch(NamedTuple):
    """A marker at a position; `mark` None: the text ends with the possible start of a marker."""

    at: int
    mark: str | None


class Marks:
    """A set of markers, compiled once. Empty strings are ignored."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        ordered = sorted(filter(None, set(marks)), key=lambda mark: (-len(mark), mark))
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._longest = len(ordered[0]) if ordered else 0
        self._first = frozenset(mark[0] for mark in ordered)
        self._beginnings = frozenset(mark[:n] for mark in ordered for n in range(1, len(mark)))

    def search(self, text: str) -> MarkerMatch | None:
        """The first marker in the text, the longest one at its position; None if there is not even a prefix of one.

        The result does not depend on how the text was split: while an earlier or longer marker is still possible at
        the end of the text, the result is to wait.
        """
        match = self._pattern.search(text) if self._pattern else None
        last = match.start() if match else len(text) - 1
        for at in range(max(0, len(text) - self._longest + 1), last + 1):
            # A marker that may become longer than the text is longer than one that matches inside it.
            if text[at] in self._first and text[at:] in self._beginnings:
                return MarkerMatch(at, None)
        return MarkerMatch(match.start(), match.group()) if match else None

    def begins(self, text: str) -> str | None:
        """The marker at the start of the text; an empty string if it may become one; None if it cannot."""
        if text in self._beginnings:
            return ""
        match = self._pattern.match(text) if self._pattern else None
        return match.group() if match else None


@lru_cache(maxsize=512)
def compiled(marks: tuple[str, ...]) -> Marks:
    """The compiled set, cached: dialects use few of them."""
    return Marks(marks)


def earliest(text: str, marks: tuple[str, ...]) -> MarkerMatch | None:
    """`Marks.search` for a set given as a tuple."""
    return compiled(marks).search(text)


# Code fences that models put around calls.
FENCES: Final = ("```json", "```tool_call", "```")


class ParserMarks(msgspec.Struct, frozen=True):
    """`starts` maps start markers to their sections; `loose` are call markers outside of sections.

    `ends` close sections, `headers` start a message's header, `stops` end a call that was not closed, `breakers`
    start a call inside reasoning. `text`, `reasoning`, `section` and `closing` (after such a call) are all markers
    that have a meaning in that state.
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
    """The markers of a dialect; without `calls`, no markers of calls."""
    forms = tuple(f for f in dialect.forms if calls and isinstance(f, (NamedCalls, TaggedCalls)))
    sections = dialect.sections if calls else ()
    starts = {section.start: section for section in sections}
    loose = tuple(form.start for form in forms if form.loose and form.start)
    ends = tuple(end for section in sections for end in section.ends)
    form_ends = tuple(end for f in forms for end in (f.ends if isinstance(f, NamedCalls) else (f.end,)))
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
        section=Marks((*starts, *ends, *(f.start for f in forms), *form_ends, *body_ends, *FENCES)),
        closing=Marks((*closing, *headers, *body_ends)),
    )
