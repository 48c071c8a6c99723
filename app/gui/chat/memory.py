"""What chats remember: the dialog that shows, edits and exports it, and the note below an answer that used it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QDateTime, QLocale, QSize, Qt
from PySide6.QtWidgets import QDialog, QFrame, QLineEdit, QPushButton, QWidget

from app.db import conversations, memories
from app.db.memories import MAX_MEMORIES, MAX_MEMORY_CHARS, MemoryRefused
from app.db.records import Folder, Memory
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.answer_stats import number
from app.gui.formatted import plain_tip
from app.gui.reasons import error_message
from app.gui.widgets.basics import (
    Banner,
    IconButton,
    button,
    clear,
    label,
    row,
    scrolled,
    search_field,
    stack,
    when_released,
)
from app.gui.widgets.popups import ComboBox, file_dialog, largest_dialog
from devices.atomic_file import write_atomically

_SETTING = "chat.memory"
_MAX_ROWS = 100  # maximum number of rows built; the search finds the others
_USED_CHARS = 160
_TOOLTIP_CHARS = 4000
_SIZE = QSize(680, 560)


class MemoryDialog(QDialog):
    """All remembered facts, each editable, with the setting that switches the memory off."""

    def __init__(self, services: AppContext, parent: QWidget) -> None:
        super().__init__(parent)
        self._services = services
        self._memories: list[Memory] = []
        self._folders: list[Folder] = []
        self.setWindowTitle(self.tr("Memory"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.resize(_SIZE.boundedTo(largest_dialog(parent)))
        note = self.tr(
            "Facts that chats with the Memory tool use. They are stored on this computer only, and are part of "
            "what the model of such a chat is asked; other programs never see them."
        )
        self.use = ComboBox()
        for value, words in (
            ("ask", self.tr("On: ask before a fact is saved")),
            ("automatic", self.tr("On: save facts without asking")),
            ("off", self.tr("Off: use and save nothing")),
        ):
            self.use.addItem(words, value)
        self.use.setAccessibleName(self.tr("Memory"))
        self.use.setCurrentIndex(self.use.findData(services.settings.now.text(_SETTING)))
        self.use.activated.connect(lambda _: services.settings.set(_SETTING, self.use.currentData()))
        self.search = search_field(self.tr("Search facts"))
        self.search.textChanged.connect(lambda _: self._show())
        self.new = QLineEdit(placeholderText=self.tr("I prefer short answers in metric units"))
        self.new.setAccessibleName(self.tr("New fact"))
        self.new.setMaxLength(MAX_MEMORY_CHARS)
        self.new.returnPressed.connect(self._add)
        self.add_button = button(self.tr("Remember"), self._add)
        self.add_button.setAutoDefault(False)
        self.banner = Banner(services.theme)
        self._rows = stack(spacing=8)
        column = stack(spacing=8)
        column.addLayout(self._rows)
        column.addStretch(1)
        self.export_button = button(self.tr("Export…"), self._choose_file)
        self.close_button = button(self.tr("Done"), self.accept)
        for control in (self.export_button, self.close_button):
            control.setAutoDefault(False)
        self.setLayout(
            stack(
                label(note, "small", wrap=True),
                row(self.use, 1, self.search, spacing=8),
                row(self.new, self.add_button, spacing=8),
                self.banner,
                scrolled(column, self.tr("Memory")),
                row(self.export_button, 1, self.close_button, spacing=8),
                spacing=12,
                margins=(20, 20, 20, 20),
            )
        )
        self.refresh()

    def refresh(self) -> None:
        """Read the facts and the projects."""

        def read(connection: Any) -> tuple[list[Memory], list[Folder]]:
            return memories.memories(connection), conversations.folders(connection)

        def show(loaded: tuple[list[Memory], list[Folder]]) -> None:
            self._memories, self._folders = loaded
            when_released(self, self._show)

        self._watch(read, show)

    def _show(self) -> None:
        clear(self._rows)
        words = self.search.text().casefold().split()
        matches = [memory for memory in self._memories if all(word in memory.text.casefold() for word in words)]
        for memory in matches[:_MAX_ROWS]:
            self._rows.addWidget(self._row(memory))
        if not matches:
            nothing = self.tr("Nothing is remembered yet.") if not self._memories else self.tr("Nothing found.")
            self._rows.addWidget(label(nothing, "muted", wrap=True))
        if len(matches) > _MAX_ROWS:
            more = self.tr("{n} more: search for them").format(n=formatted.whole(len(matches) - _MAX_ROWS))
            self._rows.addWidget(label(more, "small"))

    def _row(self, memory: Memory) -> QWidget:
        text = QLineEdit(memory.text, maxLength=MAX_MEMORY_CHARS)
        text.setCursorPosition(0)
        when = QLocale().toString(
            QDateTime.fromSecsSinceEpoch(int(memory.created_s)), QLocale.FormatType.ShortFormat
        )
        text.setToolTip(plain_tip(self.tr("Saved {when}").format(when=when)))
        where = ComboBox()
        where.addItem(self.tr("Everywhere"), None)
        for folder in self._folders:
            where.addItem(folder.name, folder.id)
        where.setCurrentIndex(max(0, where.findData(memory.folder_id)))
        stored = [memory]
        forget = IconButton(self._services.theme, "trash", "", lambda: self._forget(stored[-1]))

        def name() -> None:
            words = stored[-1].text
            text.setAccessibleName(self.tr("Fact: {text}").format(text=words))
            where.setAccessibleName(self.tr("Where it is used: {text}").format(text=words))
            forget.set_words(self.tr("Forget: {text}").format(text=words))

        def change() -> None:
            new = replace(memory, text=text.text(), folder_id=where.currentData())
            if new != stored[-1]:
                stored.append(new)
                self._change(new)
                name()

        text.editingFinished.connect(change)
        where.activated.connect(lambda _: change())
        name()
        holder = QWidget()
        line = row(text, where, forget, spacing=8, grow=0)
        holder.setLayout(line)
        return holder

    def _change(self, new: Memory) -> None:
        """Store what a row shows. The rows stay: the user may be writing in another one by now."""
        self._memories = [new if each.id == new.id else each for each in self._memories]

        def store(connection: Any) -> None:
            memories.change_memory(connection, new.id, new.text, new.folder_id)

        self._watch(store, lambda _: None)

    def _add(self) -> None:
        text = self.new.text()
        if text.strip():
            self.new.clear()
            self._do(memories.add_memory, text)

    def _forget(self, memory: Memory) -> None:
        def undo() -> None:
            self._do(memories.add_memory, memory.text, memory.folder_id)

        self._do(memories.remove_memory, memory.id)
        self.banner.notify(self.tr("The fact was deleted."), "info", (self.tr("Undo"), undo))
        for control in self.banner.findChildren(QPushButton):
            control.setAutoDefault(False)  # Enter in a field must not press it

    def _choose_file(self) -> None:
        start = str(Path.home() / "tessera-memory.json")
        file_dialog(self, self.tr("Export the memory"), self._export, start=start, saves=True)

    def _export(self, file: str) -> None:
        names = {folder.id: folder.name for folder in self._folders}
        rows = [
            {"text": memory.text, "project": names.get(memory.folder_id or 0), "saved": memory.created_s}
            for memory in self._memories
        ]
        raw = json.dumps({"memory": rows}, indent=1, ensure_ascii=False).encode()

        def done(_: object) -> None:
            self.banner.notify(self.tr("Exported to {file}").format(file=file), "ok")

        self._services.background.run(
            partial(write_atomically, Path(file), raw, mode=0o600), done, self._failed, self
        )

    def _do(self, function: Callable[..., object], *arguments: object) -> None:
        self._watch(lambda connection: function(connection, *arguments), lambda _: self.refresh())

    def _watch(self, function: Callable[[Any], Any], done: Callable[[Any], object]) -> None:
        future = self._services.store.submit(function)
        self._services.background.watch(future, done, self._failed, self)

    def _failed(self, error: Exception) -> None:
        limits = self.tr("A fact has 1 to {n} characters, and {most} facts can be stored.")
        words = limits.format(n=MAX_MEMORY_CHARS, most=number(MAX_MEMORIES))
        self.banner.notify(words if isinstance(error, MemoryRefused) else error_message(error), "bad")
        self.refresh()


class UsedMemory(QFrame):
    """Shows which remembered facts the model received for an answer."""

    def __init__(self, services: AppContext, facts: Sequence[str]) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "note")
        joined = " · ".join(facts)
        shown = joined if len(joined) <= _USED_CHARS else joined[:_USED_CHARS] + "…"
        text = label(self.tr("Used memory: {facts}").format(facts=shown), "small", wrap=True)
        text.setToolTip(plain_tip("\n".join(facts)[:_TOOLTIP_CHARS]))
        edit = button(self.tr("Memory…"), lambda: MemoryDialog(services, self.window()).open(), "link")
        line = row(text, edit, spacing=8, margins=(16, 8, 16, 8), grow=0)
        self.setLayout(line)
