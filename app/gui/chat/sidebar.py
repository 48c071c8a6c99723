"""The conversation list: pinned, folders, the rest, and full-text search."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from PySide6.QtCore import QDateTime, QItemSelectionModel, QModelIndex, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QFrame, QListView, QSizePolicy, QToolButton

from app.db import conversations
from app.db.conversations import search
from app.db.records import Conversation, Folder, Hit
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.chat_list_view import EXCERPT, FOLDER, ID, MESSAGE, ChatTree, HitRows
from app.gui.widgets.basics import (
    IconButton,
    framed,
    label,
    literal,
    row,
    search_field,
    stack,
    when_released,
)
from app.gui.widgets.popups import Menu

_SEARCH_DELAY_MS = 120
_WEEK, _MONTH = 7, 30


def _age(created_s: float) -> str:
    """Age group of a chat by its local creation date; older than the last month, its year."""
    created = datetime.fromtimestamp(created_s, UTC).astimezone().date()
    days = (datetime.now(UTC).astimezone().date() - created).days
    if days <= 0:
        return "today"
    return "yesterday" if days == 1 else "week" if days < _WEEK else "month" if days < _MONTH else str(created.year)


def _by_date(chat: Conversation) -> float:
    """Sorts older chats by date. Those of today, pinned ones and folders keep the order of their last use."""
    own = isinstance(_group_of(chat), int) or _group_of(chat) in {"pinned", "today"}
    return -float("inf") if own else -chat.created_s


def _group_of(chat: Conversation) -> int | str:
    if chat.archived:
        return "archived"
    return "pinned" if chat.pinned else chat.folder_id or _age(chat.created_s)


class Sidebar(QFrame):
    """Emits the user's choices. Reads and writes the store itself."""

    chosen = Signal(int, int)  # conversation id, message id (0: none)
    new_pressed = Signal()
    trashed = Signal(list)
    archived = Signal(list)
    export_pressed = Signal(int, str)  # conversation id, title
    import_pressed = Signal()
    export_all_pressed = Signal()
    export_many_pressed = Signal(list)  # conversation ids
    documents_pressed = Signal()
    begun_in = Signal(int)  # folder id
    project_pressed = Signal(int)  # folder id
    counted = Signal(int)  # number of chats

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        theme = services.theme
        self._current = 0
        self._loaded: tuple[list[Conversation], list[Folder]] = ([], [])
        self._looks: object = None
        self._search = search_field(self.tr("Search chats"), self.tr("Search all chats"))
        self._delay = QTimer(self, singleShot=True, interval=_SEARCH_DELAY_MS)
        self._delay.timeout.connect(self._on_search)
        self._search.textChanged.connect(self._delay.start)
        self.model = QStandardItemModel(self)
        self.model.itemChanged.connect(self._on_renamed)
        self.tree = ChatTree(theme)
        self.tree.setModel(self.model)
        delete = QShortcut(QKeySequence(QKeySequence.StandardKey.Delete), self.tree)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self._trash_selected)
        self.tree.setAccessibleName(self.tr("Chats"))
        self.tree.itemDelegate().closeEditor.connect(lambda *_: self.refresh())
        self.tree.menu_wanted.connect(self._show_menu)
        self.tree.activated.connect(self._on_chosen)
        self.tree.clicked.connect(self._on_chosen)
        self.hits_model = QStandardItemModel(self)
        self.hits = QListView()
        self.hits.setModel(self.hits_model)
        self.hits.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        for view in (self.tree, self.hits):
            view.setProperty("kind", "rows")
        self.hits.setItemDelegate(HitRows(theme, self.hits))
        self.hits.setMouseTracking(True)
        self.hits.setAccessibleName(self.tr("Messages found"))
        self.hits.clicked.connect(self._on_chosen)
        self.hits.activated.connect(self._on_chosen)
        self.hits.hide()
        self._note = label("", "small", wrap=True)
        self._note.hide()
        more = IconButton(theme, "more", self.tr("More"), self._show_more)
        self._more = more
        new = IconButton(theme, "plus", self.tr("New chat (Ctrl+N)"), self.new_pressed.emit, colour="text")
        self.setLayout(
            stack(
                row(label(self.tr("Chats"), "strong"), 1, more, new, spacing=2),
                self._search,
                self._note,
                self.tree,
                self.hits,
                self._selection(),
                self._documents(),
                margins=(12, 12, 12, 12),
            )
        )
        self.setMinimumWidth(200)
        # The model of the selection stays; its rows come and go.
        self.tree.selectionModel().selectionChanged.connect(lambda *_: self._show_selection())
        self.refresh()

    def _selection(self) -> QFrame:
        theme = self._services.theme
        self._count = label("", "small")
        away = IconButton(theme, "archive", self.tr("Archive the selected chats"), self._archive_selected)
        export = IconButton(theme, "download", self.tr("Export the selected chats…"), self._export_selected)
        delete = IconButton(theme, "trash", self.tr("Delete the selected chats"), self._trash_selected)
        done = IconButton(theme, "close", self.tr("End the selection"), self._end_selection)
        self._with_selection = (away, export, delete)
        bar = framed("note", row(self._count, 1, *self._with_selection, done, spacing=2, margins=(8, 2, 2, 2)))
        bar.hide()
        self._bar = bar
        return bar

    def _show_selection(self) -> None:
        count = len(self._selected())
        picking = self.tree.selectionMode() == ChatTree.SelectionMode.MultiSelection
        self._bar.setVisible(picking or count > 1)
        self._count.setText(self.tr("{n} selected").format(n=formatted.whole(count)))
        for each in self._with_selection:
            each.setEnabled(count > 0)

    def _begin_selection(self, number: int) -> None:
        """Start multiple selection: a click adds a chat to the selection or removes it."""
        self.tree.setSelectionMode(ChatTree.SelectionMode.MultiSelection)
        self.tree.clearSelection()
        self._mark([number])
        self._show_selection()

    def _end_selection(self) -> None:
        self.tree.setSelectionMode(ChatTree.SelectionMode.ExtendedSelection)
        self._mark_current()
        self._show_selection()

    def _archive_selected(self) -> None:
        ids = self._selected()
        self._end_selection()
        self._archive(ids, away=True)

    def _export_selected(self) -> None:
        self.export_many_pressed.emit(self._selected())

    def _documents(self) -> QToolButton:
        """The button that opens the Documents page."""
        theme = self._services.theme
        control = QToolButton()
        control.setProperty("kind", "entry")
        control.setText(f" {self.tr('Documents')}")
        control.setAccessibleName(self.tr("Documents"))
        control.setToolTip(self.tr("Folders that chats can answer from"))
        control.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        control.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        control.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        control.clicked.connect(lambda _checked=False: self.documents_pressed.emit())

        def paint() -> None:
            control.setIcon(theme.icon("folder", "muted"))

        theme.changed.connect(paint)
        paint()
        return control

    def focus_search(self) -> None:
        self._search.setFocus()
        self._search.selectAll()

    def select(self, conversation_id: int) -> None:
        """Select the open conversation. A new one is loaded first."""
        if (
            conversation_id != self._current
            and self.tree.selectionMode() != ChatTree.SelectionMode.ExtendedSelection
        ):
            self.tree.setSelectionMode(ChatTree.SelectionMode.ExtendedSelection)
        self._current = conversation_id
        if not self._mark_current() and conversation_id:
            self.refresh()

    def step(self, by: int) -> None:
        """Open the chat `by` rows below the open one."""
        groups = [self.model.item(number) for number in range(self.model.rowCount())]
        ids = [group.child(n).data(ID) for group in groups for n in range(group.rowCount())]
        place = ids.index(self._current) + by if self._current in ids else 0
        if 0 <= place < len(ids):
            self.chosen.emit(ids[place], 0)

    def refresh(self) -> None:
        def load(connection: Any) -> tuple[list[Conversation], list[Folder]]:
            return conversations.listing(connection), conversations.folders(connection)

        self._watch(self._services.store.submit(load), self._on_loaded)

    def _on_loaded(self, loaded: tuple[list[Conversation], list[Folder]]) -> None:
        """Rebuild the rows only if they changed: rebuilding would lose the selection and a click in progress."""
        rows, folders = self._loaded = sorted(loaded[0], key=_by_date), loaded[1]
        self.counted.emit(len(rows))
        looks = (
            [(_group_of(chat), chat.id, chat.title) for chat in rows],
            [(folder.id, folder.name) for folder in folders],
        )
        if looks != self._looks:
            self._looks = looks
            when_released(self, self._show)

    def _show(self) -> None:
        if self.tree.is_editing:  # new rows would end it; when it ends, they are loaded again
            self._looks = None
            return
        rows, folders = self._loaded
        marked, before, collapsed = self._selected(), self._groups_shown(), self._collapsed()
        self.model.clear()
        archived: list[QStandardItem] = []
        groups: dict[int | str, QStandardItem] = {}
        if any(row.pinned and not row.archived for row in rows):
            groups["pinned"] = self._group(self.tr("Pinned"), "pinned")
        for folder in folders:
            groups[folder.id] = self._group(folder.name, folder.id)
        for row_ in rows:
            item = QStandardItem(row_.title or self.tr("Untitled"))
            item.setToolTip(formatted.plain_tip(row_.title))
            item.setData(row_.id, ID)
            key = _group_of(row_)
            if key == "archived":
                archived.append(item)
                continue
            if key not in groups:
                groups[key] = self._group(self._age_title(str(key)), key)
            groups[key].appendRow(item)
        if archived:
            groups["archived"] = self._group(self.tr("Archived"), "archived")
            groups["archived"].appendRows(archived)
        if "archived" not in before:
            collapsed.add("archived")  # collapsed until the user opens it
        for key, group in groups.items():
            self.tree.setExpanded(group.index(), key not in collapsed)
        self._note.setText(self.tr("Your chats will appear here."))
        self._note.setVisible(not rows)
        self._mark_again(marked)
        folder_id, self._named_next = self._named_next, 0
        self._edit_name(folder_id, FOLDER)

    def _age_title(self, age: str) -> str:
        texts = {
            "today": self.tr("Today"),
            "yesterday": self.tr("Yesterday"),
            "week": self.tr("Last 7 days"),
            "month": self.tr("Last 30 days"),
        }
        return texts.get(age, age)

    def _groups_shown(self) -> set[int | str]:
        return {self.model.index(position, 0).data(FOLDER) for position in range(self.model.rowCount())}

    def _collapsed(self) -> set[int | str]:
        keys: set[int | str] = set()
        for position in range(self.model.rowCount()):
            index = self.model.index(position, 0)
            if index.data(FOLDER) is not None and not self.tree.isExpanded(index):
                keys.add(index.data(FOLDER))
        return keys

    def _group(self, name: str, key: int | str) -> QStandardItem:
        item = QStandardItem(name)
        item.setData(key, FOLDER)
        item.setSelectable(False)
        item.setEditable(isinstance(key, int))
        self.model.appendRow(item)
        return item

    def _mark_current(self) -> bool:
        matches = self.model.match(
            self.model.index(0, 0), ID, self._current, 1, Qt.MatchFlag.MatchExactly | Qt.MatchFlag.MatchRecursive
        )
        if matches and self._current and self.tree.isExpanded(matches[0].parent()):
            self.tree.setCurrentIndex(matches[0])
        else:
            self.tree.setCurrentIndex(QModelIndex())
            self.tree.clearSelection()
        return bool(matches)

    def _mark_again(self, marked: list[int]) -> None:
        """Restore the selection after the rows were rebuilt."""
        picking = self.tree.selectionMode() == ChatTree.SelectionMode.MultiSelection
        if not picking:
            self._mark_current()
        if picking or len(marked) > 1:
            self._mark(marked)
        self._show_selection()

    def _mark(self, conversation_ids: list[int]) -> None:
        """Select several conversations, as with Ctrl and the mouse."""
        flags = Qt.MatchFlag.MatchExactly | Qt.MatchFlag.MatchRecursive
        for number in conversation_ids:
            for index in self.model.match(self.model.index(0, 0), ID, number, 1, flags):
                self.tree.selectionModel().select(index, QItemSelectionModel.SelectionFlag.Select)

    def _on_chosen(self, index: QModelIndex) -> None:
        if QGuiApplication.keyboardModifiers() & (
            Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
        ):
            return  # multiple selection, for deleting several
        if index.data(ID) and self.tree.selectionMode() == ChatTree.SelectionMode.MultiSelection:
            return
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
        """Show one row per chat: its newest hit, its date, and the number of further hits."""
        self.hits_model.clear()
        counts = Counter(hit.conversation_id for hit in hits)
        created = {chat.id: chat.created_s for chat in self._loaded[0]}
        newest = {hit.conversation_id: hit for hit in reversed(hits)}
        for hit in (newest[number] for number in counts):
            marked = hit.excerpt.replace("\n", " ")
            if hit.conversation_id in created:
                day = QDateTime.fromSecsSinceEpoch(int(created[hit.conversation_id])).date()
                marked = f"{formatted.date(day)} · {marked}"
            if counts[hit.conversation_id] > 1:
                more = self.tr("{n} places").format(n=formatted.whole(counts[hit.conversation_id]))
                marked = f"{more} · {marked}"
            plain = marked.replace("\x02", "").replace("\x03", "")
            item = QStandardItem(f"{hit.title or self.tr('Untitled')}\n{plain}")
            item.setData(marked, EXCERPT)
            item.setData(hit.conversation_id, ID)
            item.setData(hit.message_id, MESSAGE)
            self.hits_model.appendRow(item)
        self._note.setText(self.tr("Nothing found.") if not hits else "")
        self._note.setVisible(not hits)

    def _show_more(self) -> None:
        menu = Menu(self._services.theme, self)
        menu.add("folder", self.tr("New folder"), self._new_folder)
        menu.add("upload", self.tr("Import chats…"), self.import_pressed.emit)
        menu.add("download", self.tr("Export all chats…"), self.export_all_pressed.emit)
        menu.below(self._more)

    def _show_menu(self, position: QPoint) -> None:
        index = self.tree.indexAt(position)
        menu = Menu(self._services.theme, self)
        if index.data(ID):
            self._fill_chat_menu(menu, index)
        elif isinstance(index.data(FOLDER), int):
            folder_id = index.data(FOLDER)
            menu.add("plus", self.tr("New chat here"), lambda: self.begun_in.emit(folder_id))
            menu.add(
                "sliders",
                self.tr("Project: instructions, folder, tools…"),
                lambda: self.project_pressed.emit(folder_id),
            )
            menu.add("edit", self.tr("Rename"), lambda: self._edit_name(folder_id, FOLDER))
            menu.add(
                "trash",
                self.tr("Remove folder (chats stay)"),
                lambda: self._do(conversations.remove_folder, folder_id),
            )
        else:
            menu.add("folder", self.tr("New folder"), self._new_folder)
        menu.popup(self.tree.viewport().mapToGlobal(position))

    def _fill_chat_menu(self, menu: Menu, index: QModelIndex) -> None:
        number, title = index.data(ID), index.data()
        in_pinned = index.parent().data(FOLDER) == "pinned"
        menu.add("edit", self.tr("Rename"), lambda: self._edit_name(number))
        menu.add(
            "pin",
            self.tr("Unpin") if in_pinned else self.tr("Pin"),
            lambda: self._do(conversations.update, number, pinned=not in_pinned),
        )
        move = Menu(self._services.theme, menu, self.tr("Move to"))
        move.setIcon(self._services.theme.icon("folder", "muted"))
        menu.addMenu(move)
        move.addAction(self.tr("No folder"), lambda: self._do(conversations.update, number, folder_id=None))
        for position in range(self.model.rowCount()):
            group = self.model.index(position, 0)
            key = group.data(FOLDER)
            if isinstance(key, int):
                move.addAction(
                    literal(group.data()), partial(self._do, conversations.update, number, folder_id=key)
                )
        menu.add("download", self.tr("Export…"), lambda: self.export_pressed.emit(number, title))
        menu.add("check", self.tr("Select several"), lambda: self._begin_selection(number))
        away = index.parent().data(FOLDER) == "archived"
        chosen = marked if number in (marked := self._selected()) else [number]
        menu.add(
            "upload" if away else "archive",
            self.tr("Move out of the archive") if away else self.tr("Archive"),
            lambda: self._archive(chosen, away=not away),
        )
        menu.addSeparator()
        if number in marked and len(marked) > 1:
            words = self.tr("Delete {n} chats").format(n=formatted.whole(len(marked)))
            menu.add("trash", words, lambda: self.trash(marked), "bad")
        else:
            menu.add("trash", self.tr("Delete"), lambda: self.trash([number]), "bad")

    def _selected(self) -> list[int]:
        return [index.data(ID) for index in self.tree.selectionModel().selectedRows() if index.data(ID)]

    def _trash_selected(self) -> None:
        ids = self._selected()
        if ids:
            self._end_selection()
            self.trash(ids)

    def trash(self, conversation_ids: list[int]) -> None:
        self._do(conversations.trash, conversation_ids, then=lambda: self.trashed.emit(conversation_ids))

    def unarchive(self, conversation_ids: list[int]) -> None:
        """Move conversations out of the archive."""
        self._do(conversations.archive, conversation_ids, away=False)

    def _archive(self, conversation_ids: list[int], *, away: bool) -> None:
        def then() -> None:
            if away and self._current in conversation_ids:
                self.new_pressed.emit()  # first: opening a chat hides the banner with "Undo"
            if away:
                self.archived.emit(conversation_ids)

        self._do(conversations.archive, conversation_ids, away=away, then=then)

    def _edit_name(self, key: int, role: int = ID) -> None:
        """Edit the name of a chat or, with the role FOLDER, of a folder in its row."""
        flags = Qt.MatchFlag.MatchExactly | Qt.MatchFlag.MatchRecursive
        for index in self.model.match(self.model.index(0, 0), role, key, 1, flags):
            self.tree.setCurrentIndex(index)
            self.tree.edit(index)

    def _on_renamed(self, item: QStandardItem) -> None:
        """Save the edited name of a chat or folder. An empty name changes nothing."""
        name, number = item.text().strip(), item.data(ID)
        chats, folders = self._loaded
        key = number or item.data(FOLDER)
        old_names = (
            {chat.id: chat.title for chat in chats} if number else {folder.id: folder.name for folder in folders}
        )
        if not name or name == old_names.get(key, name):
            self._looks = None  # show the stored name again
            self.refresh()
        elif number:
            self._do(conversations.update, number, title=name)
        else:
            self._do(conversations.rename_folder, key, name)

    def _new_folder(self) -> None:
        def made(folder: Folder) -> None:
            self._named_next = folder.id
            self.refresh()

        self._watch(self._services.store.submit(conversations.create_folder, self.tr("New folder")), made)

    _named_next = 0  # id of a new folder whose name is edited once its row exists

    def _do(self, function: Any, *args: Any, then: Callable[[], object] | None = None, **kwargs: Any) -> None:
        """Change the store, load the list again and call `then`. The window reports a failure."""

        def done(_: object) -> None:
            self.refresh()
            if then is not None:
                then()

        self._watch(self._services.store.submit(function, *args, **kwargs), done)

    def _watch(self, future: Any, on_done: Any) -> None:
        self._services.background.watch(future, on_done, None, self)
