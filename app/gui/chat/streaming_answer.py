"""The answer that a model writes now: read from the server, shown in batches, saved while it grows."""

from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.answer_facts import NO_FACTS, AnswerFacts
from app.client import Answer, ApiError, WholeAnswer
from app.db import messages
from app.gui.app_context import Services
from app.gui.background import StreamJob
from app.gui.server_errors import error_message

_SAVE_MS = 1000


class ArrivingAnswer(QObject):
    """One at a time; `message_id` is the message it is written into, 0 between answers."""

    text_arrived = Signal(int, str, str)  # id, content, reasoning
    phase_changed = Signal(int, object)  # id, Phase
    ended = Signal(int, object, str, object)  # id, WholeAnswer, Status, AnswerFacts of how it ended
    failed = Signal(object)  # ApiError: the answer ended with it
    save_failed = Signal(str)

    def __init__(self, services: Services, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self.message_id = 0
        self.so_far: WholeAnswer | None = None
        self._job: StreamJob | None = None
        self._save_timer = QTimer(self)
        self._save_timer.setInterval(_SAVE_MS)
        self._save_timer.timeout.connect(self._save_text)

    def begin(self, message_id: int, so_far: WholeAnswer, body: dict[str, Any]) -> None:
        """Ask the server; what comes is added to `so_far`."""
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
        """End it here; what has arrived is shown first."""
        if self._job is not None:
            self._job.flush()
            self._job.cancel()
            self._end("stopped")

    def _on_chunks(self, chunks: list[Answer]) -> None:
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
        future = self._services.store.submit(messages.write_text, self.message_id, **arrived, status="streaming")
        self._services.background.watch(
            future, None, lambda error: self.save_failed.emit(error_message(error)), self
        )
