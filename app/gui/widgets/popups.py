"""Menus and drop-downs with round corners and icons.

Corners are masked: not every system can draw translucent windows.
"""

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QAction, QPainterPath, QRegion, QResizeEvent
from PySide6.QtWidgets import QComboBox, QMenu, QWidget

from app.gui.theme import Theme
from app.gui.widgets.shadow import Shadow

_RADIUS = 8  # of a list of choices; as in the token file


class Menu(QMenu):
    """A menu that deletes itself when it is closed; `add` gives an entry its icon."""

    def __init__(self, theme: Theme, parent: QWidget, title: str = "") -> None:
        super().__init__(title, parent)
        self._theme = theme
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        Shadow(self, parent.window(), theme.tokens.radius)

    def add(self, icon: str, words: str, run: Callable[[], object], colour: str = "muted") -> QAction:
        """One entry."""
        action = self.addAction(self._theme.icon(icon, colour), words)
        action.triggered.connect(lambda _checked=False: run())
        return action

    def below(self, widget: QWidget) -> None:
        """Open it below a button."""
        self.popup(widget.mapToGlobal(QPoint(0, widget.height() + 4)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Round the corners."""
        super().resizeEvent(event)
        round_corners(self, self._theme.tokens.radius)


class Choice(QComboBox):
    """A drop-down that shows all of its entries, in a list with round corners."""

    _MOST = 12
    _shadow: Shadow | None = None

    def __init__(self) -> None:
        super().__init__()
        self.setMaxVisibleItems(self._MOST)

    def showPopup(self) -> None:
        """Round the list's corners once it has its size."""
        if self._shadow is None:
            self._shadow = Shadow(self.view().window(), self.window(), _RADIUS)
        super().showPopup()
        round_corners(self.view().window(), _RADIUS)


def entries_of(box: QComboBox) -> list[tuple[str, Any]]:
    """What it offers: the words of each entry, and what stands for it."""
    return [(box.itemText(place), box.itemData(place)) for place in range(box.count())]


def round_corners(window: QWidget, radius: int) -> None:
    """Cut the corners of a window off."""
    path = QPainterPath()
    path.addRoundedRect(QRectF(window.rect()), radius, radius)
    window.setMask(QRegion(path.toFillPolygon().toPolygon()))
