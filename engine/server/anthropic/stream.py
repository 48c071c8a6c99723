"""Answers in Anthropic's form: content blocks, whole or as named server-sent events."""

from typing import Any

import msgspec
from pydantic_core import from_json

from engine.chat.chat_pipeline import AnswerFinished, AnswerStarted, ChatEvent
from engine.chat.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from engine.core.types import Usage
from engine.server.ids import new_id

_encode = msgspec.json.encode


def event(name: str, body: dict[str, Any]) -> bytes:
    """One named event. Clients drop events without a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **body}) + b"\n\n"


def usage(counts: Usage) -> dict[str, int]:
    """Usage: what came from the prefix cache is not input."""
    return {
        "input_tokens": counts.prompt_tokens - counts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }


def stop_reason(end: AnswerFinished) -> str:
    """Why the answer ended, in Anthropic's words."""
    if end.finish_reason == "tool_calls":
        return "tool_use"
    if end.finish_reason == "length":
        return "max_tokens"
    return "stop_sequence" if end.stop is not None else "end_turn"


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call; of one that was cut, those that are whole."""
    try:
        value = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class BlockStream:
    """Turns a turn's events into Anthropic's. `blocks` holds the answer so far, for the whole form."""

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._kind = ""
        self.blocks: list[dict[str, Any]] = []

    def message(self, counts: Usage) -> dict[str, Any]:
        """The message around its blocks."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(counts),
        }

    def feed(self, item: ChatEvent) -> bytes:  # noqa: PLR0911 - one return for each kind of event
        """The events that this one becomes."""
        if isinstance(item, TextDelta):
            return self._grow("text", "text", "text_delta", item.text)
        if isinstance(item, ReasoningDelta):
            return self._grow("thinking", "thinking", "thinking_delta", item.text)
        if isinstance(item, CallArguments):
            self.blocks[-1]["input"] += item.delta
            return self._delta({"type": "input_json_delta", "partial_json": item.delta})
        if isinstance(item, CallStarted):
            # Ids of some dialects repeat from turn to turn; templates that need theirs make them from the name.
            block = {"type": "tool_use", "id": new_id("toolu", "_"), "name": item.name, "input": {}}
            return self._close() + self._open("tool_use", block, {**block, "input": ""})
        if isinstance(item, CallEnded):
            return self._close()
        if isinstance(item, AnswerStarted):
            counts = Usage(prompt_tokens=item.prompt_tokens, cached_tokens=item.cached_tokens)
            return event("message_start", {"message": self.message(counts)})
        return self._close() + self._end(item) if isinstance(item, AnswerFinished) else b""

    def whole(self, end: AnswerFinished) -> dict[str, Any]:
        """The answer as one object."""
        content = []
        for block in self.blocks:
            made = dict(block)
            if made["type"] == "tool_use":
                made["input"] = _arguments(made["input"])
            content.append(made)
        return {**self.message(end.usage), "content": content, **self._stopped(end)}

    def _stopped(self, end: AnswerFinished) -> dict[str, Any]:
        stopped: dict[str, Any] = {"stop_reason": stop_reason(end), "stop_sequence": end.stop}
        if end.malformed:  # said, never shown as the answer's text
            stopped["malformed_tool_calls"] = list(end.malformed)
        if end.notes:
            stopped["tessera"] = {"notes": list(end.notes)}
        return stopped

    def _grow(self, kind: str, field: str, delta: str, text: str) -> bytes:
        out = b""
        if self._kind != kind:
            block = {"type": kind, field: ""}
            if kind == "thinking":
                block["signature"] = ""
            out = self._close() + self._open(kind, block, dict(block))
        self.blocks[-1][field] += text
        return out + self._delta({"type": delta, field: text})

    def _open(self, kind: str, shown: dict[str, Any], block: dict[str, Any]) -> bytes:
        self._kind = kind
        self.blocks.append(block)
        return event("content_block_start", {"index": len(self.blocks) - 1, "content_block": shown})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", {"index": len(self.blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        kind, self._kind = self._kind, ""
        out = b""
        if kind == "thinking":
            out = self._delta({"type": "signature_delta", "signature": ""})
        return out + event("content_block_stop", {"index": len(self.blocks) - 1})

    def _end(self, end: AnswerFinished) -> bytes:
        delta = self._stopped(end)
        return event("message_delta", {"delta": delta, "usage": usage(end.usage)}) + event("message_stop", {})
