"""A searchable list popup for commands, chats and models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QVBoxLayout, QWidget

from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, line_field, row, stack, when_released
from app.gui.widgets.popups import Shadow, round_corners

_WIDTH, _SHOWN = 620, 9
_LEADING, _FRAME = 1.35, 8  # line height per font pixel; pixels that the style adds around an entry
_ENTRY = Qt.ItemDataRole.UserRole + 1


@dataclass(frozen=True)
class Entry:
    """One line: title, detail, and up to two additional actions."""

    key: str
    title: str
    detail: str = ""
    mark: str = ""  # a chip, for example "Loaded"
    action: str = ""
    tool: str = ""  # tooltip of an additional small button, for example "Load settings"
    always: bool = False  # listed at the end, whatever the query is


def matching(entries: Sequence[Entry], text: str) -> list[Entry]:
    """The entries that contain every word of `text`. Titles that start with it come first."""
    words = text.casefold().split()
    hits = [
        entry
        for entry in entries
        if entry.always or all(word in f"{entry.title} {entry.detail}".casefold() for word in words)
    ]
    return sorted(hits, key=lambda entry: (entry.always, not entry.title.casefold().startswith(text.casefold())))


class SearchPopup(QDialog):
    """The popup. `chosen` and `acted` carry an entry's key; `acted` keeps the list open."""

    chosen = Signal(str)
    acted = Signal(str)
    tool_used = Signal(str)

    def __init__(self, theme: Theme, title: str, hint: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme
        self._entries: Sequence[Entry] = ()
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowFlag(Qt.WindowType.FramelessWindowHint)
        self.setWindowTitle(title)
        self.setAccessibleName(title)
        self.setProperty("kind", "palette")
        Shadow(self, parent, theme.tokens.radius, dim=True)
        self.search = line_field(hint)
        self.search.textChanged.connect(lambda _: self._refresh())
        self.search.installEventFilter(self)
        self.list = QListWidget()
        self.list.setAccessibleName(title)
        self.list.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.itemClicked.connect(self._choose)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 12, 12, 12)
        column.addWidget(self.search)
        column.addWidget(self.list)

    def show_entries(self, entries: Sequence[Entry]) -> None:
        """Show these entries. Query and selection stay."""
        self._entries = entries
        when_released(self, self._refresh)

    def open_over(self, window: QWidget) -> None:
        """Show the popup in the upper part of a window."""
        self.setFixedWidth(min(_WIDTH, window.width() - 48))
        self._refresh()
        self.move(window.mapToGlobal(window.rect().topLeft()) + _below_top(window, self))
        self.open()
        self.search.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handle Up, Down and Enter of the search field in the list."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            if event.key() in {Qt.Key.Key_Down, Qt.Key.Key_Up}:
                step = 1 if event.key() == Qt.Key.Key_Down else -1
                self.list.setCurrentRow(max(0, min(self.list.currentRow() + step, self.list.count() - 1)))
                return True
            if event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter}:
                item = self.list.currentItem()
                if item is not None:
                    self._choose(item)
                return True
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        round_corners(self, self._theme.tokens.radius)

    def _choose(self, item: QListWidgetItem) -> None:
        key = str(item.data(_ENTRY))
        self.close()
        self.chosen.emit(key)

    def _refresh(self) -> None:
        current = self.list.currentItem()
        before = current.data(_ENTRY) if current is not None and not self.search.text() else None
        self.list.clear()
        for entry in matching(self._entries, self.search.text().strip()):
            item = QListWidgetItem(self.list)
            item.setData(_ENTRY, entry.key)
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{entry.title}. {entry.detail}")
            line = self._line(entry)
            item.setSizeHint(QSize(0, self._height(entry)))
            self.list.setItemWidget(item, line)
            if entry.key == before:
                self.list.setCurrentItem(item)
        if self.list.currentRow() < 0 and self.list.count():
            self.list.setCurrentRow(0)
        shown = min(self.list.count(), _SHOWN)
        height = sum(self.list.sizeHintForRow(place) for place in range(shown))
        self.list.setFixedHeight(max(height, self._theme.tokens.body * 3) + 4)
        self.adjustSize()

    def _height(self, entry: Entry) -> int:
        """Height of an entry in pixels, known before its widget is styled."""
        tokens = self._theme.tokens
        texts = round(_LEADING * (tokens.body + (tokens.small if entry.detail else 0)))
        control = round(_LEADING * tokens.body) + 2 * tokens.unit if entry.action else 0
        return max(texts, control) + 2 * tokens.unit + _FRAME

    def _line(self, entry: Entry) -> QWidget:
        holder = QWidget()
        texts = stack(label(entry.title, "strong" if entry.detail else ""), spacing=0)
        if entry.detail:
            texts.addWidget(label(entry.detail, "small"))
        line = row(texts, 1, spacing=8, margins=(4, 0, 4, 0))
        if entry.mark:
            line.addWidget(label(entry.mark, "chip-ok"))
        if entry.tool:
            tool = IconButton(
                self._theme, "sliders", f"{entry.tool}: {entry.title}", self._tooler(entry.key), size=16
            )
            tool.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            line.addWidget(tool)
        if entry.action:
            act = button(entry.action, self._actor(entry.key))
            act.setAccessibleName(f"{entry.action} {entry.title}")
            act.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            line.addWidget(act)
        holder.setLayout(line)
        return holder

    def _tooler(self, key: str) -> Callable[[], None]:
        def run() -> None:
            self.close()
            self.tool_used.emit(key)

        return run

    def _actor(self, key: str) -> Callable[[], None]:
        return lambda: self.acted.emit(key)


def _below_top(window: QWidget, dialog: QDialog) -> QPoint:
    return QPoint((window.width() - dialog.width()) // 2, max(24, window.height() // 10))
