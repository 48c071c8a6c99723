"""Streamed responses: request, chunks, and the accumulated result."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from app.answer_facts import NO_FACTS, AnswerFacts, ToolCall
from app.client.transport import Stream, Transport
from app.generation_phase import WAITING, GenerationPhase, phase_of
from engine.api.chat import ChatChunk, ModelList, ModelRow, TokenCount, ToolCallDelta


@dataclass(frozen=True)
class ChatDelta:
    """A chunk of a streamed response and its phase. The last chunk has the final facts."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    phase: GenerationPhase | None = None
    facts: AnswerFacts = NO_FACTS


class ToolCalls:
    """Assembles tool calls from their deltas, in the order of their index."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def take(self, deltas: Sequence[ToolCallDelta]) -> None:
        """Add deltas. A delta without a valid index starts a new call."""
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
class ChatResponse:
    """Accumulates a streamed response."""

    content: str = ""
    reasoning: str = ""
    known: AnswerFacts = NO_FACTS
    tools: ToolCalls = field(default_factory=ToolCalls)
    phase: GenerationPhase = WAITING
    began: float = field(default_factory=time.monotonic)
    first_s: float = 0.0  # see AnswerFacts
    last_s: float = 0.0

    def take(self, chunk: ChatDelta) -> None:
        self.phase = chunk.phase or self.phase
        if chunk.text or chunk.reasoning:
            self.last_s = time.monotonic() - self.began
            self.first_s = self.first_s or self.last_s
        self.content += chunk.text
        self.reasoning += chunk.reasoning
        self.tools.take(chunk.tool_calls)
        self.known = self.known.updated(chunk.facts)

    def facts(self) -> AnswerFacts:
        """Facts to store with the text."""
        return replace(self.known, first_s=round(self.first_s, 3), tool_calls=tuple(self.tools.calls))


class AnswerStream:
    """Iterator over the chunks of a response; closing it stops generation."""

    def __init__(self, chunks: Stream[ChatChunk]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[ChatDelta]:
        """Yield chunks as they arrive. Raises: ApiError."""
        return answers(self._chunks)

    def close(self) -> None:
        """Close the stream, from any thread."""
        self._chunks.close()


def chat_body(model: str, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Request body for a streamed response with usage, and with progress before the first token."""
    stream = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return {"model": model, "messages": messages, **stream, **options}


def answers(chunks: Iterable[ChatChunk]) -> Iterator[ChatDelta]:
    """Convert the chunks of a stream to Answer objects."""
    facts = NO_FACTS
    for chunk in chunks:
        extras = chunk.tessera
        if extras is not None:
            runaway = extras.runaway[0] if extras.runaway else None
            ran_on, detail = extras.ran_on, extras.ran_on_detail
            facts = facts.updated(
                AnswerFacts(runaway=runaway, receipt=extras.receipt, ran_on=ran_on, ran_on_detail=detail)
            )
            if extras.collection is not None:
                yield ChatDelta(facts=AnswerFacts(grounds=extras.collection))
        phase = phase_of(chunk)
        if phase is not None and phase.name in {"loading", "reading"}:
            yield ChatDelta(phase=phase)
        for choice in chunk.choices:
            delta = choice.delta
            facts = replace(facts, finish_reason=choice.finish_reason) if choice.finish_reason else facts
            text, reasoning, calls = delta.content or "", delta.reasoning_content or "", delta.tool_calls or ()
            if text or reasoning or calls:
                yield ChatDelta(text=text, reasoning=reasoning, tool_calls=calls, phase=phase)
        if chunk.usage is not None:
            yield ChatDelta(facts=replace(facts, usage=chunk.usage, timings=chunk.timings))
            facts = replace(facts, finish_reason="", runaway=None)
    if facts.finish_reason or facts.runaway is not None:  # the server sent no usage
        yield ChatDelta(facts=facts)


class ChatRoutes(Transport):
    """Models, responses and token counts over any connection to a server."""

    def chat_models(self) -> tuple[ModelRow, ...]:
        """Models that the server can load."""
        return self.get("/v1/models", ModelList).data

    def answer(self, body: Mapping[str, Any]) -> AnswerStream:
        """Stream the response to a request built by `chat_body`. Closing it stops generation."""
        return AnswerStream(self.stream("/v1/chat/completions", ChatChunk, body))

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> AnswerStream:
        """Stream a response to a conversation."""
        return self.answer(chat_body(model, messages, options))

    def count_tokens(self, model: str, text: str) -> int:
        """Token count of a text for a local model. Raises: ApiError, also for a model of another server."""
        return self.post("/tokenize", TokenCount, {"model": model, "content": text, "priority": "side"}).count
