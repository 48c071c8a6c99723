"""One parser for each call syntax. Each is fed the text after the call's start marker."""

import json
import re
from typing import Any, Final, Protocol

from engine.chat.tools.call_events import ArgumentStream, CallSink, pour
from engine.chat.tools.dialect import ARGUMENT_KEYS, NAME_KEYS, JsonCalls, NamedCalls
from engine.chat.tools.lenient_json import LenientJson

# Longest text between the start of a call and its arguments. Names have at most 64 characters.
MAX_HEADER_CHARS: Final = 400


class NotACall(Exception):
    """The text is ordinary text, not a call; `text` is all of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Payload(Protocol):
    """Parser of one call."""

    def feed(self, text: str) -> str | None:
        """Consume text. Returns None if more is needed; otherwise the text after the call."""

    def finish(self) -> None:
        """Complete or report the call at the end of the response or section."""


class JsonPayload:
    """`{"name": …, "arguments": …}` in any order of keys."""

    def __init__(self, form: JsonCalls, sink: CallSink) -> None:
        self._form = form
        self._sink = sink
        self._parser = LenientJson()
        self._raw: list[str] = []
        self._name_parts: list[str] = []
        self._name: str | None = None
        self._early: list[str] = []
        self._stream: ArgumentStream | None = None
        self._member: str | None = None

    @property
    def name(self) -> str | None:
        """The function's name once it is complete."""
        return self._name

    def feed(self, text: str) -> str | None:
        """Stream the arguments as soon as the name is known."""
        remaining = self._parser.feed(text)
        self._process()
        if not self._parser.done:
            return None
        self._complete()
        return remaining

    def finish(self) -> None:
        """Close the incomplete object."""
        self._parser.finish()
        self._process()
        self._complete()

    def _process(self) -> None:
        for member, text in self._parser.take():
            self._raw.append(text)
            if member != self._member:
                self._leave()
                self._member = member
                if member is not None and self._form.name_is_key and self._name is None:
                    self._begin(member)
            if member is None:
                continue
            if self._is_arguments(member):
                if self._stream is None:
                    self._early.append(text)
                else:
                    self._stream.write(text)
            elif member in NAME_KEYS and self._name is None:
                self._name_parts.append(text)

    def _is_arguments(self, member: str) -> bool:
        return member == self._name if self._form.name_is_key else member in ARGUMENT_KEYS

    def _leave(self) -> None:
        if self._member in NAME_KEYS and self._name is None and not self._form.name_is_key:
            value = json.loads("".join(self._name_parts) or "null")
            if isinstance(value, str) and value.strip():
                self._begin(value)

    def _begin(self, name: str) -> None:
        self._name = name
        self._sink.start(name)
        self._stream = ArgumentStream(self._sink, name)
        for text in self._early:
            self._stream.write(text)

    def _complete(self) -> None:
        raw = "".join(self._raw)
        if self._stream is not None and self._name is not None:
            value = json.loads(raw)
            if not any(self._is_arguments(key) for key in value):
                others = {k: v for k, v in value.items() if k not in NAME_KEYS | {"id", "type", "tool_call_id"}}
                self._stream.write(json.dumps(others, ensure_ascii=False))
            self._stream.end()
            self._sink.end()
            return
        name, arguments = _nested(json.loads(raw))
        if name is None:
            self._sink.malformed(raw)
        else:
            self._sink.whole(name, arguments)


def _nested(value: Any) -> tuple[str | None, Any]:
    """`{"function": {"name": …, "arguments": …}}`, or the function's name under `function`."""
    if not isinstance(value, dict):
        return None, None
    inner = value.get("function")
    if isinstance(inner, str) and inner:
        return inner, next((value[key] for key in value if key in ARGUMENT_KEYS), None)
    if isinstance(inner, dict):
        name = next((inner[key] for key in inner if key in NAME_KEYS), None)
        if isinstance(name, str) and name:
            return name, next((inner[key] for key in inner if key in ARGUMENT_KEYS), None)
    return None, None


