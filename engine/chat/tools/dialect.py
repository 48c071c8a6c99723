"""Descriptors: how a family of models writes reasoning and tool calls. One parser reads them all."""

import re
from typing import Literal

import msgspec

from engine.chat.reasoning import Markers

IdStyle = Literal["call", "nine", "indexed"]

NAME_KEYS = frozenset({"name", "tool_name", "function_name", "tool"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input"})


class JsonCalls(msgspec.Struct, frozen=True):
    """`{"name": …, "arguments": {…}}`, alone or listed. `name_is_key`: `{"get_weather": {…}}`.

    `keys` and `listed` say how the family itself writes it; other keys and lists are read as well.
    """

    name_is_key: bool = False
    keys: tuple[str, str] = ("name", "arguments")
    listed: bool = False


class NamedCalls(msgspec.Struct, frozen=True):
    """A header that holds the name, then the arguments as JSON.

    The header is everything from `start` to the first brace; `header` finds the group `name` in it. `ends`
    are dropped after the arguments. `quote`: the string delimiter where it is not a quotation mark.
    `strict`: a name that is no tool of the request means that this was text. `spelling` is the header as the
    family writes it, for grammars; `{id}` and `{index}` stand for what the model makes up.
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
    then `end`. Where name and key are attributes, `name` and `key` find them (group `name`, `key`, and
    `kind`: the value's type). `{key}` in `value_close` stands for the key. `newlines`: one line break on
    each side of a value is layout. `loose`: the call may stand outside its section. `nested`: what stands
    before the tags of lists and objects inside a value. The spellings are what the family writes for name
    and key, for grammars.
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
    """Where calls stand. No `ends`: it is over when something other than a call follows.

    `gap` is the layout that the family puts inside both marks; `single`: each call has a section of its own.
    """

    start: str
    ends: tuple[str, ...] = ()
    gap: str = ""
    single: bool = True


class Headers(msgspec.Struct, frozen=True):
    """Messages inside one answer: a header between `starts` and `end` says what its body is.

    A header containing one of `reasoning` opens reasoning; one that `call` matches (group `name`) opens a
    call's arguments; anything else opens visible text. `body_ends` close a body.
    """

    starts: tuple[str, ...]
    end: str
    reasoning: tuple[str, ...]
    body_ends: tuple[str, ...]
    call: re.Pattern[str] | None = None


class Dialect(msgspec.Struct, frozen=True):
    """One family.

    `needs`: substrings that its templates all have; `lacks`: that none has; the first dialect that fits is
    taken. `seeds`: ends of the prefill that belong to the answer. `bare_json`: a call may stand at the start
    of the answer without any marker; `bare_first`: that is how the family does it. `content_opening` must
    stand before visible text. `call_preamble`: the marks of what may come before a call, where that is not
    simply reasoning. `breaks_reasoning`: a call ends reasoning that was not closed.
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
        """Whether the head of an answer ends inside a message of reasoning, as when it is continued."""
        if self.headers is None or self.call_preamble is None:
            return False
        _, opening, begun = prefill.rpartition(self.call_preamble[0])
        return bool(opening) and not any(end in begun for end in self.headers.body_ends)
