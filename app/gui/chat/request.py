"""A branch of a conversation as the body of a chat request, and the answer put together from its chunks."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.db.records import Attachment, Message
from app.gui.api import ApiError

# Characters of English a token holds, rounded down so that estimates err on the full side.
CHARACTERS_PER_TOKEN = 3.5
_SAMPLING = frozenset(
    {"temperature", "top_p", "min_p", "top_k", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed"}
)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, when nobody has counted yet."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


def estimate_message(message: Message) -> int:
    """About how many tokens a message takes, its documents included."""
    return estimate_tokens(message.content) + sum(estimate_tokens(a.text) for a in message.attachments) + 4


def chat_body(
    model: str,
    path: Sequence[Message],
    *,
    system_prompt: str = "",
    sampling: Mapping[str, object] | None = None,
    continue_last: bool = False,
) -> dict[str, Any]:
    """The request for the next answer on this branch."""
    messages: list[dict[str, Any]] = []
    if system_prompt.strip():
        messages.append({"role": "system", "content": system_prompt})
    messages.extend(_message(message) for message in path)
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name, value in (sampling or {}).items():
        if name in _SAMPLING:
            body[name] = value
        elif name == "max_tokens" and value:
            body["max_tokens"] = value
    if continue_last:
        body["continue_final_message"] = True
    return body


def _message(message: Message) -> dict[str, Any]:
    text = message.content
    documents = [item for item in message.attachments if item.text]
    if documents:
        text = "\n\n".join([*(document_text(item) for item in documents), text])
    images = [item for item in message.attachments if item.data and item.mime.startswith("image/")]
    if not images:
        return {"role": message.role, "content": text}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:{item.mime};base64,{_base64(item)}"}} for item in images
    ]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": text}]}


def document_text(item: Attachment) -> str:
    """A document as it enters the context."""
    return f"[{item.name}]\n{item.text}\n[end of {item.name}]"


def _base64(item: Attachment) -> str:
    return base64.b64encode(item.data or b"").decode("ascii")


@dataclass
class ToolCall:
    """A call the model wants made; `arguments` is JSON text, complete at the end."""

    name: str = ""
    arguments: str = ""
    id: str = ""


@dataclass
class Answer:
    """An answer under way: `take` adds one chunk."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[ToolCall] = field(default_factory=list)

    def take(self, chunk: Mapping[str, Any]) -> tuple[str, str]:
        """Add a chunk; returns the content and the reasoning that are new.

        Raises: ApiError: the stream carries an error.
        """
        error = chunk.get("error")
        if isinstance(error, Mapping):
            raise ApiError(500, str(error.get("message", error)), str(error.get("code") or ""), error)
        if isinstance(chunk.get("usage"), Mapping):
            self.usage = dict(chunk["usage"])
        if isinstance(chunk.get("timings"), Mapping):
            self.timings = dict(chunk["timings"])
        content = reasoning = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            self._take_calls(delta.get("tool_calls") or ())
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.content += content
        self.reasoning += reasoning
        return content, reasoning

    def facts(self) -> dict[str, object]:
        """What is kept beside the text."""
        facts: dict[str, object] = {}
        if self.usage:
            facts["usage"] = self.usage
        if self.timings:
            facts["timings"] = self.timings
        if self.finish_reason:
            facts["finish_reason"] = self.finish_reason
        if self.tool_calls:
            facts["tool_calls"] = [vars(call) for call in self.tool_calls]
        return facts

    def _take_calls(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        for delta in deltas:
            index = delta.get("index")
            if not isinstance(index, int) or not 0 <= index <= len(self.tool_calls):
                index = len(self.tool_calls)
            if index == len(self.tool_calls):
                self.tool_calls.append(ToolCall())
            call = self.tool_calls[index]
            function = delta.get("function") or {}
            call.id = delta.get("id") or call.id
            call.name = function.get("name") or call.name
            call.arguments += function.get("arguments") or ""
