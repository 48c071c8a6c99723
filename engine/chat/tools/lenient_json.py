"""Converts JSON as models write it to valid JSON, character by character.

Repairs: single quotes, bare words, Python's constants, missing or doubled commas, raw line breaks in strings,
quotes inside strings, wrong escapes, wrong or missing closers. Text that was sent is never changed: at every
moment the output is a prefix of valid JSON.
"""

import json
import re
from enum import Enum, auto
from typing import Final, NamedTuple

MAX_DEPTH: Final = 128  # Python's own parser and most clients stop somewhat later
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_CONSTANTS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "none": "null",
    "nan": "null",
    "undefined": "null",
}
_STRING_STOP: Final = re.compile(r"[\"'\\\x00-\x1f\ud800-\udfff]")
_BARE_END: Final = frozenset(" \t\r\n,:={}[]()\"'")
_SIMPLE_ESCAPES: Final = frozenset('"\\/bfnrt')
_MENDED_ESCAPES: Final = {"'": "'", "\n": "\\n"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_SURROGATES: Final = range(0xD800, 0xE000)
_LOW_SURROGATES: Final = range(0xDC00, 0xE000)


class Fragment(NamedTuple):
    """Part of the output. `member`: the key of the outermost object whose value it belongs to."""

    member: str | None
    text: str


class LenientJson:
    """Parser of one value. `feed` until `done`; `fragments` collects the output.

    `quote` is a multi-character string delimiter (Gemma's `<|"|>`); inside it nothing is escaped. `closers`
    are characters that end a value without brackets, such as an argument of a Python call.
    """

    def __init__(self, quote: str | None = None, closers: str = "") -> None:
        self.fragments: list[Fragment] = []
        self.member: str | None = None
        self._state = State.VALUE
        self._stack: list[list[str | int]] = []  # [closer, number of elements]
        self._long_quote = quote
        self._closers = closers
        self._quote = '"'
        self._is_key = False
        self._pending = ""  # a bare word, an escape, or the text after a quote
        self._key: list[str] = []
        self._after_colon = False
        self._half = ""  # the first half of an escaped surrogate pair
        self._skip = 0  # remaining characters of a long quote to skip

    @property
    def done(self) -> bool:
        """Whether the value is complete."""
        return self._state is State.DONE

    def take(self) -> list[Fragment]:
        """The output since the last call."""
        out, self.fragments = self.fragments, []
        return out

    def feed(self, text: str) -> str:
        """Consume text; return the text after the end of the value."""
        position = 0
        while position < len(text) and self._state is not State.DONE:
            position = self._step(text, position)
        return text[position:]

    def finish(self) -> None:
        """End of the text: close everything that is open."""
        if self.done:
            return
        if self._state in {State.STRING, State.QUOTE}:
            self._pending = "" if self._state is State.STRING else self._pending
            self._end_string()
        elif self._state is State.BARE:
            self._end_bare(cut=True)
        while self._stack:
            self._close()
        if not self.done:
            self._write("null")
            self._state = State.DONE

    # ------------------------------------------------------------------ output

    def _write(self, text: str) -> None:
        if self._is_key and self._state in {State.STRING, State.QUOTE, State.BARE}:
            self._key.append(text)
        if text:
            inside = len(self._stack) > 1 or (len(self._stack) == 1 and self._after_colon)
            self.fragments.append(Fragment(self.member if inside else None, text))

    # ------------------------------------------------------------------ one step

    def _step(self, text: str, at: int) -> int:  # noqa: C901, PLR0911 - one branch for each state
        state = self._state
        if state is State.STRING:
            return self._string(text, at)
        if state is State.QUOTE:
            return self._after_quote(text, at)
        char = text[at]
        if state is State.BARE:
            if char in _BARE_END and not (char == "=" and not self._is_key):
                self._end_bare()
                return at
            self._pending += char
            return at + 1
        if char.isspace():
            return at + 1
        if state is State.COLON:
            self._write_colon()
            return at + 1 if char in ":=" else at
        if char in "}])" and self._stack:
            self._closing(char)
            return at + 1
        if state is State.AFTER:
            return self._between(char, at)
        if char in ",:=":
            return self._comma(char, at)
        if not self._stack and char in self._closers:
            self._write("null")
            self._state = State.DONE
            return at
        self._begin_element(char)
        return at + 1

    def _between(self, char: str, at: int) -> int:
        self._state = State.KEY if self._in_object() else State.VALUE
        return at + 1 if char in ",:;=" else at

    def _comma(self, char: str, at: int) -> int:
        """Handle a separator where an element should start: an empty value, or an extra separator."""
        if char == "," and self._after_value_expected():
            self._write("null")
            self._ended()
        return at + 1

    def _begin_element(self, char: str) -> None:
        key = self._state is State.KEY
        if not self._after_value_expected() and self._stack:
            if self._stack[-1][1]:
                self._write(",")
            self._stack[-1][1] = int(self._stack[-1][1]) + 1
        self._is_key = key
        if key:
            self._key = []
        if not key and char in "{[(":
            self._open("{" if char == "{" else "[")
        elif char in "\"'":
            self._quote = char
            self._start_string()
        elif self._long_quote and char == self._long_quote[0]:
            self._quote = self._long_quote
            self._start_string()
        else:
            self._pending = char
            self._state = State.BARE

    def _open(self, char: str) -> None:
        if len(self._stack) >= MAX_DEPTH:
            # Deeper than clients can read: the value ends here as null, and finish() closes the rest.
            self._write("null")
            self._ended()
            return
        self._write(char)
        self._stack.append(["}" if char == "{" else "]", 0])
        self._after_colon = False
        self._state = State.KEY if char == "{" else State.VALUE

    def _closing(self, char: str) -> None:
        bracket = "]" if char == ")" else char
        if all(level[0] != bracket for level in self._stack):
            return  # a closer without an opener
        while self._stack[-1][0] != bracket:
            self._close()
        self._close()

    def _close(self) -> None:
        if self._state is State.COLON:
            self._write_colon()
        if self._after_value_expected():
            self._write("null")
        closer, _ = self._stack[-1]
        self._after_colon = len(self._stack) > 1
        if len(self._stack) == 1:
            self.member = None
        self._write(str(closer))
        self._stack.pop()
        self._ended()

    def _ended(self) -> None:
        """Record that a value is complete."""
        self._is_key = False
        if self._stack:
            if len(self._stack) == 1 and self._in_object():
                self.member = None
            self._after_colon = False
            self._state = State.AFTER
        else:
            self._state = State.DONE

    def _in_object(self) -> bool:
        return bool(self._stack) and self._stack[-1][0] == "}"

    def _after_value_expected(self) -> bool:
        return self._state is State.VALUE and self._in_object()

    def _write_colon(self) -> None:
        self._write(":")
        if len(self._stack) == 1:
            self.member = decoded("".join(self._key))
        self._after_colon = True
        self._state = State.VALUE

    # ------------------------------------------------------------------ words and strings

    def _end_bare(self, *, cut: bool = False) -> None:
        word, self._pending = self._pending, ""
        if self._is_key:
            self._write(json.dumps(word))
            self._is_key = False
            self._state = State.COLON
            return
        text = _NUMBER.fullmatch(word) and word
        if text is None:
            text = _CONSTANTS.get(word.lower())
        if text is None and cut:
            text = next((c for c in ("true", "false", "null") if c.startswith(word)), None)
        self._write(text or number_or_string(word))
        self._ended()

    def _start_string(self) -> None:
        self._pending = ""
        self._state = State.STRING
        self._write('"')
        self._skip = len(self._quote) - 1

    def _string(self, text: str, at: int) -> int:  # noqa: C901 - one branch for each special character
        if self._skip:
            step = min(self._skip, len(text) - at)
            self._skip -= step
            return at + step
        if len(self._quote) > 1:
            return self._raw_string(text, at)
        if self._pending:
            return self._escape(text, at)
        if text[at] != "\\":
            self._drop_half()
        match = _STRING_STOP.search(text, at)
        end = match.start() if match else len(text)
        if end > at:
            self._write(text[at:end])
        if match is None:
            return end
        char = text[end]
        if char == self._quote:
            self._state = State.QUOTE
            self._pending = ""
        elif char == "\\":
            self._pending = "\\"
        elif char == '"':
            self._write('\\"')
        elif char < " ":
            self._write(escaped(char))
        else:
            self._write("\ufffd" if ord(char) in _SURROGATES else char)
        return end + 1

    def _raw_string(self, text: str, at: int) -> int:
        pending = self._pending + text[at]
        if self._quote.startswith(pending):
            self._pending = pending
            if pending == self._quote:
                self._pending = ""
                self._end_string()
            return at + 1
        # The buffered text is ordinary text, up to where a new delimiter could start.
        keep = next((n for n in range(len(pending) - 1, 0, -1) if self._quote.startswith(pending[-n:])), 0)
        plain = pending[: len(pending) - keep]
        self._pending = pending[len(pending) - keep :]
        self._write(escaped(plain))
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        char = text[at]
        unit = self._pending + char
        if len(unit) == 2:
            if char == "u":
                self._pending = unit
                return at + 1
            self._pending = ""
            self._drop_half()
            if char in _SIMPLE_ESCAPES:
                self._write(unit)
            else:
                self._write(_MENDED_ESCAPES.get(char) or "\\\\" + escaped(char))
            return at + 1
        if char not in _HEX:
            self._pending = ""
            self._drop_half()
            self._write("\\\\" + unit[1:-1])
            return at
        self._pending = unit
        if len(unit) == 6:
            self._pending = ""
            self._unicode(unit)
        return at + 1

    def _unicode(self, unit: str) -> None:
        """Write one complete unit; halves of a pair are sent only together."""
        code = ord(json.loads(f'"{unit}"'))
        if self._half and code in _LOW_SURROGATES:
            self._write(self._half + unit)
            self._half = ""
            return
        self._drop_half()
        if code in _LOW_SURROGATES:
            self._write("\\ufffd")
        elif code in _SURROGATES:
            self._half = unit
        else:
            self._write(unit)

    def _drop_half(self) -> None:
        if self._half:
            self._half = ""
            self._write("\\ufffd")

    def _after_quote(self, text: str, at: int) -> int:
        """Decide by the following text whether the quote just read ends the string."""
        char = text[at]
        if char.isspace():
            self._pending += char
            return at + 1
        ends = ":=" if self._is_key else ",}])\"'" + self._closers
        if char in ends or (self._is_key and char in ",}"):
            self._end_string()
            return at
        spaces, self._pending = self._pending, ""
        self._state = State.STRING
        self._write(('\\"' if self._quote == '"' else "'") + escaped(spaces))
        return at

    def _end_string(self) -> None:
        self._drop_half()
        if len(self._quote) > 1 and self._pending:
            self._write(escaped(self._pending))
        self._pending = ""
        self._write('"')
        if self._is_key:
            self._is_key = False
            self._state = State.COLON
        else:
            self._ended()


def repair(text: str) -> str:
    """Any text as valid JSON."""
    parser = LenientJson()
    parser.feed(text)
    parser.finish()
    return "".join(fragment.text for fragment in parser.take())


# Parts of JSON text: parser states, string bodies, keys and numbers in other notations.


class State(Enum):
    """State of the parser: the kind of text that it expects next."""

    VALUE = auto()
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    STRING = auto()
    QUOTE = auto()  # a quote that may end the string
    BARE = auto()
    DONE = auto()


def escaped(text: str) -> str:
    """Text as the inside of a JSON string."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)[1:-1]


def decoded(key: str) -> str:
    """The text of a JSON string, or the string itself if it is not JSON."""
    try:
        return str(json.loads(key))
    except ValueError:
        return key


def number_or_string(word: str) -> str:
    """Numbers in other notations as JSON numbers (`+1`, `.5`, `1_000`), everything else as a string."""
    try:
        value = float(word)
    except ValueError:
        return json.dumps(word)
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return "null"
    return repr(int(value)) if value.is_integer() and "e" not in word.lower() else repr(value)