class NamedPayload:
    """A header with the name, then JSON. `stops` end a call that has no arguments."""

    def __init__(self, form: NamedCalls, sink: CallSink, stops: tuple[str, ...]) -> None:
        self._form = form
        self._sink = sink
        marks = sorted({*stops, *form.ends}, key=len, reverse=True)
        self._stop = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._pending = ""
        self._parser = LenientJson(quote=form.quote)
        self._stream: ArgumentStream | None = None

    def feed(self, text: str) -> str | None:
        """Find the header's end, then stream the arguments."""
        if self._stream is None:
            self._pending += text
            brace = self._pending.find("{")
            stop = self._stop.search(self._pending) if self._stop else None
            ends = (brace if brace >= 0 else len(self._pending), stop.start() if stop else len(self._pending))
            if min(ends) > MAX_HEADER_CHARS:
                raise NotACall(self._pending)
            if stop and (brace < 0 or stop.start() < brace):
                header, remaining = self._pending[: stop.start()], self._pending[stop.start() :]
                self._begin(header)
                self._pending = ""
                self._end()
                return remaining
            if brace < 0:
                return None
            header, text = self._pending[:brace], self._pending[brace:]
            if not self._begin(header):
                # No function name: treat the rest as text of the section.
                return text[1:]
        remaining = self._parser.feed(text)
        if self._stream is not None:
            pour(self._parser, self._stream)
        if not self._parser.done:
            return None
        self._end()
        return remaining

    def finish(self) -> None:
        """Close the arguments, or report the header."""
        if self._stream is None:
            if self._form.strict:
                raise NotACall(self._pending)
            self._begin(self._pending)
        elif not self._parser.done:
            self._parser.finish()
            pour(self._parser, self._stream)
        self._end()

    def _begin(self, header: str) -> bool:
        match = self._form.header.search(header)
        if self._form.strict and not (match and self._sink.is_tool(match["name"])):
            raise NotACall(self._pending)
        if match is None:
            self._sink.malformed(header)
            return False
        self._sink.start(match["name"])
        self._stream = ArgumentStream(self._sink, match["name"])
        return True

    def _end(self) -> None:
        if self._stream is not None:
            if self._parser.done:
                self._stream.end()
            self._sink.end()


class PythonPayload:
    """`name(key=value, …)`, without the opening bracket of the list."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._pending = ""
        self._name: str | None = None
        self._count = 0
        self._value: LenientJson | None = None

    def feed(self, text: str) -> str | None:
        self._pending += text
        while self._pending:
            if self._name is None:
                before, paren, after = self._pending.partition("(")
                if len(before) > MAX_HEADER_CHARS:
                    raise NotACall(self._pending)
                if not paren:
                    return None
                self._name = before.strip().removesuffix(".call")
                self._pending = after
                self._sink.start(self._name)
                self._sink.write("{")
            elif self._value is not None:
                self._pending = self._value.feed(self._pending)
                self._pour()
                if not self._value.done:
                    return None
                self._value = None
            else:
                self._pending = self._pending.lstrip(", \t\r\n")
                if self._pending.startswith(")"):
                    self._close()
                    return self._pending[1:]
                if not self._key_read():
                    return None
        return None

    def finish(self) -> None:
        """Close the incomplete call."""
        if self._name is None:
            self._sink.malformed(self._pending)
            return
        if self._value is not None:
            self._value.finish()
            self._pour()
        self._close()

    def _key_read(self) -> bool:
        """Read `key=`, or a positional argument, which gets the name of the parameter at its position."""
        match = re.match(r"\s*([A-Za-z_][\w.-]*)\s*=\s*(?=[^\s=])", self._pending)
        if match is None and re.fullmatch(r"\s*(?:[A-Za-z_][\w.-]*\s*(?:=\s*)?)?", self._pending):
            return False
        if match:
            key = match[1]
            self._pending = self._pending[match.end() :]
        else:
            names = list(self._sink.schema(self._name or "").get("properties") or {})  # type: ignore[call-overload]
            key = names[self._count] if self._count < len(names) else f"arg{self._count}"
        self._sink.write(("," if self._count else "") + json.dumps(key) + ":")
        self._count += 1
        self._value = LenientJson(closers=")")
        return True

    def _pour(self) -> None:
        if self._value is not None:
            self._sink.write("".join(fragment.text for fragment in self._value.take()))

    def _close(self) -> None:
        self._sink.write("}")
        self._sink.end()
