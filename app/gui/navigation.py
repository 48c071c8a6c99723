"""The bar of destinations at the left, and the row of pages inside a destination."""

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QButtonGroup, QFrame, QSizePolicy, QToolButton, QVBoxLayout

from app.gui.shortcuts import native_keys
from app.gui.theme import Theme
from app.gui.widgets.basics import PAGE_MARGIN, PAGE_WIDTH, SCROLL_BAR, clear, row

_ICON = 22
_NARROWEST = 80
_SECTION_INSET = 18  # from the edge of a section's button to its word, which stands on the grid of the pages


@dataclass(frozen=True)
class Destination:
    """One entry of the bar with the names of its pages; the last entry stands at the foot where `at_foot`."""

    name: str
    icon: str
    title: str
    pages: tuple[str, ...]
    at_foot: bool = False


class Rail(QFrame):
    """As wide as its longest word at any size of text; where it is too low for words it shows icons only."""

    chosen = Signal(str)

    def __init__(self, theme: Theme, destinations: Sequence[Destination]) -> None:
        super().__init__()
        self._theme = theme
        self._destinations = tuple(destinations)
        self.setProperty("kind", "rail")
        self._group = QButtonGroup(self)
        self.buttons: dict[str, QToolButton] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 12, 8, 12)
        column.setSpacing(4)
        for position, entry in enumerate(self._destinations):
            made = QToolButton()
            made.setProperty("kind", "nav")
            made.setCheckable(True)
            made.setText(entry.title)
            made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
            made.setAccessibleName(entry.title)
            made.setToolTip(f"{entry.title} ({native_keys(f'Ctrl+{position + 1}')})")
            made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            made.clicked.connect(lambda _=False, name=entry.name: self.chosen.emit(name))
            self._group.addButton(made)
            self.buttons[entry.name] = made
            if entry.at_foot:
                column.addStretch(1)
            column.addWidget(made)
        theme.changed.connect(self._refresh, Qt.ConnectionType.QueuedConnection)  # fonts of controls follow first
        self._refresh()

    def select(self, name: str) -> None:
        """Mark a destination."""
        self.buttons[name].setChecked(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Words only where all of them fit below each other."""
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Follow the size of the text."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def minimumSizeHint(self) -> QSize:
        """As wide as the words; as low as the icons."""
        return QSize(super().minimumSizeHint().width(), 0)

    def _refresh(self) -> None:
        for entry in self._destinations:
            self.buttons[entry.name].setIcon(self._theme.icon(entry.icon))
        self._fit()

    def _fit(self) -> None:
        scale = self._theme.tokens.small / 12
        icon = round(_ICON * min(scale, 1.5))
        unit = self._theme.tokens.unit
        metrics = next(iter(self.buttons.values())).fontMetrics()
        word = icon + metrics.height() + 3 * unit
        named = self.height() >= len(self.buttons) * (word + 4) + 3 * unit
        style = Qt.ToolButtonStyle.ToolButtonTextUnderIcon if named else Qt.ToolButtonStyle.ToolButtonIconOnly
        for button in self.buttons.values():
            button.setToolButtonStyle(style)
            button.setIconSize(QSize(icon, icon))
        widest = max(button.sizeHint().width() for button in self.buttons.values())
        for button in self.buttons.values():
            button.setMinimumWidth(max(_NARROWEST, widest) if named else icon + 3 * unit)
            button.setFixedHeight(word if named else icon + 2 * unit)


class Sections(QFrame):
    """The pages of one destination, side by side, where there are more than one; on the grid of the pages."""

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "sections")
        self._line = row(spacing=4)
        holder = QFrame()
        holder.setMaximumWidth(PAGE_WIDTH)
        holder.setLayout(self._line)
        self._line.setContentsMargins(PAGE_MARGIN - _SECTION_INSET, 12, PAGE_MARGIN, 0)
        outer = row(spacing=0, margins=(0, 0, SCROLL_BAR, 0))
        outer.addStretch(1)
        outer.addWidget(holder, 100)
        outer.addStretch(1)
        self.setLayout(outer)
        self._group = QButtonGroup(self)
        self.buttons: dict[str, QToolButton] = {}

    def show_pages(self, pages: Sequence[tuple[str, str]], current: str) -> None:
        """Offer these (name, title); one alone needs no row."""
        if list(self.buttons) != [name for name, _ in pages]:
            for button in self.buttons.values():
                self._group.removeButton(button)
            clear(self._line)
            self.buttons = {}
            for name, title in pages:
                made = QToolButton()
                made.setProperty("kind", "section")
                made.setCheckable(True)
                made.setText(title)
                made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
                made.clicked.connect(lambda _=False, name=name: self.chosen.emit(name))
                self._group.addButton(made)
                self.buttons[name] = made
                self._line.addWidget(made)
            self._line.addStretch(1)
        self.setVisible(len(pages) > 1)
        if current in self.buttons:
            self.buttons[current].setChecked(True)
