"""Navigation in the window: the bar of destinations on the left, and the row of pages within a destination."""

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QAccessible, QAccessibleInterface, QResizeEvent
from PySide6.QtWidgets import (
    QAccessibleWidget,
    QButtonGroup,
    QFrame,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.gui.formatted import plain_tip
from app.gui.shortcuts import native_keys
from app.gui.theme import Theme
from app.gui.widgets.basics import PAGE_MARGIN, PAGE_WIDTH, SCROLL_BAR, clear, row
from app.gui.widgets.flow import FlowLayout

_ICON = 22
_NARROWEST = 80
_SECTION_INSET = 18  # distance from the edge of a section button to its label, which aligns with the page grid


class TabButton(QToolButton):
    """A button that shows a page. Screen readers call it a tab."""

    accessible: QAccessibleInterface | None = None  # kept alive as long as the button


class TabList(QFrame):
    """Buttons of which one is chosen. Screen readers call it a list of tabs."""

    accessible: QAccessibleInterface | None = None


class _Tab(QAccessibleWidget):
    """A tab is selected, not checked."""

    def state(self) -> QAccessible.State:
        state = super().state()
        button = self.object()
        state.selectable, state.selected = 1, int(isinstance(button, TabButton) and button.isChecked())
        state.checkable, state.checked = 0, 0
        state.focusable = 1  # reachable by the arrow keys; Tab goes to the chosen one
        return state


def _accessible(_: str, widget: QObject) -> QAccessibleInterface | None:
    """The accessible interface of a widget of the navigation; None for all others."""
    role = QAccessible.Role
    if isinstance(widget, TabButton):
        widget.accessible = _Tab(widget, role.PageTab)
        return widget.accessible
    if isinstance(widget, TabList):
        widget.accessible = QAccessibleWidget(widget, role.PageTabList)
        return widget.accessible
    return None


QAccessible.installFactory(_accessible)


@dataclass(frozen=True)
class Destination:
    """One entry of the destination bar and its page names. `at_foot` puts it at the bottom of the bar."""

    name: str
    icon: str
    title: str
    pages: tuple[str, ...]
    at_foot: bool = False


class Rail(TabList):
    """Destination bar, as wide as its longest label. Shows icons only if it is too short for labels."""

    chosen = Signal(str)

    def __init__(self, theme: Theme, destinations: Sequence[Destination]) -> None:
        super().__init__()
        self._theme = theme
        self._destinations = tuple(destinations)
        self.setProperty("kind", "rail")
        self.setAccessibleName(self.tr("Navigation"))
        self._group = QButtonGroup(self)
        self.buttons: dict[str, TabButton] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(8, 12, 8, 12)
        column.setSpacing(4)
        for position, entry in enumerate(self._destinations):
            tab = TabButton()
            tab.setProperty("kind", "nav")
            tab.setCheckable(True)
            tab.setText(entry.title)
            tab.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
            tab.setAccessibleName(entry.title)
            tab.setToolTip(plain_tip(f"{entry.title} ({native_keys(f'Ctrl+{position + 1}')})"))
            tab.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            tab.clicked.connect(lambda _=False, name=entry.name: self.chosen.emit(name))
            self._group.addButton(tab)
            self.buttons[entry.name] = tab
            if entry.at_foot:
                column.addStretch(1)
            column.addWidget(tab)
        theme.changed.connect(self._refresh, Qt.ConnectionType.QueuedConnection)  # fonts of controls change first
        self._refresh()

    def select(self, name: str) -> None:
        """Mark a destination as selected."""
        self.buttons[name].setChecked(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show labels only if all of them fit."""
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Adjust to the text size."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def minimumSizeHint(self) -> QSize:
        """Minimum width fits the labels; there is no minimum height."""
        return QSize(super().minimumSizeHint().width(), 0)

    def _refresh(self) -> None:
        for entry in self._destinations:
            self.buttons[entry.name].setIcon(self._theme.icon(entry.icon))
        self._fit()

    def _fit(self) -> None:
        icon = min(self._theme.tokens.scaled(_ICON), round(1.5 * _ICON))
        unit = self._theme.tokens.unit
        metrics = next(iter(self.buttons.values())).fontMetrics()
        word = icon + metrics.height() + 3 * unit
        has_names = self.height() >= len(self.buttons) * (word + 4) + 3 * unit
        style = Qt.ToolButtonStyle.ToolButtonTextUnderIcon if has_names else Qt.ToolButtonStyle.ToolButtonIconOnly
        for button in self.buttons.values():
            button.setToolButtonStyle(style)
            button.setIconSize(QSize(icon, icon))
        widest = max(button.sizeHint().width() for button in self.buttons.values())
        for button in self.buttons.values():
            button.setMinimumWidth(max(_NARROWEST, widest) if has_names else icon + 3 * unit)
            button.setFixedHeight(word if has_names else icon + 2 * unit)


class Sections(QFrame):
    """Buttons for the pages of one destination, aligned with the page grid. Hidden if there is only one page."""

    chosen = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "sections")
        tabs = TabList()
        tabs.setAccessibleName(self.tr("Pages"))
        self._line = FlowLayout(tabs, spacing=4)  # a second line for many pages in large text
        holder = QWidget()
        holder.setMaximumWidth(PAGE_WIDTH)
        holder.setLayout(row(tabs, spacing=0, margins=(PAGE_MARGIN - _SECTION_INSET, 12, PAGE_MARGIN, 0)))
        outer = row(spacing=0, margins=(0, 0, SCROLL_BAR, 0))
        outer.addStretch(1)
        outer.addWidget(holder, 100)
        outer.addStretch(1)
        self.setLayout(outer)
        self._group = QButtonGroup(self)
        self.buttons: dict[str, TabButton] = {}

    def show_pages(self, pages: Sequence[tuple[str, str]], current: str) -> None:
        """Show buttons for these (name, title) pages. A single page needs no row."""
        if list(self.buttons) != [name for name, _ in pages]:
            for button in self.buttons.values():
                self._group.removeButton(button)
            clear(self._line)
            self.buttons = {}
            for name, title in pages:
                tab = TabButton()
                tab.setProperty("kind", "section")
                tab.setCheckable(True)
                tab.setText(title)
                tab.setAccessibleName(title)
                tab.setFocusPolicy(Qt.FocusPolicy.TabFocus)
                tab.clicked.connect(lambda _=False, name=name: self.chosen.emit(name))
                self._group.addButton(tab)
                self.buttons[name] = tab
                self._line.addWidget(tab)
        self.setVisible(len(pages) > 1)
        if current in self.buttons:
            self.buttons[current].setChecked(True)
