"""The common chart style: smooth lines, muted axes, and a tooltip with a point's value."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log10
from typing import Any

import pyqtgraph
from pyqtgraph.graphicsItems.ScatterPlotItem import Symbols
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QHelpEvent, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import holding, label, row
from app.gui.widgets.flow import Flow
from app.gui.widgets.swatch import shape_painter

_DECIMALS_BELOW = 100
_KEY_WIDTH, _KEY_HEIGHT = 20, 12  # size of a line in the legend
_SIGN = 8  # size of a point's symbol in the legend
_NEAR = 24  # maximum distance in pixels from a point for its tooltip


class Chart(pyqtgraph.PlotWidget):  # type: ignore[misc]  # pyqtgraph is unannotated
    """A plot that cannot be dragged. `points` are the tooltip's (x, y, text)."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__()
        self._theme = theme
        self.points: list[tuple[float, float, str]] = []
        self.setAntialiasing(True)
        self.setMouseEnabled(x=False, y=False)
        self.setMenuEnabled(False)
        self.hideButtons()
        for widget in (self, self.viewport()):
            widget.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # there is nothing to do in it by keyboard
        self.setAccessibleName(name)
        self.getPlotItem().setContentsMargins(0, 8, 8, 4)
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.tickStrings = partial(_tick_labels, axis)
        self.restyle()
        theme.changed.connect(self.restyle)

    def name_axes(self, **names: str) -> None:
        """Set the labels of the axes `bottom` and `left`."""
        for side, text in names.items():
            self.getPlotItem().getAxis(side).setLabel(text)
        self.restyle()

    def restyle(self) -> None:
        tokens = self._theme.tokens
        self.setBackground(tokens.colour("raised"))
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.setPen(pyqtgraph.mkPen(tokens.colour("border")))
            axis.setTextPen(pyqtgraph.mkPen(tokens.colour("muted")))
            axis.setStyle(tickFont=self._theme.font("small"), tickLength=0)
            if axis.labelText:  # an existing label keeps its font otherwise
                axis.label.setFont(self._theme.font("small"))
                axis.setLabel(axis.labelText, color=tokens.colours["muted"])
            # Clear the ranges first: disabling alone rescales once more and shows values below 1 a thousand times
            # too large.
            axis.setSIPrefixEnableRanges(())
            axis.enableAutoSIPrefix(False)

    def line(self, xs: list[float], ys: list[float], colour: QColor, *, symbol: str | None = None) -> Any:
        """Add a curve. With a symbol, its points are marked."""
        pen = pyqtgraph.mkPen(colour, width=2)
        marks = {"symbol": symbol, "symbolBrush": colour, "symbolPen": None, "symbolSize": 7} if symbol else {}
        return self.plot(xs, ys, pen=pen, antialias=True, **marks)

    def series_colour(self, number: int) -> QColor:
        """The colour of a curve. The first is the accent colour."""
        tokens = self._theme.tokens
        return tokens.colour("accent") if number == 0 else QColor(tokens.series[number % len(tokens.series)])

    def viewportEvent(self, event: QEvent) -> bool:
        """Show the value of the point under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            words_ = self._label_at(QPointF(event.pos()))
            if words_:
                QToolTip.showText(event.globalPos(), formatted.plain_tip(words_), self)
            else:
                QToolTip.hideText()
            return True
        return bool(super().viewportEvent(event))

    def _label_at(self, at: QPointF) -> str:
        box, best, nearest = self.getViewBox(), float(_NEAR), ""
        for x, y, text in self.points:
            place = box.mapViewToScene(QPointF(x, y))
            far = ((place.x() - at.x()) ** 2 + (place.y() - at.y()) ** 2) ** 0.5
            if far < best:
                best, nearest = far, text
        return nearest


class ChartKey(Flow):
    """The chart's legend, placed above it."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(spacing=12)
        self._theme = theme
        self.names: list[str] = []

    def show_curves(self, entries: Sequence["KeyEntry"]) -> None:
        """Show one entry per curve. A single curve needs no legend."""
        self.names = [entry.name for entry in entries]
        self.clear()
        for entry in entries:
            self.add(holding(row(_KeySign(entry), label(entry.name, "small"), spacing=6)))
        self.setVisible(len(entries) > 1)


@dataclass(frozen=True)
class KeyEntry:
    """A curve in the legend: its name, the pen of its line or None, and the symbol of its points or ""."""

    name: str
    colour: QColor
    line: Qt.PenStyle | None = Qt.PenStyle.SolidLine
    symbol: str = ""


class _KeySign(QWidget):
    """A short piece of the curve, as it is drawn in the chart."""

    def __init__(self, entry: KeyEntry) -> None:
        super().__init__()
        self._entry = entry
        self.setFixedSize(_KEY_WIDTH, _KEY_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        del event
        entry, painter = self._entry, shape_painter(self)
        middle = QRectF(self.rect()).center()
        if entry.line is not None:
            painter.setPen(QPen(entry.colour, 2, entry.line))
            painter.drawLine(QPointF(0, middle.y()), QPointF(self.width(), middle.y()))
        if entry.symbol:
            painter.translate(middle)
            painter.scale(_SIGN, _SIGN)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(entry.colour)
            painter.drawPath(Symbols[entry.symbol])


def _tick_labels(axis: Any, values: Sequence[float], scale: float, spacing: float) -> list[str]:
    """Axis labels in the window's number format."""
    if axis.logMode:
        return [_power_text(10**value) for value in values]
    places = max(0, ceil(-log10(spacing * scale)))
    return [formatted.decimal(value * scale, places) for value in values]


def _power_text(value: float) -> str:
    places = max(0, ceil(-log10(value)))
    return formatted.decimal(value, places) if value < 1 else formatted.whole(value)


def value_text(value: float) -> str:
    """Format a number for an axis or tooltip."""
    return formatted.decimal(value, 1) if 0 < value < _DECIMALS_BELOW and value % 1 else formatted.whole(value)
