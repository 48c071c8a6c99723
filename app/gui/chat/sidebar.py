"""The list of conversations: pinned, folders, the rest; search over everything that was said."""

from functools import partial
from typing import Any

from PySide6.QtCore import QModelIndex, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QFrame, QInputDialog, QLineEdit, QListView, QMenu, QTreeView

from app.db import conversations
from app.db.records import Conversation, Folder, Hit
from app.db.search import search
from app.gui.services import Services
from app.gui.widgets.basics import IconButton, label, row, stack

ID = Qt.ItemDataRole.UserRole + 1
MESSAGE = Qt.ItemDataRole.UserRole + 2
FOLDER = Qt.ItemDataRole.UserRole + 3
_SEARCH_DELAY_MS = 120


class Sidebar(QFrame):
    """Emits what the user chose; reads and writes the store itself."""

    chosen = Signal(int, int)  # conversation, message (0: none)
    new_pressed = Signal()
    trashed = Signal(list)
    export_pressed = Signal(int)
    import_pressed = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        look = services.look
        self._current = 0
        self._search = QLineEdit()
        self._search.setPlaceholderText(self.tr("Search chats"))
        self._search.setAccessibleName(self.tr("Search all chats"))
        self._search.setClearButtonEnabled(True)
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(_SEARCH_DELAY_MS)
        self._delay.timeout.connect(self._on_search)
        self._search.textChanged.connect(self._delay.start)
        self.model = QStandardItemModel(self)
        self.tree = QTreeView()
        self.tree.setModel(self.model)
        self.tree.setHeaderHidden(True)
        self.tree.setIndentation(12)
        self.tree.setRootIsDecorated(False)
        self.tree.setEditTriggers(QTreeView.EditTrigger.NoEditTriggers)
        self.tree.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.tree.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.tree.setAccessibleName(self.tr("Chats"))
        self.tree.customContextMenuRequested.connect(self._show_menu)
        self.tree.activated.connect(self._on_chosen)
        self.tree.clicked.connect(self._on_chosen)
        self.hits_model = QStandardItemModel(self)
        self.hits = QListView()
        self.hits.setModel(self.hits_model)
        self.hits.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.hits.setWordWrap(True)
        self.hits.setAccessibleName(self.tr("Messages found"))
        self.hits.clicked.connect(self._on_chosen)
        self.hits.activated.connect(self._on_chosen)
        self.hits.hide()
        self._note = label("", "small", wrap=True)
        self._note.hide()
        more = IconButton(look, "more", self.tr("More"), self._show_more)
        self._more = more
        new = IconButton(look, "plus", self.tr("New chat (Ctrl+N)"), self.new_pressed.emit, colour="text")
        self.setLayout(
            stack(
                row(label(self.tr("Chats"), "strong"), 1, more, new, spacing=2),
                self._search,
                self._note,
                self.tree,
                self.hits,
                margins=(12, 12, 12, 12),
            )
        )
        self.setMinimumWidth(200)
        self.refresh()

    def focus_search(self) -> None:
        """Put the cursor into the search field."""
        self._search.setFocus()
        self._search.selectAll()

    def select(self, conversation_id: int) -> None:
        """Mark the open conversation."""
        self._current = conversation_id
        self._mark_current()

    def refresh(self) -> None:
        """Read the list anew."""

        def load(connection: Any) -> tuple[list[Conversation], list[Folder]]:
            return conversations.listing(connection), conversations.folders(connection)

        self._watch(self._services.store.submit(load), self._show)

    def _show(self, loaded: tuple[list[Conversation], list[Folder]]) -> None:
        rows, folders = loaded
        collapsed = self._collapsed()
        self.model.clear()
        groups: dict[int | str, QStandardItem] = {}
        pinned = [row for row in rows if row.pinned]
        if pinned:
            groups["pinned"] = self._group(self.tr("Pinned"), "pinned")
        for folder in folders:
            groups[folder.id] = self._group(folder.name, folder.id)
        if groups:
            groups["rest"] = self._group(self.tr("All chats"), "rest")
        for row_ in rows:
            item = QStandardItem(row_.title or self.tr("Untitled"))
            item.setToolTip(row_.title)
            item.setData(row_.id, ID)
            key: int | str = "pinned" if row_.pinned else row_.folder_id or "rest"
            groups.get(key, self.model.invisibleRootItem()).appendRow(item)
        for key, group in groups.items():
            self.tree.setExpanded(group.index(), key not in collapsed)
        self._note.setText(self.tr("Your chats will appear here."))
        self._note.setVisible(not rows)
        self._mark_current()

    def _collapsed(self) -> set[int | str]:
        found: set[int | str] = set()
        for position in range(self.model.rowCount()):
            index = self.model.index(position, 0)
            if index.data(FOLDER) is not None and not self.tree.isExpanded(index):
                found.add(index.data(FOLDER))
        return found

    def _group(self, name: str, key: int | str) -> QStandardItem:
        item = QStandardItem(name)
        item.setData(key, FOLDER)
        item.setSelectable(False)
        item.setFont(self._services.look.font("small", strong=True))
        item.setForeground(self._services.look.tokens.colour("muted"))
        self.model.appendRow(item)
        return item

    def _mark_current(self) -> None:
        found = self.model.match(
            self.model.index(0, 0), ID, self._current, 1, Qt.MatchFlag.MatchExactly | Qt.MatchFlag.MatchRecursive
        )
        if found and self._current:
            self.tree.setCurrentIndex(found[0])
        else:
            self.tree.setCurrentIndex(QModelIndex())
            self.tree.clearSelection()

    def _on_chosen(self, index: QModelIndex) -> None:
        if index.data(ID):
            self.chosen.emit(index.data(ID), index.data(MESSAGE) or 0)
        elif index.data(FOLDER) is not None:
            self.tree.setExpanded(index, not self.tree.isExpanded(index))

    def _on_search(self) -> None:
        text = self._search.text().strip()
        self.hits.setVisible(bool(text))
        self.tree.setVisible(not text)
        if not text:
            self._note.setVisible(self.model.rowCount() == 0)
            self._note.setText(self.tr("Your chats will appear here."))
            return
        self._watch(
            self._services.store.submit(search, text),
            lambda hits: self._show_hits(hits) if text == self._search.text().strip() else None,
        )

    def _show_hits(self, hits: list[Hit]) -> None:
        self.hits_model.clear()
        for hit in hits:
            excerpt = hit.excerpt.replace("\x02", "").replace("\x03", "").replace("\n", " ")
            item = QStandardItem(f"{hit.title or self.tr('Untitled')}\n{excerpt}")
            item.setData(hit.conversation_id, ID)
            item.setData(hit.message_id, MESSAGE)
            self.hits_model.appendRow(item)
        self._note.setText(self.tr("Nothing found.") if not hits else "")
        self._note.setVisible(not hits)

    def _show_more(self) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(self.tr("New folder…"), self._new_folder)
        menu.addAction(self.tr("Import chats…"), self.import_pressed.emit)
        menu.popup(self._more.mapToGlobal(QPoint(0, self._more.height())))

    def _show_menu(self, position: QPoint) -> None:
        index = self.tree.indexAt(position)
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if index.data(ID):
            self._fill_chat_menu(menu, index)
        elif isinstance(index.data(FOLDER), int):
            folder_id = index.data(FOLDER)
            menu.addAction(self.tr("Rename…"), lambda: self._rename_folder(folder_id, index.data()))
            menu.addAction(
                self.tr("Remove folder (chats stay)"), lambda: self._do(conversations.remove_folder, folder_id)
            )
        else:
            menu.addAction(self.tr("New folder…"), self._new_folder)
        menu.popup(self.tree.viewport().mapToGlobal(position))

    def _fill_chat_menu(self, menu: QMenu, index: QModelIndex) -> None:
        number, title = index.data(ID), index.data()
        in_pinned = index.parent().data(FOLDER) == "pinned"
        menu.addAction(self.tr("Rename…"), lambda: self._rename(number, title))
        menu.addAction(
            self.tr("Unpin") if in_pinned else self.tr("Pin"),
            lambda: self._do(conversations.update, number, pinned=not in_pinned),
        )
        move = menu.addMenu(self.tr("Move to"))
        move.addAction(self.tr("No folder"), lambda: self._do(conversations.update, number, folder_id=None))
        for position in range(self.model.rowCount()):
            group = self.model.index(position, 0)
            key = group.data(FOLDER)
            if isinstance(key, int):
                move.addAction(group.data(), partial(self._do, conversations.update, number, folder_id=key))
        menu.addAction(self.tr("Export…"), lambda: self.export_pressed.emit(number))
        menu.addSeparator()
        menu.addAction(self.tr("Delete"), lambda: self.trash(number))

    def trash(self, conversation_id: int) -> None:
        """Put a conversation into the trash."""
        self._do(conversations.trash, [conversation_id])
        self.trashed.emit([conversation_id])

    def _rename(self, conversation_id: int, title: str) -> None:
        self._ask(
            self.tr("Rename chat"),
            title,
            lambda text: self._do(conversations.update, conversation_id, title=text),
        )

    def _rename_folder(self, folder_id: int, name: str) -> None:
        self._ask(
            self.tr("Rename folder"), name, lambda text: self._do(conversations.rename_folder, folder_id, text)
        )

    def _new_folder(self) -> None:
        self._ask(self.tr("New folder"), "", lambda text: self._do(conversations.create_folder, text))

    def _ask(self, title: str, text: str, on_text: Any) -> None:
        dialog = QInputDialog(self)
        dialog.setWindowTitle(title)
        dialog.setLabelText(self.tr("Name:"))
        dialog.setTextValue(text)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.textValueSelected.connect(lambda value: on_text(value.strip()) if value.strip() else None)
        dialog.open()

    def _do(self, function: Any, *args: Any, **kwargs: Any) -> None:
        self._watch(self._services.store.submit(function, *args, **kwargs), lambda _: self.refresh())

    def _watch(self, future: Any, on_done: Any) -> None:
        self._services.background.watch(future, on_done, None, self)
