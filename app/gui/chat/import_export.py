"""Export and import of chats, with their file dialogs."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.db import messages
from app.db.records import Conversation, Message, Summary
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import error_message

_SHOWN_EVERY = 50  # chats


class ChatImportExport(QObject):
    """Reads and writes chat files on worker threads."""

    importing = Signal(int, int)  # chats written so far, chats in all; 0 of 0 while the file is read
    imported = Signal(list)  # ids of the new chats
    exported = Signal(str)
    failed = Signal(str)

    def __init__(self, services: AppContext, window: QWidget) -> None:
        super().__init__(window)
        self._services = services
        self._window = window

    def export(self, conversation_id: int, title: str = "") -> None:
        from app.gui.chat.chat_export import file_name

        filters = [
            self.tr("Markdown (*.md)"),
            self.tr("PDF (*.pdf)"),
            self.tr("Web page (*.html)"),
            self.tr("JSON, with all branches (*.json)"),
        ]
        dialog = self._dialog(self.tr("Export chat"), filters, partial(self.export_to, conversation_id))
        _save_as(dialog, f"{file_name(title) or self.tr('Chat')}.md")
        dialog.filterSelected.connect(lambda text: dialog.setDefaultSuffix(text.rpartition("*.")[2].rstrip(")")))
        dialog.open()

    def export_to(self, conversation_id: int, path: Path) -> None:
        """Export a conversation as JSON, PDF or a web page if the file name ends so, else as Markdown."""
        from app.gui.chat.chat_export import to_html, to_json, to_markdown

        def write(loaded: tuple[Conversation, list[Message], list[Summary]]) -> None:
            chat, rows, _ = loaded

            def work() -> None:
                match path.suffix.lower():
                    case ".json":
                        path.write_text(to_json([(chat, rows)]), "utf-8")
                    case ".html":
                        path.write_text(to_html(chat, rows), "utf-8")
                    case ".pdf":
                        _write_pdf(path, to_html(chat, rows))
                    case _:
                        path.write_text(to_markdown(chat, rows), "utf-8")

            self._services.background.run(work, lambda _: self.exported.emit(str(path)), self._fail, self)

        self._services.background.watch(
            self._services.store.of(conversation_id).submit(messages.whole, conversation_id), write, None, self
        )

    def export_all(self) -> None:
        """Show a file dialog, then export all chats as an archive with one JSON file and Markdown files."""
        self._export_archive(self.tr("Export all chats"), self.export_all_to)

    def export_many(self, ids: Sequence[int]) -> None:
        """Show a file dialog, then export these chats in the same way."""
        title = self.tr("Export {n} chats").format(n=formatted.whole(len(ids)))
        self._export_archive(title, partial(self.export_all_to, only=frozenset(ids)))

    def _export_archive(self, title: str, chosen: Callable[[Path], None]) -> None:
        dialog = self._dialog(title, [self.tr("Archive (*.zip)")], chosen)
        _save_as(dialog, "tessera-chats.zip")
        dialog.open()

    def export_all_to(self, path: Path, only: Collection[int] | None = None) -> None:
        """Export all chats, or those with these ids."""
        from app.gui.chat.chat_export import every_chat, write_archive

        def write(chats: list[tuple[Conversation, list[Message]]]) -> None:
            self._services.background.run(
                lambda: write_archive(path, chats), lambda _: self.exported.emit(str(path)), self._fail, self
            )

        self._services.background.watch(self._services.store.submit(every_chat, only), write, self._fail, self)

    def import_chats(self) -> None:
        """Show a file dialog, then import the chats of the chosen file."""
        filters = [self.tr("Chats (*.json *.jsonl *.zip)")]
        dialog = self._dialog(self.tr("Import chats"), filters, self.import_from)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.open()

    def import_from(self, path: Path) -> None:
        from app.gui.chat.chat_export import import_chats, read_export

        def progress(done: int, total: int) -> None:
            if done % _SHOWN_EVERY == 0:
                self.importing.emit(done, total)

        def add(content: object) -> None:
            future = self._services.store.submit(import_chats, content, progress)
            self._services.background.watch(future, self.imported.emit, self._fail, self)

        self.importing.emit(0, 0)
        self._services.background.run(lambda: read_export(path), add, self._fail, self)

    def _dialog(self, title: str, filters: list[str], chosen: Callable[[Path], None]) -> QFileDialog:
        dialog = QFileDialog(self._window, title)
        dialog.setNameFilters(filters)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: chosen(Path(name)))
        return dialog

    def _fail(self, error: Exception) -> None:
        self.failed.emit(error_message(error))


def _write_pdf(path: Path, page: str) -> None:
    """Write a web page without scripts and images as a PDF. Raises: OSError."""
    from PySide6.QtGui import QPageSize, QPdfWriter, QTextDocument

    with path.open("wb"):  # a writer reports no error for a path that cannot be written
        pass
    writer = QPdfWriter(str(path))
    writer.setPageSize(QPageSize(QPageSize.PageSizeId.A4))
    document = QTextDocument()
    document.setHtml(page)
    document.print_(writer)


def _save_as(dialog: QFileDialog, name: str) -> None:
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix(name.rpartition(".")[2])
    dialog.selectFile(name)
