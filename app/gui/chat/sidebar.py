"""The conversation list: pinned, folders, the rest, and full-text search."""

from datetime import date
from functools import partial
from typing import Any

from PySide6.QtCore import (
    QItemSelectionModel,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    QRect,
    QSize,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import (
    QFont,
    QGuiApplication,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QShortcut,
    QStandardItem,
    QStandardItemModel,
    QTextCharFormat,
    QTextLayout,
)
from PySide6.QtWidgets import (
    QFrame,
    QInputDialog,
    QListView,
    QSizePolicy,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolButton,
    QTreeView,
    QWidget,
)

from app.db import conversations
from app.db.conversations import search
from app.db.records import Conversation, Folder, Hit
from app.gui.app_context import Services
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, label, row, search_field, stack, when_released
from app.gui.widgets.popups import Menu

_SEARCH_DELAY_MS = 120
_WEEK, _MONTH = 7, 30


def _age(created_s: float) -> str:
    """The age group of a chat by the local date on which it was created; before the last month its year."""
    created = date.fromtimestamp(created_s)  # noqa: DTZ012 - local dates
    days = (date.today() - created).days  # noqa: DTZ011 - local dates
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
    export_pressed = Signal(int, str)  # conversation id, title
    import_pressed = Signal()
    export_all_pressed = Signal()
    documents_pressed = Signal()
    begun_in = Signal(int)  # folder id
    project_pressed = Signal(int)  # folder id

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        theme = services.theme
        self._current = 0
        self._loaded: tuple[list[Conversation], list[Folder]] = ([], [])
        self._looks: object = None
        self._search = search_field(self.tr("Search chats"), self.tr("Search all chats"))
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(_SEARCH_DELAY_MS)
        self._delay.timeout.connect(self._on_search)
        self._search.textChanged.connect(self._delay.start)
        self.model = QStandardItemModel(self)
        self.tree = ChatTree(theme)
        self.tree.setModel(self.model)
        delete = QShortcut(QKeySequence(QKeySequence.StandardKey.Delete), self.tree)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self._trash_selected)
        self.tree.setAccessibleName(self.tr("Chats"))
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
                self._documents(),
                margins=(12, 12, 12, 12),
            )
        )
        self.setMinimumWidth(200)
        self.refresh()

    def _documents(self) -> QToolButton:
        """The button that opens the Documents page."""
        theme = self._services.theme
        made = QToolButton()
        made.setProperty("kind", "entry")
        made.setText(f" {self.tr('Documents')}")
        made.setAccessibleName(self.tr("Documents"))
        made.setToolTip(self.tr("Folders that chats can answer from"))
        made.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        made.clicked.connect(lambda _checked=False: self.documents_pressed.emit())

        def paint() -> None:
            made.setIcon(theme.icon("folder", "muted"))

        theme.changed.connect(paint)
        paint()
        return made

    def focus_search(self) -> None:
        """Focus the search field."""
        self._search.setFocus()
        self._search.selectAll()

    def select(self, conversation_id: int) -> None:
        """Select the open conversation. A new one is loaded first."""
        self._current = conversation_id
        if not self._mark_current() and conversation_id:
            self.refresh()

    def refresh(self) -> None:
        """Reload the list."""

        def load(connection: Any) -> tuple[list[Conversation], list[Folder]]:
            return conversations.listing(connection), conversations.folders(connection)

        self._watch(self._services.store.submit(load), self._on_loaded)

    def _on_loaded(self, loaded: tuple[list[Conversation], list[Folder]]) -> None:
        """Rebuild the rows only if they changed: rebuilding would lose the selection and a click in progress."""
        rows, folders = self._loaded = sorted(loaded[0], key=_by_date), loaded[1]
        looks = (
            [(_group_of(chat), chat.id, chat.title) for chat in rows],
            [(folder.id, folder.name) for folder in folders],
        )
        if looks != self._looks:
            self._looks = looks
            when_released(self, self._show)

    def _show(self) -> None:
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
            item.setToolTip(row_.title)
            item.setData(row_.id, ID)
            key = _group_of(row_)
            if key == "archived":
                archived.append(item)
                continue
            if key not in groups:
                groups[key] = self._group(self._age_words(str(key)), key)
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
        self._mark_current()
        if len(marked) > 1:
            self._mark(marked)

    def _age_words(self, age: str) -> str:
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
        self.model.appendRow(item)
        return item

    def _mark_current(self) -> bool:
        found = self.model.match(
            self.model.index(0, 0), ID, self._current, 1, Qt.MatchFlag.MatchExactly | Qt.MatchFlag.MatchRecursive
        )
        if found and self._current and self.tree.isExpanded(found[0].parent()):
            self.tree.setCurrentIndex(found[0])
        else:
            self.tree.setCurrentIndex(QModelIndex())
            self.tree.clearSelection()
        return bool(found)

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
            marked = hit.excerpt.replace("\n", " ")
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
        menu.add("folder", self.tr("New folder…"), self._new_folder)
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
            menu.add("edit", self.tr("Rename…"), lambda: self._rename_folder(folder_id, index.data()))
            menu.add(
                "trash",
                self.tr("Remove folder (chats stay)"),
                lambda: self._do(conversations.remove_folder, folder_id),
            )
        else:
            menu.add("folder", self.tr("New folder…"), self._new_folder)
        menu.popup(self.tree.viewport().mapToGlobal(position))

    def _fill_chat_menu(self, menu: Menu, index: QModelIndex) -> None:
        number, title = index.data(ID), index.data()
        in_pinned = index.parent().data(FOLDER) == "pinned"
        menu.add("edit", self.tr("Rename…"), lambda: self._rename(number, title))
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
                move.addAction(group.data(), partial(self._do, conversations.update, number, folder_id=key))
        menu.add("download", self.tr("Export…"), lambda: self.export_pressed.emit(number, title))
        away = index.parent().data(FOLDER) == "archived"
        chosen = marked if number in (marked := self._selected()) else [number]
        menu.add(
            "upload" if away else "archive",
            self.tr("Move out of the archive") if away else self.tr("Archive"),
            lambda: self._archive(chosen, away=not away),
        )
        menu.addSeparator()
        if number in marked and len(marked) > 1:
            words = self.tr("Delete {n} chats").format(n=len(marked))
            menu.add("trash", words, lambda: self.trash(marked), "bad")
        else:
            menu.add("trash", self.tr("Delete"), lambda: self.trash([number]), "bad")

    def _selected(self) -> list[int]:
        return [index.data(ID) for index in self.tree.selectionModel().selectedRows() if index.data(ID)]

    def _trash_selected(self) -> None:
        if self._selected():
            self.trash(self._selected())

    def trash(self, conversation_ids: list[int]) -> None:
        """Move conversations to the trash."""
        self._do(conversations.trash, conversation_ids)
        self.trashed.emit(conversation_ids)

    def _archive(self, conversation_ids: list[int], *, away: bool) -> None:
        self._do(conversations.archive, conversation_ids, away=away)
        if away and self._current in conversation_ids:
            self.new_pressed.emit()

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


