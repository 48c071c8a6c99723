"""The request for a conversation branch, and the response that arrives."""

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.answer_facts import NO_FACTS, AnswerFacts
from app.attachments import document_text, image_part
from app.client import ApiError, ChatDelta, ChatResponse, chat_body
from app.db import messages
from app.db.records import Attachment, Message
from app.gui.app_context import AppContext
from app.gui.background import StreamJob
from app.gui.reasons import error_message
from app.tools.loop import answer_message, result_message
from app.tools.types import ToolSpec
from quantize.files.sampling_keys import SAMPLING

# Characters per token of English text, rounded down so that estimates are too high rather than too low.
CHARACTERS_PER_TOKEN = 3.5
# Fields of a chat that are copied into its requests.
_CARRIED = {"collection", "seed"} | {name for name, row in SAMPLING.items() if row.openai or row.vllm}


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


def estimate_message(message: Message) -> int:
    """Estimated tokens of a message, including documents."""
    return estimate_tokens(message.content) + sum(estimate_tokens(a.text) for a in message.attachments) + 4


def branch_body(
    model: str,
    path: Sequence[Message],
    *,
    system_prompt: str = "",
    sampling: Mapping[str, object] | None = None,
    continue_last: bool = False,
    tools: Sequence[ToolSpec] = (),
    sees: bool = True,
) -> dict[str, Any]:
    """The request for the next response on this branch. `sees`: the model accepts images."""
    messages: list[dict[str, Any]] = []
    if system_prompt.strip():
        messages.append({"role": "system", "content": system_prompt})
    messages.extend(rendered(path, sees=sees))
    body = chat_body(model, messages, {"loop_guard": True})
    if tools:
        body["tools"] = [spec.as_openai() for spec in tools]
    body |= _sampling(sampling or {})
    if continue_last:
        body["continue_final_message"] = True
    return body


def _sampling(sampling: Mapping[str, object]) -> dict[str, Any]:
    """Convert a chat's options to request fields."""
    body: dict[str, Any] = {}
    for name, value in sampling.items():
        if name in _CARRIED:
            body[name] = value
        elif name == "max_tokens" and value:
            body["max_tokens"] = value
        elif name == "thinking_budget" and isinstance(value, int):
            body |= {"thinking_budget": value} if value else {"enable_thinking": False}
        elif name == "stop" and isinstance(value, list) and value:
            body["stop"] = value
        elif name == "receipt" and value:
            body |= {"deterministic": True, "receipt": True}
        elif name == "json_schema" and isinstance(value, dict):
            body["json_schema"] = value
    return body


def rendered(path: Sequence[Message], *, sees: bool = True) -> list[dict[str, Any]]:
    """Convert messages to request messages.

    A tool call without a result (stopped or lost) is omitted.
    """
    bodies: list[dict[str, Any]] = []
    for number, message in enumerate(path):
        if message.role == "tool":
            bodies.append(result_message(message.facts.call_id, message.content))
            continue
        bodies.append(_message(message, sees=sees))
        results = 0
        while number + 1 + results < len(path) and path[number + 1 + results].role == "tool":
            results += 1
        if results and message.facts.tool_calls:
            bodies[-1] = answer_message(bodies[-1]["content"], message.facts.tool_calls[:results])
    return bodies


def pictures(message: Message) -> list[Attachment]:
    """The image attachments of a message."""
    return [item for item in message.attachments if item.data and item.mime.startswith("image/")]


def _message(message: Message, *, sees: bool) -> dict[str, Any]:
    """Convert one message.

    An image that the model cannot read becomes a note: sending it would fail every request.
    """
    images = pictures(message)
    notes = [document_text(item.name, item.text) for item in message.attachments if item.text]
    if images and not sees:
        notes += [f"[{item.name}: a picture, which this model cannot see]" for item in images]
    elif images and message.facts.pictures_left_out:
        notes += [f"[{item.name}: a picture, which could not be read]" for item in images]
    text = "\n\n".join([*notes, message.content])
    if not images or not sees or message.facts.pictures_left_out:
        return {"role": message.role, "content": text}
    parts = [image_part(item.mime, item.data or b"") for item in images]
    return {"role": message.role, "content": [*parts, {"type": "text", "text": text}]}


_SAVE_MS = 1000


class ArrivingAnswer(QObject):
    """The response being generated. `message_id` is its message, 0 between responses."""

    text_arrived = Signal(int, str, str)  # id, content, reasoning
    phase_changed = Signal(int, object)  # id, Phase
    ended = Signal(int, object, str, object)  # id, ChatResponse, Status, AnswerFacts
    failed = Signal(object)  # ApiError that ended the response
    save_failed = Signal(str)

    def __init__(self, services: AppContext, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self.message_id = 0
        self.so_far: ChatResponse | None = None
        self._job: StreamJob | None = None
        self._save_timer = QTimer(self, interval=_SAVE_MS)
        self._save_timer.timeout.connect(self._save_text)

    def begin(self, message_id: int, so_far: ChatResponse, body: dict[str, Any]) -> None:
        """Start the request. Received text is appended to `so_far`."""
        self.so_far, self.message_id = so_far, message_id
        self._job = self._services.background.stream(
            lambda: self._services.api.answer(body),
            self._on_chunks,
            lambda _: self._end("complete"),
            self._on_error,
            self,
        )
        self._save_timer.start()

    def stop(self) -> None:
        """Stop the response after delivering the text received so far."""
        if self._job is not None:
            self._job.flush()
            self._job.cancel()
            self._end("stopped")

    def _on_chunks(self, chunks: list[ChatDelta]) -> None:
        if self.so_far is None:
            return
        before = self.so_far.phase
        for chunk in chunks:
            self.so_far.take(chunk)
        content = "".join(chunk.text for chunk in chunks)
        reasoning = "".join(chunk.reasoning for chunk in chunks)
        if content or reasoning:
            self.text_arrived.emit(self.message_id, content, reasoning)
        if self.so_far.phase != before:
            self.phase_changed.emit(self.message_id, self.so_far.phase)

    def _on_error(self, error: Exception) -> None:
        code = error.code if isinstance(error, ApiError) else ""
        self._end("error", AnswerFacts(error=error_message(error), error_code=code))
        self.failed.emit(error)

    def _end(self, status: str, facts: AnswerFacts = NO_FACTS) -> None:
        answer, message_id = self.so_far, self.message_id
        self.so_far, self._job, self.message_id = None, None, 0
        self._save_timer.stop()
        if answer is not None:
            self.ended.emit(message_id, answer, status, facts)

    def _save_text(self) -> None:
        if self.so_far is None:
            return
        arrived = {"content": self.so_far.content, "reasoning": self.so_far.reasoning}
        store = self._services.store.of(self.message_id)
        future = store.submit(messages.write_text, self.message_id, **arrived, status="streaming")
        self._services.background.watch(
            future, None, lambda error: self.save_failed.emit(error_message(error)), self
        )
