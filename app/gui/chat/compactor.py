"""Keeps the open chat within its model's context: summarizes older messages when idle or before a request."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.attachments import document_text
from app.client import ApiError, Routes, chat_body
from app.compaction.plan import (
    FOLD_AT,
    KEEP,
    CompactedContext,
    SummaryRange,
    in_force,
    sent,
    system_prompt,
    tokens_of,
)
from app.compaction.run import Compaction
from app.db import summaries as folds_table
from app.db.records import Conversation, Message, Summary
from app.gui.app_context import AppContext
from app.gui.chat.project_of_chat import ProjectOfChat
from app.gui.chat.request import branch_body, estimate_message, estimate_tokens, rendered
from app.gui.reasons import error_message

# Delay after a response. Summarizing must not slow down a user who replies immediately.
_IDLE_MS = 1500
# Minimum fraction of the context to reserve for a response.
_ANSWER = 0.15
_MARGIN = 0.05


class Compactor(QObject):
    """Creates and edits summaries. `changed`: the summaries changed. `noticed`: a message for the banner."""

    changed = Signal()
    noticed = Signal(str)
    _saved = Signal(int, object)

    def __init__(self, services: AppContext, project: ProjectOfChat, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._project = services, project
        self.folds: list[Summary] = []
        self._chat = Conversation(0)
        self._path: Sequence[Message] = ()
        self._cancelled = threading.Event()
        self._one_at_a_time = threading.Lock()  # a cancelled run may still be writing its last summary
        self._counts: dict[tuple[str, str], int] = {}
        self._idle = QTimer(self, singleShot=True, interval=_IDLE_MS)
        self._idle.timeout.connect(self._in_idle_time)
        self._saved.connect(self._on_saved)
        services.background.at_close(self.cancel)

    def open(self, chat: Conversation, folds: Sequence[Summary]) -> None:
        """Switch to another conversation."""
        self.cancel()
        self._chat, self.folds = chat, list(folds)

    def sent(self, path: Sequence[Message]) -> CompactedContext:
        """The messages and summaries to send to the model for a branch."""
        return sent(path, self.folds)

    def estimate(self, path: Sequence[Message]) -> int:
        """Estimated tokens of a branch's context."""
        return tokens_of(self.sent(path), self._instructions(self._chat), estimate_tokens, estimate_message)

    def prompt(self, chat: Conversation, what: CompactedContext) -> str:
        """The system prompt: project instructions, the chat's own prompt and the summaries."""
        return system_prompt(self._instructions(chat), what.summaries)

    def _instructions(self, chat: Conversation) -> str:
        return "\n\n".join(filter(None, (self._project.instructions.strip(), chat.system_prompt.strip())))

    def on_answered(self, chat: Conversation, path: Sequence[Message], used: int) -> None:
        """A response ended with `used` tokens in the context. Summarize later if the context is nearly full."""
        self._chat, self._path = chat, path
        choice, n_ctx = self._services.models.get(chat.model), self._n_ctx()
        local = choice is not None and not choice.remote
        if self._services.settings.now.flag("chat.fold") and local and n_ctx and used >= FOLD_AT * n_ctx:
            self._idle.start()

    def cancel(self) -> None:
        """Cancel summarizing. Unfinished work is retried later."""
        self._idle.stop()
        self._cancelled.set()

    def before_answer(self, chat: Conversation, path: Sequence[Message], then: Callable[[], object]) -> None:
        """Call `then` immediately if the prompt fits, else after summarizing the older messages."""
        self.cancel()
        self._chat, self._path = chat, path
        n_ctx = self._n_ctx()
        if not n_ctx or self.estimate(path) < (1 - _ANSWER) * n_ctx:
            then()
            return
        self.fold_now(then)

    def fold_now(self, then: Callable[[], object] | None = None, limit: float = 1 - _ANSWER) -> None:
        """Summarize until a response fits into the context. `then` is called on success and on failure."""
        chat = self._chat.id

        def done(count: int) -> None:
            if count and chat == self._chat.id:
                words = self.tr(
                    "The older part of this chat was summarized. Open a summary to see the original messages."
                )
                self.noticed.emit(words)
            if then is not None:
                then()

        def failed(error: Exception) -> None:
            self.noticed.emit(
                self.tr("The older part could not be summarized: {reason}").format(reason=error_message(error))
            )
            if then is not None:
                then()

        self._run("interactive", min(limit, 1 - _ANSWER), done, failed)

    def fold_more(
        self, chat: Conversation, path: Sequence[Message], then: Callable[[], object] | None = None
    ) -> None:
        """Summarize at the user's request, down to about the part that is never summarized."""
        self._chat, self._path = chat, path
        self.fold_now(then, KEEP + _MARGIN)

    # -- user actions on a summary

    def rewrite(self, fold_id: int, summary: str) -> None:
        """Replace the text of a summary by the user's text."""
        self._change(folds_table.rewrite, fold_id, summary)

    def set_opened(self, fold_id: int, *, opened: bool) -> None:
        """Choose whether the originals or the summary are sent."""
        self._change(folds_table.set_opened, fold_id, opened)

    def undo(self, fold_id: int) -> None:
        self.cancel()
        self._change(folds_table.remove, fold_id)

    def _change(self, function: Any, *arguments: Any) -> None:
        number = self._chat.id

        def write(connection: Any) -> list[Summary]:
            function(connection, *arguments)
            return folds_table.of_conversation(connection, number)

        def show(summaries: list[Summary]) -> None:
            if self._chat.id == number:
                self.folds = summaries
                self.changed.emit()

        def failed(error: Exception) -> None:
            self.noticed.emit(error_message(error))

        self._services.background.watch(self._services.store.of(number).submit(write), show, failed, self)

    # -- summarizing

    def _n_ctx(self) -> int:
        choice = self._services.models.get(self._chat.model)
        return choice.n_ctx if choice else 0

    def _in_idle_time(self) -> None:
        def done(count: int) -> None:
            if count:
                self._warm()

        self._run("side", FOLD_AT, done, lambda _: None)

    def _run(
        self, priority: str, limit: float, done: Callable[[int], object], failed: Callable[[Exception], object]
    ) -> None:
        self._cancelled.set()
        cancelled = self._cancelled = threading.Event()
        chat, api, n_ctx = self._chat, self._services.api, self._n_ctx()
        store = self._services.store.of(chat.id)

        def ask(messages: list[dict[str, Any]], most: int) -> Any:
            # Reasoning would use up the few tokens of a summary.
            options = {"max_tokens": most, "temperature": 0, "priority": priority, "loop_guard": True}
            return api.answer(chat_body(chat.model, messages, {**options, "reasoning_effort": "none"}))

        def keep(part: SummaryRange, summary: str) -> Summary:
            fold = store.submit(
                folds_table.add,
                chat.id,
                part.first_id,
                part.last_id,
                summary,
                model=chat.model,
                takes_in=[old.id for old in part.merges],
            ).result()
            self._saved.emit(chat.id, store.submit(folds_table.of_conversation, chat.id).result())
            return fold

        def of(message: Message) -> int:
            return self._count(api, chat.model, _text(message))

        def count(text: str) -> int:
            return self._count(api, chat.model, text)

        path, prompt = tuple(self._path), self._instructions(chat)

        def work() -> int:
            with self._one_at_a_time:
                folds = in_force(path, store.submit(folds_table.of_conversation, chat.id).result())
                return Compaction(path, folds, prompt, n_ctx, ask, keep, rendered, count, of, cancelled).run(limit)

        self._services.background.run(work, done, failed, self)

    def _count(self, api: Routes, model: str, text: str) -> int:
        if not text:
            return 0
        count = self._counts.get((model, text))
        if count is None:
            try:
                count = api.count_tokens(model, text)
            except ApiError as error:
                if error.code != "stays_here":
                    raise
                return estimate_tokens(text)  # another server runs the model
            self._counts[model, text] = count
        return count

    def _on_saved(self, number: int, summaries: list[Summary]) -> None:
        if number == self._chat.id:
            self.folds = summaries
            self.changed.emit()

    def _warm(self) -> None:
        """Prefill the new prefix, so that the next request does not wait for it."""
        what, chat = self.sent(self._path), self._chat
        body = branch_body(
            chat.model,
            what.messages,
            system_prompt=self.prompt(chat, what),
            sampling=chat.sampling,
            sees=self._services.models.sees(chat.model),
        )
        body |= {"max_tokens": 1, "priority": "side"}

        def work() -> None:
            stream = self._services.api.answer(body)
            try:
                for _ in stream:
                    if self._cancelled.is_set():
                        return
            finally:
                stream.close()

        self._services.background.run(work, None, lambda _: None, self)


def _text(message: Message) -> str:
    """All text that a message adds to the context, including documents."""
    documents = [document_text(item.name, item.text) for item in message.attachments if item.text]
    return "\n\n".join([*documents, message.content])
