"""Export and import of chats, with their file dialogs."""

# ruff: noqa: PLC0415 - readers of other programs' chats are imported when one is wanted: the window is shown sooner

from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.db import messages
from app.db.records import Conversation, Fold, Message
from app.gui.api import error_message
from app.gui.services import Services


class ChatImportExport(QObject):
    """Writes and reads files of chats on worker threads."""

    imported = Signal(int)
    exported = Signal(str)
    failed = Signal(str)

    def __init__(self, services: Services, window: QWidget) -> None:
        super().__init__(window)
        self._services = services
        self._window = window

    def export(self, conversation_id: int, title: str = "") -> None:
        """Ask where to, then write a conversation."""
        from app.gui.chat.transfer import file_name

        dialog = QFileDialog(self._window, self.tr("Export chat"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([self.tr("Markdown (*.md)"), self.tr("JSON, with all branches (*.json)")])
        dialog.setDefaultSuffix("md")
        dialog.selectFile(f"{file_name(title) or self.tr('Chat')}.md")
        dialog.filterSelected.connect(lambda text: dialog.setDefaultSuffix("json" if "json" in text else "md"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: self.export_to(conversation_id, Path(name)))
        dialog.open()

    def export_to(self, conversation_id: int, path: Path) -> None:
        """Write a conversation: JSON by name, else Markdown."""
        from app.gui.chat.transfer import to_json, to_markdown

        def write(loaded: tuple[Conversation, list[Message], list[Fold]]) -> None:
            text = to_json([loaded[:2]]) if path.suffix.lower() == ".json" else to_markdown(*loaded[:2])
            self._services.background.run(
                lambda: path.write_text(text, "utf-8"),
                lambda _: self.exported.emit(str(path)),
                lambda error: self.failed.emit(error_message(error)),
                self,
            )

        self._services.background.watch(
            self._services.store.submit(messages.whole, conversation_id), write, None, self
        )

    def export_all(self) -> None:
        """Ask where to, then write every chat: one JSON, and a Markdown file each, in an archive."""
        dialog = QFileDialog(self._window, self.tr("Export all chats"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(self.tr("Archive (*.zip)"))
        dialog.setDefaultSuffix("zip")
        dialog.selectFile("tessera-chats.zip")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: self.export_all_to(Path(name)))
        dialog.open()

    def export_all_to(self, path: Path) -> None:
        """Write every chat."""
        from app.gui.chat.transfer import every_chat, write_archive

        def write(found: list[tuple[Conversation, list[Message]]]) -> None:
            self._services.background.run(
                lambda: write_archive(path, found),
                lambda _: self.exported.emit(str(path)),
                lambda error: self.failed.emit(error_message(error)),
                self,
            )

        failed = self.failed.emit
        future = self._services.store.submit(every_chat)
        self._services.background.watch(future, write, lambda error: failed(error_message(error)), self)

    def import_chats(self) -> None:
        """Ask for a file, then add its chats."""
        dialog = QFileDialog(self._window, self.tr("Import chats"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilter(self.tr("Chats (*.json *.jsonl *.zip)"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: self.import_from(Path(name)))
        dialog.open()

    def import_from(self, path: Path) -> None:
        """Add the chats of a file."""
        from app.gui.chat.transfer import import_chats, read_export

        def add(found: object) -> None:
            self._services.background.watch(
                self._services.store.submit(import_chats, found),
                self.imported.emit,
                lambda error: self.failed.emit(error_message(error)),
                self,
            )

        self._services.background.run(
            lambda: read_export(path), add, lambda error: self.failed.emit(error_message(error)), self
        )
