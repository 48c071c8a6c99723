"""A card that plots one value over the last minutes."""

import time
from collections import deque
from collections.abc import Sequence

import pyqtgraph
from PySide6.QtCore import QCoreApplication
from PySide6.QtGui import QColor, QFontMetrics
from PySide6.QtWidgets import QFrame

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import label, row, stack
from app.gui.widgets.chart import Chart, value_text

HISTORY_S = 180
_HEIGHT = 88  # height of the curve; the axis labels have separate space
_AXIS, _GAP = 40, 4
_MINUTES = 2  # minutes ago at the axis label
_HEADROOM = 1.1  # above the highest point
_TICKS = 2
_PERCENT = 100.0


class TimePlot(QFrame):
    """Plots one value."""

    def __init__(self, theme: Theme, title: str, unit: str) -> None:
        super().__init__()
        self._theme, self._unit = theme, unit
        self.setProperty("kind", "card")
        self.value = label(formatted.UNKNOWN, "title")
        self._points: deque[tuple[float, float]] = deque()
        self.plot = Chart(theme, title)
        self._curve = self.plot.plot([], [], fillLevel=0, antialias=True)
        self.plot.setXRange(-HISTORY_S, 0, padding=0)
        self._axis = self.plot.getPlotItem().getAxis("left")
        self._clock = self.plot.getPlotItem().getAxis("bottom")
        ago = QCoreApplication.translate("TimePlot", "{n} min ago")
        self._now = QCoreApplication.translate("TimePlot", "now")
        self._clock.setTicks([[(-60.0 * _MINUTES, ago.format(n=_MINUTES)), (0.0, self._now)]])
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
        theme.changed.connect(self._recolour)

    def add(self, value: float, now: float | None = None) -> None:
        """Add the newest value. Values older than `HISTORY_S` are dropped."""
        newest = time.monotonic() if now is None else now
        self._points.append((newest, value))
        while newest - self._points[0][0] > HISTORY_S:
            self._points.popleft()
        self._draw(newest)

    def fill(self, samples: Sequence[tuple[float, float]], now: float | None = None) -> None:
        """Replace the plot by samples (seconds ago, value), oldest first."""
        newest = time.monotonic() if now is None else now
        self._points = deque((newest - ago, value) for ago, value in samples if ago <= HISTORY_S)
        if self._points:
            self._draw(newest)

    def _draw(self, newest: float) -> None:
        xs, ys = [t - newest for t, _ in self._points], [v for _, v in self._points]
        self.value.setText(value_text(ys[-1]))
        self._curve.setData(xs, ys)
        ago = QCoreApplication.translate("TimePlot", "{n} s ago: {value} {unit}")
        self.plot.points = [
            (x, y, ago.format(n=formatted.whole(-x), value=value_text(y), unit=self._unit).strip())
            for x, y in zip(xs, ys, strict=True)
        ]
        least = _TICKS if not self._unit else 1  # values without a unit are counts, so no half ticks
        self._scale(_PERCENT if self._unit == "%" else max(_round_up(max(ys) * _HEADROOM), least))

    def _scale(self, top: float) -> None:
        self.plot.setYRange(0, top, padding=0.02)
        self._axis.setTicks(
            [[(part * top / _TICKS, value_text(part * top / _TICKS)) for part in range(_TICKS + 1)]]
        )

    def _recolour(self) -> None:
        colour = self.plot.series_colour(0)
        pale = QColor(colour)
        pale.setAlphaF(0.18)
        self._curve.setPen(pyqtgraph.mkPen(colour, width=2))
        self._curve.setBrush(pale)
        metrics = QFontMetrics(self._theme.font("small"))
        self._axis.setWidth(max(_AXIS, metrics.horizontalAdvance("1,000") + _GAP))
        self._clock.setHeight(metrics.height() + _GAP)
        self.plot.setFixedHeight(_HEIGHT + metrics.height() + _GAP)
        # Omit an axis label that would extend beyond the edge by more than this.
        ends = metrics.horizontalAdvance(self._now) // 2 + _GAP
        self._clock.setStyle(hideOverlappingLabels=ends)
        self.plot.getPlotItem().setContentsMargins(0, 8, max(16, ends), 4)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, so that the scale rarely changes."""
    if value <= 1:
        return 1.0
    power = 10.0 ** (len(str(int(value))) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
