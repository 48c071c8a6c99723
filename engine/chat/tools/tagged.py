"""Parses calls with one tag for each argument: Qwen3-Coder, GLM, MiniMax, DeepSeek's DSML and similar ones."""

import json
import re
from typing import Any, Final

from engine.chat.tools.call_events import CallSink
from engine.chat.tools.call_parsers import MAX_HEADER_CHARS, NotACall
from engine.chat.tools.dialect import TaggedCalls, earliest
from engine.chat.tools.schema_types import allowed_types, properties, typed

_CDATA_START: Final = "<![CDATA["
_CDATA: Final = re.compile(r"^\s*<!\[CDATA\[(.*)\]\]>\s*$", re.DOTALL)
_STRING: Final = frozenset({"string"})


class TaggedPayload:
    """Parser of a call after its start marker. Streams strings; buffers other values and types them.

    `stops` are the markers after which no argument of this call can follow.
    """

    def __init__(self, form: TaggedCalls, sink: CallSink, stops: tuple[str, ...]) -> None:
        self._form = form
        self._sink = sink
        self._stops = tuple(filter(None, (form.end, *stops)))
        self._pending = ""
        self._stage = self._header
        self._schema: dict[str, Any] = {}
        self._count = 0
        self._key = ""
        self._types: frozenset[str] = frozenset()
        self._value: list[str] = []
        self._streaming = False
        self._started = False
        self._remaining: str | None = None
        self._fresh = True  # at the first character of a value

    def feed(self, text: str) -> str | None:
        self._pending += text
        while self._stage():
            pass
        remaining, self._remaining = self._remaining, None
        return remaining

    def finish(self) -> None:
        """End of the text inside the call: close the value and the object."""
        if not self._started:
            if not (self._sink.is_tool(self._pending) and self._begin(self._pending)):
                self._sink.malformed(self._pending)
                return
        elif self._stage == self._before_value:
            self._take_value("", last=True)
        elif self._stage == self._in_value:
            self._take_value(self._pending, last=True)
        self._close()

    # Each stage returns whether it made progress.

    def _header(self) -> bool:
        marks = (self._form.name_end, self._form.key_open, *self._stops)
        mark = earliest(self._pending, marks)
        if (len(self._pending) if mark is None else mark.at) > MAX_HEADER_CHARS:
            raise NotACall(self._pending)
        if mark is None or mark.mark is None:
            return False
        header = self._pending[: mark.at]
        if self._form.name_end == "\n" and mark.mark == "\n" and not header.strip():
            self._pending = self._pending[1:]
            return True
        if not self._begin(header):
            self._sink.malformed(header)
            self._remaining = self._pending[mark.at :]
            self._stage = self._over
            return False
        consumed = mark.mark == self._form.name_end
        self._pending = self._pending[mark.at + (len(mark.mark) if consumed else 0) :]
        self._stage = self._between
        return True

    def _begin(self, header: str) -> bool:
        match = self._form.name.search(header) if self._form.name else None
        name = match["name"] if match else ("" if self._form.name else header.strip().strip("\"'"))
        if not name or any(char in name for char in "<>{}\n"):
            return False
        self._schema = self._sink.schema(name)
        self._sink.start(name)
        self._sink.write("{")
        self._started = True
        return True

    def _between(self) -> bool:
        mark = earliest(self._pending, (self._form.key_open, *self._stops))
        if mark is None or mark.mark is None:
            return False
        if mark.mark == self._form.key_open and not self._is_stop(mark.at):
            self._pending = self._pending[mark.at + len(mark.mark) :]
            self._stage = self._in_key
            return True
        skip = len(mark.mark) if mark.mark == self._form.end else 0
        self._remaining = self._pending[mark.at + skip :]
        self._pending = ""
        self._close()
        self._stage = self._over
        return False

    def _is_stop(self, at: int) -> bool:
        """Whether a stop is here; it takes precedence over a key with the same start (`<` and `</…>`)."""
        return any(self._pending.startswith(stop, at) for stop in self._stops)

    def _in_key(self) -> bool:
        mark = earliest(self._pending, (self._form.key_close,))
        if mark is None or mark.mark is None:
            return False
        header = self._pending[: mark.at]
        match = self._form.key.search(header) if self._form.key else None
        self._key = match["key"] if match else header.strip().strip("\"'")
        self._types = self._kinds(match)
        self._pending = self._pending[mark.at + len(mark.mark) :]
        self._stage = self._before_value if self._form.value_open else self._in_value
        self._sink.write(("," if self._count else "") + json.dumps(self._key, ensure_ascii=False) + ":")
        self._count += 1
        self._value = []
        self._streaming = self._types == _STRING and not self._form.nested and self._form.start != "<function "
        self._fresh = True
        if self._streaming:
            self._sink.write('"')
        return True

    def _kinds(self, match: re.Match[str] | None) -> frozenset[str]:
        kind = match.groupdict().get("kind") if match else None
        if kind in {"true", "string"}:
            return _STRING
        declared = allowed_types(properties(self._schema).get(self._key), self._schema)
        if kind == "false":
            return declared - _STRING or declared
        return declared

    def _before_value(self) -> bool:
        stripped = self._pending.lstrip()
        if stripped.startswith(self._form.value_open):
            self._pending = stripped[len(self._form.value_open) :]
        elif self._form.value_open.startswith(stripped):
            return False
        self._stage = self._in_value
        return True

    def _in_value(self) -> bool:
        if not self._value and not self._past_cdata():
            return False
        close = self._form.value_close.replace("{key}", self._key)
        mark = earliest(self._pending, (close,))
        if mark is None:
            text, self._pending = self._pending, ""
        elif mark.mark is None:
            text, self._pending = self._pending[: mark.at], self._pending[mark.at :]
        else:
            self._take_value(self._pending[: mark.at], last=True)
            self._pending = self._pending[mark.at + len(close) :]
            self._stage = self._between
            return True
        if self._form.newlines and text.endswith("\n"):
            # It may be the line break before the closing tag.
            text, self._pending = text[:-1], "\n" + self._pending
        self._take_value(text, last=False)
        return False

    def _past_cdata(self) -> bool:
        """Skip a CDATA section, in which closing tags are text; False while it may still start or continue."""
        if self._form.start != "<function " or not self._pending.lstrip().startswith(
            _CDATA_START[: len(self._pending.lstrip())]
        ):
            return True
        end = self._pending.find("]]>")
        if end < 0:
            return False
        self._value.append(self._pending[: end + 3])
        self._pending = self._pending[end + 3 :]
        return True

    def _take_value(self, text: str, *, last: bool) -> None:
        if self._form.newlines and self._fresh and text:
            text = text.removeprefix("\n")
            self._fresh = False
        if last and self._form.newlines:
            text = text.removesuffix("\n")
        if self._streaming:
            self._sink.write(json.dumps(text, ensure_ascii=False)[1:-1])
            if last:
                self._sink.write('"')
        else:
            self._value.append(text)
            if last:
                self._sink.write(self._typed("".join(self._value)))

    def _typed(self, text: str) -> str:
        if self._form.nested and self._form.nested in text and self._types & {"object", "array"}:
            return json.dumps(_nested_tags(text, self._form.nested), ensure_ascii=False)
        data = _CDATA.match(text)
        if data:
            return json.dumps(data[1], ensure_ascii=False)
        return typed(text, self._types)

    def _close(self) -> None:
        self._sink.write("}")
        self._sink.end()

    def _over(self) -> bool:
        return False


def _nested_tags(text: str, prefix: str) -> Any:
    """MiniMax M3: lists as `<item>` tags and objects as tags of their keys, each after the prefix."""
    tag = re.compile(re.escape(prefix) + r"<(?P<key>[^/>][^>]*)>")
    items: list[tuple[str, Any]] = []
    at = 0
    while match := tag.search(text, at):
        close = f"{prefix}</{match['key']}>"
        end = text.find(close, match.end())
        if end < 0:
            break
        inner = text[match.end() : end]
        items.append((match["key"], _nested_tags(inner, prefix) if prefix in inner else _plain(inner)))
        at = end + len(close)
    if items and all(key == "item" for key, _ in items):
        return [value for _, value in items]
    return dict(items)


def _plain(text: str) -> Any:
    return json.loads(typed(text, frozenset({"string", "number", "integer", "boolean", "null"})))
