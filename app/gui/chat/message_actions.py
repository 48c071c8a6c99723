"""User actions on a message: retry, edit, delete, fork, fix an error."""

import time
from collections.abc import Callable

from PySide6.QtCore import QDateTime, QLocale, QObject, QTimer, Signal
from PySide6.QtGui import QGuiApplication

from app.db.records import Conversation, Message
from app.gui.app_context import AppContext
from app.gui.chat import chat_transactions
from app.gui.chat.controller import ChatController
from app.gui.chat.message_widget import MessageWidget
from app.gui.chat.voice import ReadAloud
from app.gui.reasons import error_message
from app.gui.widgets.basics import Banner
from engine.api.machine import CanaryState, WrongAnswers

# A comparison takes seconds and happens after a pause.
_LOOK_MS = 30_000


class MessageActions(QObject):
    """Connects message widgets to the conversation."""

    server_wanted = Signal()
    edit_wanted = Signal(int)
    asked_anew = Signal(str, tuple)  # text and attachments of a message for a new chat
    forked = Signal(int)  # id of the new conversation
    interrupting = Signal()  # a running answer is ended, because a message above it is edited or deleted

    def __init__(
        self,
        services: AppContext,
        controller: ChatController,
        banner: Banner,
        reading: ReadAloud,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._services, self._controller = services, controller
        self._banner = banner
        self._reading = reading
        self._waiting = 0  # id of the response to retry when the server is reachable again

    def follow(self, widget: MessageWidget) -> None:
        chat = self._controller
        widget.regenerate.connect(chat.regenerate)
        widget.edited.connect(self._ask_again)
        widget.continued.connect(chat.continue_answer)
        widget.switched.connect(chat.switch_branch)
        widget.rewritten.connect(chat.rewrite)
        widget.fixed.connect(self._apply_remedy)
        widget.removed.connect(self._confirm_removal)
        widget.forked.connect(self._fork)
        self._reading.follow(widget)

    def _ask_again(self, message_id: int, text: str) -> None:
        """Send an edited message."""
        self._end_answer()
        self._controller.edit(message_id, text)

    def _remove(self, message_id: int) -> None:
        self._end_answer()
        self._controller.remove(message_id)

    def _end_answer(self) -> None:
        """End a running answer, which is below the message that the user edits or deletes."""
        if self._controller.busy:
            self.interrupting.emit()
            self._controller.stop()

    def retry_waiting(self) -> None:
        """Retry the response that failed while the server was unreachable."""
        waiting, self._waiting = self._waiting, 0
        self._regenerate_if_shown(waiting)

    def _regenerate_if_shown(self, message_id: int) -> None:
        """Generate a response again, unless another chat was opened meanwhile."""
        if message_id in self._controller.tree:
            self._controller.regenerate(message_id)

    def answer_again(self) -> None:
        """Generate the last answer once more."""
        path = self._controller.tree.path()
        if path and path[-1].role == "assistant":
            self._controller.regenerate(path[-1].id)

    def edit_last(self) -> None:
        questions = [message for message in self._controller.tree.path() if message.role == "user"]
        if questions and not self._controller.busy:
            self.edit_wanted.emit(questions[-1].id)

    def copy_last(self) -> None:
        answers = [message for message in self._controller.tree.path() if message.role == "assistant"]
        if answers:
            QGuiApplication.clipboard().setText(answers[-1].content)

    def read_last(self) -> None:
        """Read the last answer aloud, or stop reading it."""
        answers = [message for message in self._controller.tree.path() if message.role == "assistant"]
        if answers:
            self._reading.toggle(answers[-1].id, answers[-1].content)

    def _apply_remedy(self, message_id: int, remedy: str) -> None:
        chat = self._controller
        question = chat.tree[message_id].parent_id
        if remedy == "retry":
            chat.regenerate(message_id)
        elif remedy == "without_pictures":
            chat.leave_out_pictures(message_id)
        elif remedy == "restart":
            self._waiting = message_id
            self.server_wanted.emit()
        elif question is None:
            return
        elif remedy == "edit":
            self.edit_wanted.emit(question)
        elif remedy == "shorten":
            path = chat.tree.path()
            chat.compactor.fold_more(chat.conversation, path, lambda: self._regenerate_if_shown(message_id))
        else:
            self.asked_anew.emit(chat.tree[question].content, chat.tree[question].attachments)

    def _confirm_removal(self, message_id: int) -> None:
        self._banner.notify(
            self.tr("Delete this message and everything after it? This cannot be undone."),
            "warn",
            (self.tr("Delete"), lambda: self._remove(message_id)),
        )

    def _fork(self, message_id: int) -> None:
        def made(conversation: Conversation) -> None:
            self.forked.emit(conversation.id)

        path = self._controller.tree.path()
        index = next(n for n, message in enumerate(path) if message.id == message_id)
        source = self._controller.conversation
        future = self._services.store.of(source.id).submit(chat_transactions.fork, source, path[: index + 1])
        self._services.background.watch(
            future, made, lambda error: self._banner.notify(error_message(error), "bad"), self
        )


class WrongAnswersNotice(QObject):
    """Lists answers that may be wrong because their device was faulty; offers to repeat those in the open chat."""

    changed = Signal()  # other answers may be wrong now

    def __init__(
        self,
        services: AppContext,
        controller: ChatController,
        banner: Banner,
        answer_again: Callable[[], None],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._services, self._controller, self._banner = services, controller, banner
        self._answer_again = answer_again
        self._begun_s = time.time()
        self._notified: set[float] = set()  # times of the faults that were reported outside their chats
        self._found: tuple[WrongAnswers, ...] = ()
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self.look)
        self._timer.start()

    def look(self) -> None:
        """Query the server for faults found by its comparisons of answers."""
        if self._services.models.reachable:
            self._services.background.run(self._services.api.canary, self._show, lambda _: None, self)

    def note(self, answer: Message) -> str:
        """The line below an answer that may be wrong; empty for others."""
        wrong = next((each for each in reversed(self._found) if _concerns(each, answer)), None)
        return "" if wrong is None else self._words(wrong)

    def _show(self, state: CanaryState) -> None:
        if state.found != self._found:
            self._found = state.found
            self.changed.emit()
        answer = next(reversed(self._controller.tree.path()), None)
        for wrong in reversed(state.found):
            if answer is not None and _concerns(wrong, answer):
                if not self._controller.busy and not self._banner.isVisible():
                    self._notified.add(wrong.found_at)
                    again = (self.tr("Answer again"), self._answer_again)
                    self._banner.notify(self._words(wrong), "warn", again)
                return
        for wrong in state.found:
            if wrong.found_at > self._begun_s and wrong.found_at not in self._notified:
                self._notified.add(wrong.found_at)
                words = self.tr(
                    "Answers of {model} since {time} may be wrong: {what} gave other results than the CPU. "
                    "Open their chats to answer again."
                )
                since = QLocale().toString(
                    QDateTime.fromSecsSinceEpoch(int(wrong.since)).time(), QLocale.FormatType.ShortFormat
                )
                model = self._services.models.title(wrong.model)
                self._banner.notify(words.format(model=model, time=since, what=self._what(wrong)), "warn")

    def _words(self, wrong: WrongAnswers) -> str:
        words = self.tr("This answer may be wrong: {what} gave other results than the CPU.")
        return words.format(what=self._what(wrong))

    def _what(self, wrong: WrongAnswers) -> str:
        return ", ".join(wrong.devices) or self.tr("one of Tessera's kernels")


def _concerns(wrong: WrongAnswers, answer: Message) -> bool:
    """True if the faulty device may have computed this answer."""
    is_complete = answer.role == "assistant" and answer.status in {"complete", "stopped"}
    return is_complete and answer.model == wrong.model and wrong.since <= answer.created_s <= wrong.found_at