# Draws the chat list: whole rows, a menu button on the hovered row, search matches highlighted.

ID = Qt.ItemDataRole.UserRole + 1
MESSAGE = Qt.ItemDataRole.UserRole + 2
FOLDER = Qt.ItemDataRole.UserRole + 3
EXCERPT = Qt.ItemDataRole.UserRole + 4  # U+0002 and U+0003 mark the matching words

Index = QModelIndex | QPersistentModelIndex
_BUTTON = 28  # width in pixels of the menu button at the right of a row


class ChatTree(QTreeView):
    """Chat list. A right click or a click on a row's dots opens the menu; other clicks open the entry."""

    menu_wanted = Signal(QPoint)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setMouseTracking(True)
        self.setHeaderHidden(True)
        self.setIndentation(0)
        self.setRootIsDecorated(False)
        self.setUniformRowHeights(False)
        self.setEditTriggers(QTreeView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setSelectionMode(QTreeView.SelectionMode.ExtendedSelection)
        self.setItemDelegate(ChatRows(theme, self))
        self.customContextMenuRequested.connect(self.menu_wanted)

    def button_rect(self, index: QModelIndex) -> QRect:
        """The rectangle of a row's menu button, in viewport coordinates."""
        row = self.visualRect(index)
        return QRect(self.viewport().width() - _BUTTON, row.top(), _BUTTON, row.height())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Do not select the row when the click opens its menu."""
        if event.button() == Qt.MouseButton.RightButton:
            return
        at = event.position().toPoint()
        index = self.indexAt(at)
        if index.data(ID) and self.button_rect(index).contains(at):
            self.menu_wanted.emit(at)
            return
        super().mousePressEvent(event)

    def drawBranches(self, painter: QPainter, rect: QRect, index: Index) -> None:
        """Draw nothing: `ChatRows` draws whole rows."""
        del painter, rect, index


class ChatRows(QStyledItemDelegate):
    """Draws chats with rounded backgrounds, and groups as small headings with an arrow."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Row height. Headings have extra space above."""
        del option
        tokens = self._theme.tokens
        line = round(tokens.body * 1.3)
        return QSize(0, line + (tokens.unit * 2 if index.data(ID) else tokens.unit + tokens.unit // 2))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw one row."""
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        whole = QRect(0, option.rect.top(), option.rect.right() + 1, option.rect.height())
        state = option.state
        hovered = bool(state & QStyle.StateFlag.State_MouseOver)
        if index.data(ID):
            self._paint_chat(
                painter, whole, index, hovered=hovered, chosen=bool(state & QStyle.StateFlag.State_Selected)
            )
        else:
            font = self._theme.font("small", strong=True)
            painter.setFont(font)
            painter.setPen(tokens.colour("muted"))
            view = self.parent()
            opened = isinstance(view, QTreeView) and view.isExpanded(index)
            words = whole.adjusted(tokens.unit, tokens.unit // 2, -_BUTTON, 0)
            painter.drawText(words, Qt.AlignmentFlag.AlignVCenter, str(index.data()))
            if hovered or not opened:
                icon = self._theme.icon("down" if opened else "right", "muted")
                icon.paint(painter, QRect(whole.right() - 20, words.center().y() - 7, 14, 14))
        painter.restore()

    def _paint_chat(self, painter: QPainter, whole: QRect, index: Index, *, hovered: bool, chosen: bool) -> None:
        tokens = self._theme.tokens
        if chosen or hovered:
            _paint_ground(painter, whole, self._theme, chosen=chosen)
        font = self._theme.font()
        painter.setFont(font)
        painter.setPen(tokens.colour("text"))
        words = whole.adjusted(tokens.unit, 0, -(_BUTTON if hovered else tokens.unit), 0)
        metrics = painter.fontMetrics()
        text = metrics.elidedText(str(index.data()), Qt.TextElideMode.ElideRight, words.width())
        painter.drawText(words, Qt.AlignmentFlag.AlignVCenter, text)
        if hovered:
            self._theme.icon("more", "muted").paint(
                painter, QRect(whole.right() - _BUTTON + 5, whole.center().y() - 9, 18, 18)
            )


class HitRows(QStyledItemDelegate):
    """Draws a search result: the chat's title, then two lines of text with the matches in bold."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Row height: three lines."""
        del option, index
        tokens = self._theme.tokens
        return QSize(0, round(1.35 * tokens.body + 2.8 * tokens.small) + 2 * tokens.unit)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw one search result."""
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        whole = QRect(option.rect)
        state = option.state
        if state & (QStyle.StateFlag.State_MouseOver | QStyle.StateFlag.State_Selected):
            chosen = bool(state & QStyle.StateFlag.State_Selected)
            _paint_ground(painter, whole, self._theme, chosen=chosen)
        inner = whole.adjusted(tokens.unit, tokens.unit // 2, -tokens.unit, -tokens.unit // 2)
        painter.setFont(self._theme.font(strong=True))
        painter.setPen(tokens.colour("text"))
        title = painter.fontMetrics().elidedText(
            str(index.data()).partition("\n")[0], Qt.TextElideMode.ElideRight, inner.width()
        )
        painter.drawText(inner, Qt.AlignmentFlag.AlignTop, title)
        inner.setTop(inner.top() + round(1.4 * tokens.body))
        self._paint_excerpt(painter, inner, str(index.data(EXCERPT) or ""))
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, at: QRect, marked: str) -> None:
        tokens = self._theme.tokens
        text, found = "", []
        for number, part in enumerate(marked.replace("\x03", "\x02").split("\x02")):
            if number % 2:
                strong = QTextCharFormat()
                strong.setFontWeight(QFont.Weight.DemiBold)
                strong.setForeground(tokens.colour("link"))
                chunk = QTextLayout.FormatRange()
                chunk.start, chunk.length, chunk.format = len(text), len(part), strong
                found.append(chunk)
            text += part
        layout = QTextLayout(text, self._theme.font("small"))
        layout.setFormats(found)
        layout.beginLayout()
        top = 0.0
        for _ in range(2):
            line = layout.createLine()
            if not line.isValid():
                break
            line.setLineWidth(at.width())
            line.setPosition(QPoint(0, round(top)))
            top += line.height()
        layout.endLayout()
        painter.setPen(tokens.colour("muted"))
        layout.draw(painter, at.topLeft())


def _paint_ground(painter: QPainter, whole: QRect, theme: Theme, *, chosen: bool) -> None:
    tokens = theme.tokens
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(tokens.colour("accent_soft" if chosen else "hover"))
    painter.drawRoundedRect(whole.adjusted(0, 1, 0, -1), tokens.radius - 2, tokens.radius - 2)
