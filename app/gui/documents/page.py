"""The Documents page: collections, their indexing progress, and files that could not be read."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from app.client import ServerUnreachable
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import answer_awaited, error_message, translated
from app.gui.widgets.basics import Banner, EmptyState, Page, button, card, clear, label, row, when_released
from app.gui.widgets.popups import file_dialog
from devices.install_hints import add_part
from engine.api.chat import REMOTE
from engine.api.collections import Collection, CollectionChange, CollectionRequest

_LOOK_MS = 1500
_STEPS = 1000  # number of steps of a progress bar
_EMPTY_HEIGHT = 400  # height in pixels of the empty state
# A recommended model of about 25 MB, the smallest one for embeddings.
_FINDS_BY_MEANING = "all-minilm-l6-v2"
# Recommended rerankers: one that a CPU computes in time, and one for other languages than English. Their
# files take 36 MB (Q8_0), and 438 MB (Q4_K_M) to 636 MB (Q8_0).
_ORDERS, _ORDERS_ALL = "jina-reranker-v1-tiny-en", "bge-reranker-v2-m3"


class _State(NamedTuple):
    """What the page shows. `ranks`: whether a reranker is on this computer."""

    collections: Sequence[Collection]
    ranks: bool


class DocumentsPage(Page):
    """One card per collection. Files stay in their folders; only an index is stored."""

    chat_wanted = Signal(str)  # id of the collection to use in a chat
    model_wanted = Signal(str)  # id of the recommended model to download

    def __init__(self, services: AppContext) -> None:
        super().__init__(
            self.tr("Documents"),
            self.tr(
                "Folders that chats can answer from. Everything stays on this computer unless a card "
                "says otherwise."
            ),
        )
        self._services = services
        self._shown: _State | None = None  # None: not loaded yet
        self.banner = Banner(services.theme, self)
        self.add = button(self.tr("Add a folder…"), self._choose, "primary")
        self.add.hide()
        self.header.addWidget(self.add, 0, Qt.AlignmentFlag.AlignTop)
        self.empty = EmptyState(
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
        self._cards.addWidget(label(answer_awaited(), "muted", wrap=True))  # the first cards take its place
        self.content.addWidget(self.empty)
        self.content.addLayout(self._cards)
        self.while_visible(_LOOK_MS, self._poll, self.refresh)
        services.models.reachable_changed.connect(lambda _: self.refresh() if self.isVisible() else None)

    def refresh(self) -> None:
        """Request the state of every collection."""
        if not self._services.models.reachable:
            return

        def failed(error: Exception) -> None:
            if not isinstance(error, ServerUnreachable):  # the window reports that
                self.banner.report(error_message(error))

        self._services.background.run(self._state_now, self._show, failed, self, newest="state")

    def _poll(self) -> None:
        if not self._services.background.is_loading(self, "state"):
            self.refresh()

    def add_folder(self, folder: str) -> None:
        """Create a collection from a folder, named after it."""
        if not folder:
            return
        request = CollectionRequest(name=Path(folder).name or folder, sources=(folder,))
        self._change(lambda: self._services.api.make_collection(request))

    def _choose(self) -> None:
        file_dialog(self, self.tr("Add a folder"), self.add_folder, folder=True)

    def _change(self, act: Callable[[], object]) -> None:
        self._services.ask(self.banner, act, lambda _: self.refresh())

    def _remove(self, key: str, name: str) -> None:
        """Remove a collection, and offer to bring it back."""
        api = self._services.api

        def removed(_: object) -> None:
            undo = (self.tr("Undo"), lambda: self._change(partial(api.restore_collection, key)))
            self.banner.notify(self.tr("{name} was removed. Its files stay.").format(name=name), "info", undo)
            self.refresh()

        self._services.ask(self.banner, partial(api.remove_collection, key), removed)

    def _state_now(self) -> _State:
        collections = self._services.api.collections()
        rows = self._services.api.chat_models() if any(map(_may_be_ordered, collections)) else ()
        return _State(collections, any("rerank" in row.capabilities and row.origin != REMOTE for row in rows))

    def _show(self, state: _State) -> None:
        self.banner.report("")
        if state == self._shown:
            return
        self._shown = state
        when_released(self, self._make_cards)

    def _make_cards(self) -> None:
        collections, ranks = self._shown or _State((), ranks=True)
        self.empty.setVisible(not collections)
        self.add.setVisible(bool(collections))
        clear(self._cards)
        for each in collections:
            self._cards.addWidget(self._card(each))
        if any(map(_lacks_meaning, collections)):
            name = self.tr("Download a model for search by meaning")
            text = self.tr("Find passages by meaning too, with the small model all-MiniLM-L6-v2 (about 24 MiB).")
            self._cards.addWidget(card(self._offer(_FINDS_BY_MEANING, text, name), kind="note"))
        elif not ranks and any(map(_may_be_ordered, collections)):
            self._cards.addWidget(self._reranker_card())

    def _reranker_card(self) -> QFrame:
        why = self.tr(
            "A reranker reads each question together with the 20 best passages and puts those that answer it "
            "first. A search waits up to 4 s for it. Without one, the order comes from words and meaning alone."
        )
        small = self.tr("{model}, about 40 MiB, for English; quick enough for a CPU.").format(model=_ORDERS)
        large = self.tr("{model}, about 0.5 GiB, for many languages; needs a GPU to read all 20 in time.")
        name = self.tr("Download the reranker {model}")
        return card(
            label(why, "small", wrap=True),
            self._offer(_ORDERS, small, name.format(model=_ORDERS)),
            self._offer(_ORDERS_ALL, large.format(model=_ORDERS_ALL), name.format(model=_ORDERS_ALL)),
            kind="note",
        )

    def _offer(self, model: str, text: str, name: str) -> QHBoxLayout:
        get = button(self.tr("Download"), partial(self.model_wanted.emit, model), name=name)
        return row(label(text, "small", wrap=True), get, grow=0)

    def _card(self, item: Collection) -> QFrame:
        read = self._services.api.refresh_collection
        remove = button(self.tr("Remove"), partial(self._remove, item.id, item.name))
        remove.setAccessibleName(self.tr("Remove {name}").format(name=item.name))
        again = button(self.tr("Read again"), lambda: self._change(partial(read, item.id)))
        again.setAccessibleName(self.tr("Read {name} again").format(name=item.name))
        ocr = button(self.tr("Use OCR"), lambda: self._change(partial(self._read_scans, item.id)))
        ocr.setVisible(bool(item.scanned_pages) and not item.ocr)
        offered = "no_embedding_model" if _lacks_meaning(item) else ""  # the offer below the cards says it
        problems = (formatted.sentence(translated(problem)) for problem in item.problems if problem.kind != offered)
        sent = [
            self.tr("Its text is sent to {server}, where {model} runs").format(server=to.server, model=to.model)
            for to in item.sent_to
        ]
        lines = [f"{self._state(item)} · {self._amount(item)}", *map(_at_home, item.sources), *sent, *problems]
        if item.scanned_pages:
            lines.append(self._scans(item))
        if item.failed or item.unread_pages:
            lines.append(
                self.tr("Not read: {files}, {pages}. Why: tessera collections unread").format(
                    files=formatted.documents(item.failed), pages=formatted.pages(item.unread_pages)
                )
            )
        if item.skipped:
            text = self.tr(
                "Skipped, because hidden, linked or ignored: {number}. Which: tessera collections unread"
            )
            lines.append(text.format(number=formatted.whole(item.skipped)))
        labels: list[QWidget] = [label(line, "small", wrap=True) for line in lines]
        size = self.tr("The index takes {bytes}").format(bytes=formatted.size(item.index_bytes))
        labels[0].setToolTip(formatted.plain_tip(size))
        if (done := _done(item)) is not None:
            labels.insert(1, self._progress(done))
        ask = button(self.tr("Ask in a chat"), partial(self.chat_wanted.emit, item.id))
        ask.setAccessibleName(self.tr("Ask about {name} in a chat").format(name=item.name))
        return card(row(label(item.name, "strong"), 1, ask, ocr, again, remove), *labels)

    def _scans(self, item: Collection) -> str:
        text = self.tr("Scans without text, which no search finds: {pages}.").format(
            pages=formatted.pages(item.scanned_pages)
        )
        if not item.ocr_installed:
            install = add_part("ocr")
            text += " " + self.tr("OCR, which reads them, is not installed: {command}").format(command=install)
        return text

    def _read_scans(self, key: str) -> None:
        self._services.api.change_collection(key, CollectionChange(ocr=True))

    def _progress(self, done: float) -> QProgressBar:
        bar = QProgressBar()
        bar.setTextVisible(False)
        bar.setRange(0, _STEPS)
        bar.setValue(round(_STEPS * done))
        bar.setAccessibleName(self.tr("Progress"))
        return bar

    def _amount(self, item: Collection) -> str:
        return f"{formatted.documents(item.documents)}, {formatted.pages(item.pages)}"

    def _state(self, item: Collection) -> str:
        if item.state == "reading":
            return self.tr("Reading: {done} of {all} files").format(
                done=formatted.whole(item.files_done), all=formatted.whole(item.files)
            )
        if item.state == "embedding":
            return self.tr("Keyword search is ready; search by meaning: {done} of {all} passages").format(
                done=formatted.whole(item.embedded), all=formatted.whole(item.chunks)
            )
        return self.tr("Ready")


def _done(item: Collection) -> float | None:
    """Finished share of the reading or embedding in progress; None if there is none."""
    done, total = {"reading": (item.files_done, item.files), "embedding": (item.embedded, item.chunks)}.get(
        item.state, (0, 0)
    )
    return min(1.0, done / total) if total else None


def _lacks_meaning(item: Collection) -> bool:
    """Return True if everything is read but there is no embedding model."""
    return item.state == "ready" and bool(item.chunks) and not item.embedded and not item.embedding_model


def _may_be_ordered(item: Collection) -> bool:
    """Whether passages are found and a reranker would be used."""
    return item.state == "ready" and bool(item.chunks) and not item.reranker


def _at_home(path: str) -> str:
    """The path with `~` for the user's home, for example `~/Documents`."""
    home = Path.home()
    return str(Path("~") / Path(path).relative_to(home)) if Path(path).is_relative_to(home) else path
