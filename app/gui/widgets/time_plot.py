"""One number over the last minutes, in a card."""

import time
from collections import deque

import pyqtgraph
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QFrame

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import label, row, stack

KEPT_S = 180
_HEIGHT = 96
_DECIMALS_BELOW = 100
_ROOM = 1.1  # above the highest point
_TICKS = 2


class TimePlot(QFrame):
    """`series` is the number of the plot colour; `add` the newest value."""

    def __init__(self, look: Look, title: str, unit: str, series: int) -> None:
        super().__init__()
        self._look, self._series = look, series
        self.setProperty("kind", "card")
        self.value = label(words.UNKNOWN, "title")
        self._points: deque[tuple[float, float]] = deque()
        self.plot = pyqtgraph.PlotWidget()
        self.plot.setFixedHeight(_HEIGHT)
        self.plot.setMouseEnabled(x=False, y=False)
        self.plot.setMenuEnabled(False)
        self.plot.hideButtons()
        self.plot.getPlotItem().hideAxis("bottom")
        self.plot.getPlotItem().setContentsMargins(0, 8, 4, 8)
        self.plot.setAccessibleName(title)
        self._curve = self.plot.plot([], [], fillLevel=0)
        self.plot.setXRange(-KEPT_S, 0, padding=0)
        self._axis = self.plot.getPlotItem().getAxis("left")
        self._scale(1.0)
        self.setLayout(
            stack(
                label(title, "small", wrap=True),
                row(self.value, label(unit, "small"), 1),
                self.plot,
                margins=(16, 12, 16, 12),
                spacing=4,
            )
        )
        self._recolour()
        look.changed.connect(self._recolour)

    def add(self, value: float, now: float | None = None) -> None:
        """The newest value; what is older than the span is forgotten."""
        newest = time.monotonic() if now is None else now
        self._points.append((newest, value))
        while newest - self._points[0][0] > KEPT_S:
            self._points.popleft()
        self.value.setText(_written(value))
        self._curve.setData([t - newest for t, _ in self._points], [v for _, v in self._points])
        self._scale(_round_up(max(v for _, v in self._points) * _ROOM))

    def _scale(self, top: float) -> None:
        self.plot.setYRange(0, top, padding=0.02)
        self._axis.setTicks([[(part * top / _TICKS, _written(part * top / _TICKS)) for part in range(_TICKS + 1)]])

    def _recolour(self) -> None:
        tokens = self._look.tokens
        colour = QColor(tokens.series[self._series])
        pale = QColor(colour)
        pale.setAlphaF(0.18)
        self._curve.setPen(pyqtgraph.mkPen(colour, width=2))
        self._curve.setBrush(pale)
        self.plot.setBackground(tokens.colour("raised"))
        self._axis.setPen(pyqtgraph.mkPen(tokens.colour("border")))
        self._axis.setTextPen(pyqtgraph.mkPen(tokens.colour("muted")))
        self._axis.setStyle(tickFont=self._look.font("small"))
        self._axis.setWidth(40)


def _written(value: float) -> str:
    return words.decimal(value, 1) if 0 < value < _DECIMALS_BELOW and value % 1 else words.whole(value)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, so that the scale does not move with every point."""
    if value <= 1:
        return 1.0
    power = 10.0 ** (len(str(int(value))) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
