"""A streamed answer: asked for, taken piece by piece, put together."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from app.client.stream import Stream
from app.generation_phase import WAITING, Phase, phase_of
from engine.api.chat import ChatChunk, Runaway, Timings, ToolCallDelta, Usage
from engine.api.collections import Grounds
from engine.api.receipts import Receipt
from engine.message_catalog.reasons import Reason


@dataclass(frozen=True)
class Answer:
    """A piece of a streamed answer; `phase` says where it is. The last one has what is known at the end."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    runaway: Runaway | None = None
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    phase: Phase | None = None
    grounds: Grounds | None = None
    receipt: Receipt | None = None


@dataclass
class ToolCall:
    """A call the model wants made; `arguments` is JSON text, complete at the end."""

    name: str = ""
    arguments: str = ""
    id: str = ""


class ToolCalls:
    """Calls put together from their pieces, in the order of their index."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def take(self, deltas: Sequence[ToolCallDelta]) -> None:
        """Add pieces. One without a usable index begins a new call."""
        for delta in deltas:
            index = delta.index if delta.index is not None and 0 <= delta.index <= len(self.calls) else None
            index = len(self.calls) if index is None else index
            if index == len(self.calls):
                self.calls.append(ToolCall())
            call = self.calls[index]
            call.id = delta.id or call.id
            call.name = delta.function.name or call.name
            call.arguments += delta.function.arguments or ""


@dataclass
class WholeAnswer:
    """An answer under way: `take` adds a piece."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    runaway: Runaway | None = None
    ran_on: str = ""
    ran_on_detail: Reason | None = None
    grounds: Grounds | None = None
    tools: ToolCalls = field(default_factory=ToolCalls)
    receipt: Receipt | None = None
    phase: Phase = WAITING
    began: float = field(default_factory=time.monotonic)
    first_s: float = 0.0  # from the question to the first word, the start of the model included
    last_s: float = 0.0

    def take(self, chunk: Answer) -> None:
        """Add what is new."""
        self.phase = chunk.phase or self.phase
        if chunk.text or chunk.reasoning:
            self.last_s = time.monotonic() - self.began
            self.first_s = self.first_s or self.last_s
        self.content += chunk.text
        self.reasoning += chunk.reasoning
        self.tools.take(chunk.tool_calls)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage
        self.timings = chunk.timings or self.timings
        self.runaway = chunk.runaway or self.runaway
        self.ran_on = chunk.ran_on or self.ran_on
        self.ran_on_detail = chunk.ran_on_detail or self.ran_on_detail
        self.grounds = chunk.grounds or self.grounds
        self.receipt = chunk.receipt or self.receipt

    def facts(self) -> dict[str, object]:
        """What is kept beside the text, as plain values."""
        facts: dict[str, object] = {
            "usage": msgspec.to_builtins(self.usage),
            "timings": msgspec.to_builtins(self.timings),
            "first_s": round(self.first_s, 3),
            "finish_reason": self.finish_reason,
            "runaway": msgspec.to_builtins(self.runaway),
            "ran_on": self.ran_on,
            "ran_on_detail": msgspec.to_builtins(self.ran_on_detail),
            "grounds": msgspec.to_builtins(self.grounds),
            "receipt": msgspec.to_builtins(self.receipt),
            "tool_calls": [vars(call) for call in self.tools.calls],
        }
        return {name: value for name, value in facts.items() if value}


class AnswerStream:
    """The pieces of an answer; closing it stops the generation."""

    def __init__(self, chunks: Stream[ChatChunk]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[Answer]:
        """Pieces as they arrive. Raises: ApiError."""
        return answers(self._chunks)

    def close(self) -> None:
        """End the stream, from any thread."""
        self._chunks.close()


def chat_body(model: str, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The request for a streamed answer with its usage, and with its progress before the first token."""
    stream = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return {"model": model, "messages": messages, **stream, **options}


def answers(chunks: Iterable[ChatChunk]) -> Iterator[Answer]:
    """The pieces of an answer out of the chunks of its stream."""
    finish: str | None = None
    runaway: Runaway | None = None
    receipt: Receipt | None = None
    ran_on, ran_on_detail = "", None
    for chunk in chunks:
        if chunk.tessera is not None:
            runaway = chunk.tessera.runaway[0] if chunk.tessera.runaway else runaway
            receipt = chunk.tessera.receipt or receipt
            ran_on = chunk.tessera.ran_on or ran_on
            ran_on_detail = chunk.tessera.ran_on_detail or ran_on_detail
        if chunk.tessera is not None and chunk.tessera.collection is not None:
            yield Answer(grounds=chunk.tessera.collection)
        phase = phase_of(chunk)
        if phase is not None and phase.name in {"loading", "reading"}:
            yield Answer(phase=phase)
        for choice in chunk.choices:
            delta = choice.delta
            finish = choice.finish_reason or finish
            text, reasoning, calls = delta.content or "", delta.reasoning_content or "", delta.tool_calls or ()
            if text or reasoning or calls:
                yield Answer(text=text, reasoning=reasoning, tool_calls=calls, phase=phase)
        if chunk.usage is not None:
            end = Answer(finish_reason=finish, usage=chunk.usage, timings=chunk.timings, runaway=runaway)
            yield replace(end, receipt=receipt, ran_on=ran_on, ran_on_detail=ran_on_detail)
            finish = runaway = None
    if finish is not None or runaway is not None:  # a server that counts nothing
        yield Answer(
            finish_reason=finish, runaway=runaway, receipt=receipt, ran_on=ran_on, ran_on_detail=ran_on_detail
        )
