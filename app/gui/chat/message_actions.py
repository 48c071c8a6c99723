"""User actions on a message: retry, edit, delete, fork, fix an error."""

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication

from app.db.records import Conversation
from app.gui.app_context import AppContext
from app.gui.chat import chat_transactions
from app.gui.chat.controller import ChatController
from app.gui.chat.message_widget import MessageWidget
from app.gui.reasons import error_message
from app.gui.widgets.basics import Banner


class MessageActions(QObject):
    """Connects message widgets to the conversation."""

    server_wanted = Signal()
    edit_wanted = Signal(int)
    asked_anew = Signal(str)  # message text for a new chat
    forked = Signal(int)  # id of the new conversation

    def __init__(
        self,
        services: AppContext,
        controller: ChatController,
        banner: Banner,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._services, self._controller = services, controller
        self._banner = banner
        self._waiting = 0  # id of the response to retry when the server is reachable again

    def follow(self, widget: MessageWidget) -> None:
        """Connect the actions of this widget."""
        chat = self._controller
        widget.regenerate.connect(chat.regenerate)
        widget.edited.connect(chat.edit)
        widget.continued.connect(chat.continue_answer)
        widget.switched.connect(chat.switch_branch)
        widget.rewritten.connect(chat.rewrite)
        widget.fixed.connect(self._apply_remedy)
        widget.removed.connect(self._confirm_removal)
        widget.forked.connect(self._fork)

    def retry_waiting(self) -> None:
        """Retry the response that failed while the server was unreachable."""
        waiting, self._waiting = self._waiting, 0
        if waiting in self._controller.tree:
            self._controller.regenerate(waiting)

    def answer_again(self) -> None:
        """Generate the last answer once more."""
        path = self._controller.tree.path()
        if path and path[-1].role == "assistant":
            self._controller.regenerate(path[-1].id)

    def edit_last(self) -> None:
        """Edit the user's last message."""
        asked = [message for message in self._controller.tree.path() if message.role == "user"]
        if asked and not self._controller.busy:
            self.edit_wanted.emit(asked[-1].id)

    def copy_last(self) -> None:
        """Copy the last answer."""
        answers = [message for message in self._controller.tree.path() if message.role == "assistant"]
        if answers:
            QGuiApplication.clipboard().setText(answers[-1].content)

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
            chat.compactor.fold_more(chat.conversation, path, lambda: chat.regenerate(message_id))
        else:
            self.asked_anew.emit(chat.tree[question].content)

    def _confirm_removal(self, message_id: int) -> None:
        self._banner.notify(
            self.tr("Delete this message and everything after it? This cannot be undone."),
            "warn",
            (self.tr("Delete"), lambda: self._controller.remove(message_id)),
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
