"""Responses in Ollama's format: one JSON object per line."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.chat.chat_pipeline import AnswerFinished, AnswerLogprobs, ChatEvent
from engine.chat.types import CallArguments, CallEnded, CallStarted, ReasoningDelta, TextDelta
from engine.core.types import TokenLogprob
from engine.server.ollama.keep_alive import NANO
from engine.server.openai.stream import chat_logprob

_encode = msgspec.json.encode
NDJSON = b"application/x-ndjson"


def now() -> str:
    """The current time in Ollama's format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Lines:
    """Encodes one response as lines and collects it. `chat` selects `message` objects, else `response` texts."""

    def __init__(self, model: str, n_ctx: int, load_s: float, *, chat: bool) -> None:
        self._model = model
        self._n_ctx = n_ctx
        self._started_at = time.monotonic()
        self._load_s = load_s
        self._chat = chat
        self._call_id = ""
        self._name = ""
        self._arguments = ""
        self._logprobs: list[TokenLogprob] = []  # log probabilities of unsent text
        self._all_logprobs: list[TokenLogprob] = []
        self.context: list[int] = []
        self.text = ""
        self.thinking = ""
        self.calls: list[dict[str, Any]] = []

    def line(self, content: str = "", thinking: str = "", calls: list[dict[str, Any]] | None = None) -> bytes:
        """One line of the response; without arguments an empty one, which keeps the connection alive."""
        return _encode({**self._head(), **self._body(content, thinking, calls), "done": False}) + b"\n"

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": now()}

    def _body(self, content: str, thinking: str, calls: list[dict[str, Any]] | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"content": content} if self._chat else {"response": content}
        if thinking:
            fields["thinking"] = thinking
        if calls:
            fields["tool_calls"] = calls
        probabilities = self._take_logprobs()
        return (
            {"message": {"role": "assistant", **fields}, **probabilities} if self._chat else fields | probabilities
        )

    def _take_logprobs(self) -> dict[str, Any]:
        entries, self._logprobs = self._logprobs, []
        self._all_logprobs += entries
        return {"logprobs": [_logprob(entry) for entry in entries]} if entries else {}

    def feed(self, item: ChatEvent) -> bytes:
        """The line for an event, or nothing. Tool calls are sent complete."""
        if isinstance(item, AnswerLogprobs):
            self._logprobs += item.entries
        elif isinstance(item, TextDelta):
            self.text += item.text
            return self.line(item.text)
        elif isinstance(item, ReasoningDelta):
            self.thinking += item.text
            return self.line(thinking=item.text)
        elif isinstance(item, CallStarted):
            self._call_id, self._name, self._arguments = item.id, item.name, ""
        elif isinstance(item, CallArguments):
            self._arguments += item.delta
        elif isinstance(item, CallEnded):
            function = {"index": item.index, "name": self._name, "arguments": json.loads(self._arguments)}
            call = {"id": self._call_id, "function": function}
            self.calls.append(call)
            return self.line(calls=[call])
        elif isinstance(item, AnswerFinished):
            return _encode({**self._head(), **self._body("", "", None), **self.end(item)}) + b"\n"
        return b""

    def whole(self, end: AnswerFinished) -> dict[str, Any]:
        """The response as one object."""
        self._logprobs, self._all_logprobs = [*self._all_logprobs, *self._logprobs], []
        return {**self._head(), **self._body(self.text, self.thinking, self.calls), **self.end(end)}

    def end(self, item: AnswerFinished) -> dict[str, Any]:
        """The fields of the last line. Durations are in nanoseconds."""
        fields: dict[str, Any] = {
            "done": True,
            "done_reason": "length" if item.finish_reason == "length" else "stop",
            "total_duration": int((time.monotonic() - self._started_at + self._load_s) * NANO),
            "load_duration": int(self._load_s * NANO),
            "prompt_eval_count": item.usage.prompt_tokens,
            "prompt_eval_duration": int(item.timings.prefill_s * NANO),
            "eval_count": item.usage.completion_tokens,
            "eval_duration": int(item.timings.decode_s * NANO),
            "context_length": self._n_ctx,
        }
        if self.context:
            fields["context"] = self.context
        if item.malformed:
            fields["malformed_tool_calls"] = list(item.malformed)
        if item.notes:
            fields["tessera"] = {"notes": list(item.notes)}
        return fields


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    """One token's log probability; Ollama omits the alternatives if none were requested."""
    fields = chat_logprob(entry)
    if not entry.top:
        fields.pop("top_logprobs")
    return fields
