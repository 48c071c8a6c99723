"""The Documents page: collections, their indexing progress, and files that could not be read."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QFrame, QVBoxLayout

from app.gui import formatted
from app.gui.app_context import Services
from app.gui.reasons import all_translated, error_message
from app.gui.widgets.basics import Banner, Empty, Page, button, card, clear, label, row, when_released
from engine.api.collections import Collection, CollectionChange, CollectionRequest

_LOOK_MS = 1500
_EMPTY_HEIGHT = 400  # height in pixels of the empty state
# A recommended model of about 25 MB, the smallest one for embeddings.
_FINDS_BY_MEANING = "all-minilm-l6-v2"


class DocumentsPage(Page):
    """One card per collection. Files stay in their folders; only an index is stored."""

    chat_wanted = Signal(str)  # id of the collection to use in a chat
    model_wanted = Signal(str)  # id of the recommended model to download

    def __init__(self, services: Services) -> None:
        super().__init__(
            self.tr("Documents"),
            self.tr(
                "Folders that chats can answer from. Everything stays on this computer unless a card "
                "says otherwise."
            ),
        )
        self._services = services
        self._shown: Sequence[Collection] | None = None  # None: not loaded yet
        self.banner = Banner(services.theme)
        self.add = button(self.tr("Add a folder…"), self._choose, "primary")
        self.add.hide()
        self.header.addWidget(self.add, 0, Qt.AlignmentFlag.AlignTop)
        self.empty = Empty(
            self.tr("No folders yet"),
            self.tr(
                "Add one with PDF, Word, text or Markdown files. They are read on this computer and are not "
                "moved. Then ask about them in a chat: the answer names the pages it uses."
            ),
            self.tr("Add a folder…"),
        )
        self.empty.pressed.connect(self._choose)
        self.empty.setMinimumHeight(_EMPTY_HEIGHT)
        self.empty.hide()
        self._cards = QVBoxLayout()
        self._cards.setSpacing(8)
        for widget in (self.banner, self.empty):
            self.content.addWidget(widget)
        self.content.addLayout(self._cards)
        self.while_visible(_LOOK_MS, self.refresh, self.refresh)

    def refresh(self) -> None:
        """Request the state of every collection."""
        self._run(self._services.api.collections)

    def add_folder(self, folder: str) -> None:
        """Create a collection from a folder, named after it."""
        if not folder:
            return
        request = CollectionRequest(name=Path(folder).name or folder, sources=(folder,))
        self._change(lambda: self._services.api.make_collection(request))

    def _choose(self) -> None:
        dialog = QFileDialog(self, self.tr("Add a folder"))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(self.add_folder)
        dialog.open()

    def _change(self, act: Callable[[], object]) -> None:
        def work() -> Sequence[Collection]:
            act()
            return self._services.api.collections()

        self._run(work)

    def _run(self, work: Callable[[], Sequence[Collection]]) -> None:
        self._services.background.run(work, self._show, self._fail, parent=self)

    def _fail(self, error: Exception) -> None:
        self.banner.notify(error_message(error), "bad")

    def _show(self, found: Sequence[Collection]) -> None:
        if found == self._shown:
            return
        self._shown = found
        when_released(self, self._make_cards)

    def _make_cards(self) -> None:
        found = self._shown or ()
        self.empty.setVisible(not found)
        self.add.setVisible(bool(found))
        clear(self._cards)
        for each in found:
            self._cards.addWidget(self._card(each))
        if any(map(_lacks_meaning, found)):
            self._cards.addWidget(self._model_card())

    def _model_card(self) -> QFrame:
        get = button(self.tr("Download"), partial(self.model_wanted.emit, _FINDS_BY_MEANING))
        get.setAccessibleName(self.tr("Download a model for search by meaning"))
        text = self.tr("all-MiniLM-L6-v2, a small model, also finds passages by meaning.")
        line = row(label(text, "small", wrap=True), get)
        line.setStretch(0, 1)
        return card(line)

    def _card(self, found: Collection) -> QFrame:
        read = self._services.api.refresh_collection
        remove = button(
            self.tr("Remove"), lambda: self._change(partial(self._services.api.remove_collection, found.id))
        )
        remove.setAccessibleName(self.tr("Remove {name}").format(name=found.name))
        again = button(self.tr("Read again"), lambda: self._change(partial(read, found.id)))
        again.setAccessibleName(self.tr("Read {name} again").format(name=found.name))
        ocr = button(self.tr("Use OCR"), lambda: self._change(partial(self._read_scans, found.id)))
        ocr.setVisible(bool(found.unread_pages) and not found.ocr)
        problems = map(formatted.sentence, all_translated(found.problem_details, found.problems))
        sent = [
            self.tr("Its text is sent to {server}, where {model} runs").format(server=to.server, model=to.model)
            for to in found.sent_to
        ]
        lines = [self._amount(found), self._state(found), *map(_at_home, found.sources), *sent, *problems]
        if found.failed or found.unread_pages:
            lines.append(
                self.tr("Not read: {files}, {pages}. Why: tessera collections unread").format(
                    files=formatted.documents(found.failed), pages=formatted.pages(found.unread_pages)
                )
            )
        labels = [label(line, "small", wrap=True) for line in lines]
        ask = button(self.tr("Ask in a chat"), partial(self.chat_wanted.emit, found.id))
        ask.setAccessibleName(self.tr("Ask about {name} in a chat").format(name=found.name))
        return card(row(label(found.name, "strong"), 1, ask, ocr, again, remove), *labels)

    def _read_scans(self, key: str) -> None:
        self._services.api.change_collection(key, CollectionChange(ocr=True))

    def _amount(self, found: Collection) -> str:
        return self.tr("{files}, {pages}, {bytes} of index").format(
            files=formatted.documents(found.documents),
            pages=formatted.pages(found.pages),
            bytes=formatted.size(found.index_bytes),
        )

    def _state(self, found: Collection) -> str:
        if found.state == "reading":
            return self.tr("Reading: {done} of {all} files").format(done=found.files_done, all=found.files)
        if found.state == "embedding":
            return self.tr("Keyword search is ready; search by meaning: {done} of {all} passages").format(
                done=found.embedded, all=found.chunks
            )
        return self.tr("Ready")


def _lacks_meaning(found: Collection) -> bool:
    """Whether everything is read but there is no model for embeddings."""
    return found.state == "ready" and bool(found.chunks) and not found.embedded and not found.embedding_model


def _at_home(path: str) -> str:
    """The path with `~` for the user's home, for example `~/Documents`."""
    home = Path.home()
    return str(Path("~") / Path(path).relative_to(home)) if Path(path).is_relative_to(home) else path
