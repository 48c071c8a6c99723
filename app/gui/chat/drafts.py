"""What is being written in each chat, and what is attached to it, until it is sent."""

from typing import Final

from PySide6.QtCore import QObject, QTimer

from app.db.records import Attachment
from app.gui.chat.composer import Composer
from app.gui.chat.controller import ChatController

_SAVED_AFTER_MS: Final = 600


class Drafts(QObject):
    """Gives every chat its own: the text of a saved chat is kept with it, the rest while the window is open."""

    def __init__(self, controller: ChatController, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._composer = controller, composer
        self._shown_id = -1
        self._new_text = ""
        self._attached: dict[int, list[Attachment]] = {}
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_SAVED_AFTER_MS)
        self._timer.timeout.connect(self.save)
        composer.draft_changed.connect(lambda _text: self._timer.start())
        controller.conversation_changed.connect(self._on_conversation)

    def save(self) -> None:
        """Keep the text with its chat."""
        self._timer.stop()
        chat = self._controller.conversation
        if chat.id and chat.id == self._shown_id and self._composer.text != chat.draft:
            self._controller.change(draft=self._composer.text)

    def show(self) -> None:
        """Put the draft of the chat that was opened into the composer; its branches share one."""
        chat, composer = self._controller.conversation, self._composer
        if chat.id == self._shown_id:
            return
        if composer.attachments:
            self._attached[self._shown_id] = list(composer.attachments)
        if not self._shown_id:
            self._new_text = composer.text
        self._shown_id = chat.id
        composer.set_draft(chat.draft if chat.id else self._new_text, self._attached.pop(chat.id, []))
        self._timer.stop()

    def take(self) -> tuple[str, list[Attachment]]:
        """What is being written, out of this chat."""
        taken = self._composer.text, list(self._composer.attachments)
        self._composer.clear()
        self.save()
        return taken

    def _on_conversation(self) -> None:
        self._shown_id = self._controller.conversation.id
