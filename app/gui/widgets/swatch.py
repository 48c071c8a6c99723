"""Shapes in theme colours."""

from collections.abc import Callable

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget


def shape_painter(widget: QWidget) -> QPainter:
    """An antialiasing painter without outlines."""
    painter = QPainter(widget)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    return painter


class Swatch(QWidget):
    """A rounded colour square for legends. Calls `colour` at each paint, because the theme may change."""

    def __init__(self, side: int, radius: int, colour: Callable[[], QColor]) -> None:
        super().__init__()
        self._radius, self._colour = radius, colour
        self.setFixedSize(side, side)

    def paintEvent(self, event: QPaintEvent) -> None:
        del event
        painter = shape_painter(self)
        painter.setBrush(self._colour())
        painter.drawRoundedRect(QRectF(self.rect()), self._radius, self._radius)
