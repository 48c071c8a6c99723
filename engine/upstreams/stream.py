"""Reads streamed responses of OpenAI's protocol: events of a chat, texts of a completion."""

import secrets
from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.chat.chat_pipeline import AnswerLogprobs
from engine.chat.types import AnswerEvent, CallArguments, CallEnded, CallStarted, ReasoningDelta, TextDelta
from engine.core.types import FinishReason, TokenLogprob, Usage
from engine.message_catalog.reasons import because
from engine.upstreams.errors import UpstreamBrokeOff

# Maximum line length; an honest server's events are shorter. Source: many times a call's arguments in one chunk.
MOST_LINE: Final = 16 << 20
_END: Final = b"[DONE]"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Logprob(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list["_Logprob"] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Logprob] | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


_decode = msgspec.json.Decoder(learned(_Chunk)).decode
_REASONS: Final[dict[str, FinishReason]] = {"length": "length", "max_tokens": "length", "abort": "error"}


class Lines:
    """Splits a stream of bytes into the payloads of its server-sent events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads after `data:` in the complete lines. Raises: UpstreamBrokeOff."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MOST_LINE:
            raise UpstreamBrokeOff(
                self._name, because("upstream_long_line", upstream=self._name, mib=MOST_LINE >> 20)
            )
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class ChatReader:
    """Reads one response. `feed` it the bytes; adjacent text chunks that arrive together become one event."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = Lines(name)
        self._calls: dict[int, int] = {}  # their index to Tessera's, which counts from 0
        self._open: int | None = None
        self.usage = Usage()
        self.chunks = 0
        self.finish_reason: FinishReason | None = None
        self.done = False
        self.fault: UpstreamBrokeOff | None = None

    def feed(self, data: bytes) -> list[AnswerEvent | AnswerLogprobs]:
        """Events of these bytes; `fault` is set if an error follows them, or if this is not such a stream."""
        out: list[AnswerEvent | AnswerLogprobs] = []
        try:
            for payload in self._lines.feed(data):
                self._payload(payload, out)
        except UpstreamBrokeOff as error:
            self.fault = error
        return out

    def _payload(self, payload: bytes, out: list[AnswerEvent | AnswerLogprobs]) -> None:
        if payload == _END:
            self.done = True
            return
        try:
            chunk = _decode(payload)
        except (ValueError, RecursionError) as error:
            shown = payload[:100].decode("utf-8", "replace")
            raise UpstreamBrokeOff(
                self._name, because("upstream_unreadable", upstream=self._name, shown=shown)
            ) from error
        if chunk.error is not None:
            raise UpstreamBrokeOff(
                self._name, because("upstream_error_inside", upstream=self._name, said=error_text(chunk.error))
            )
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            self._choice(choice, out)

    def end(self) -> list[AnswerEvent | AnswerLogprobs]:
        """Events at the end of a response. Raises: UpstreamBrokeOff: the end never arrived."""
        if self.finish_reason is None and not self.done:
            raise UpstreamBrokeOff(self._name, because("upstream_cut", upstream=self._name, pieces=self.chunks))
        return self._closed()

    def _closed(self) -> list[AnswerEvent | AnswerLogprobs]:
        index, self._open = self._open, None
        return [] if index is None else [CallEnded(index)]

    def _choice(self, choice: _Choice, out: list[AnswerEvent | AnswerLogprobs]) -> None:
        delta = choice.delta
        if choice.logprobs is not None and choice.logprobs.content:
            out.append(AnswerLogprobs(entries=tuple(_logprob(e) for e in choice.logprobs.content)))
        if delta is not None:
            reasoning = delta.reasoning_content or delta.reasoning
            if reasoning:
                self._add(ReasoningDelta(reasoning), out)
            text = delta.content or delta.refusal
            if text:
                self._add(TextDelta(text), out)
            for place, call in enumerate(delta.tool_calls or ()):
                self._call(call, call.index if call.index is not None else place, out)
        elif choice.text:
            self._add(TextDelta(choice.text), out)
        if choice.finish_reason:
            self.finish_reason = _REASONS.get(choice.finish_reason, "stop")
            out.extend(self._closed())

    def _add(self, event: TextDelta | ReasoningDelta, out: list[AnswerEvent | AnswerLogprobs]) -> None:
        self.chunks += 1
        last = out[-1] if out else None
        if type(last) is type(event):
            assert isinstance(last, TextDelta | ReasoningDelta)
            out[-1] = type(event)(last.text + event.text)
        else:
            out.append(event)

    def _call(self, call: _Call, index: int, out: list[AnswerEvent | AnswerLogprobs]) -> None:
        self.chunks += 1
        if index not in self._calls:
            out.extend(self._closed())
            self._open = self._calls[index] = len(self._calls)
            call_id = call.id or f"call_{secrets.token_hex(8)}"
            out.append(CallStarted(index=self._open, id=call_id, name=call.function.name or ""))
        if call.function.arguments:
            out.append(CallArguments(index=self._calls[index], delta=call.function.arguments))


def _usage(counts: _Usage) -> Usage:
    prompt, completion = counts.prompt_tokens_details or _Details(), counts.completion_tokens_details or _Details()
    return Usage(
        prompt_tokens=counts.prompt_tokens or 0,
        completion_tokens=counts.completion_tokens or 0,
        cached_tokens=prompt.cached_tokens or 0,
        reasoning_tokens=completion.reasoning_tokens or 0,
    )


def _logprob(entry: _Logprob) -> TokenLogprob:
    """Another server's token; its id is unknown, so it is -1."""
    top = tuple((-1, _bytes(e), _value(e)) for e in entry.top_logprobs or ())
    return TokenLogprob(-1, _bytes(entry), _value(entry), top)


def _bytes(entry: _Logprob) -> bytes:
    return bytes(b & 255 for b in entry.bytes) if entry.bytes else entry.token.encode("utf-8", "replace")


def _value(entry: _Logprob) -> float:
    return entry.logprob if entry.logprob is not None else float("-inf")


def error_text(error: object) -> str:
    """The message of a server's error object, at most a few lines."""
    while isinstance(error, dict):
        error = error.get("message") or error.get("error") or error.get("detail") or str(error)
    return str(error)[:500]
