"""The project of the open chat. Its instructions are reloaded when a chat opens and after each response."""

from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.db import conversations
from app.db.records import Conversation, Folder
from app.gui.app_context import Services
from app.projects import folder_of, instructions_of


class ProjectOfChat(QObject):
    """`instructions` and `folder` are the last loaded values. `changed` is emitted if the instructions differ."""

    changed = Signal()

    def __init__(self, services: Services, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._wanted: int | None = None
        self.instructions = ""
        self.folder = Path.home()

    def follow(self, conversation: Conversation) -> None:
        """Load the project of this conversation."""
        self._wanted = wanted = conversation.folder_id
        if wanted is None:
            self._show("", Path.home())
            return

        def find(connection: Any) -> Folder | None:
            return next((folder for folder in conversations.folders(connection) if folder.id == wanted), None)

        def read(folder: Folder | None) -> None:
            def work() -> tuple[str, Path]:
                return (instructions_of(folder) if folder is not None else "", folder_of(folder))

            def show(found: tuple[str, Path]) -> None:
                if self._wanted == wanted:
                    self._show(*found)

            self._services.background.run(work, show, None, self)

        self._services.background.watch(self._services.store.submit(find), read, None, self)

    def _show(self, instructions: str, folder: Path) -> None:
        self.folder = folder
        if instructions != self.instructions:
            self.instructions = instructions
            self.changed.emit()
