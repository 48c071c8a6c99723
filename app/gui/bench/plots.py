"""Plots of the bench page: speed over prompt length, and the computer's utilization meanwhile."""

from collections.abc import Sequence
from typing import Any

import pyqtgraph
from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import label, stack
from app.gui.widgets.chart import Chart, ChartKey, KeyEntry, value_text
from engine.api.measuring import Point, SpeedCurve
from engine.api.stats import Usage

_SECONDS = 120
_SYMBOLS = ("o", "s", "t", "d", "+", "x")


class _Titled(QWidget):
    """A chart below its title and legend."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__()
        self._theme = theme
        self.chart = Chart(theme, title)
        self.key = ChartKey(theme)
        self.key.hide()
        self.setLayout(stack(label(title, "small"), self.key, self.chart, spacing=4))
        theme.changed.connect(self._draw)

    def _draw(self) -> None:
        raise NotImplementedError


class SpeedPlot(_Titled):
    """One line per result: `field` of its points (decode_tok_s or prefill_tok_s), with the repeats' spread.

    Below them a model's curve: the forecast, and the speed expected after some of its points were measured.
    """

    def __init__(self, theme: Theme, title: str, field: str) -> None:
        super().__init__(theme, title)
        self._field = field
        self._shown: Sequence[tuple[str, Sequence[Point]]] = ()
        self._curve = SpeedCurve()
        self.chart.setFixedHeight(200)
        self.chart.name_axes(bottom=self.tr("Tokens in the prompt"))
        self.lines: dict[str, list[tuple[float, float]]] = {}
        self._draw()

    def show_results(self, results: Sequence[tuple[str, Sequence[Point]]]) -> None:
        """Show the points of each result under the given name. A result without points is not drawn."""
        self._shown = results
        self._draw()

    def show_curve(self, curve: SpeedCurve) -> None:
        """Show this forecast, or none if it is empty."""
        self._curve = curve
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        self.lines = {}
        entries = self._draw_curve()
        top = max((y for line in self.lines.values() for _, y in line), default=0.0)
        for number, (name, points) in enumerate(self._shown):
            rows = [(p.length, getattr(p, self._field)) for p in sorted(points, key=lambda p: p.length)]
            if not rows:
                continue
            xs, ys = [float(x) for x, _ in rows], [s.median for _, s in rows]
            colour = chart.series_colour(number)
            symbol = _SYMBOLS[number % len(_SYMBOLS)]
            chart.line(xs, ys, colour, symbol=symbol)
            low = [y - s.low for y, (_, s) in zip(ys, rows, strict=True)]
            high = [s.high - y for y, (_, s) in zip(ys, rows, strict=True)]
            chart.addItem(_bars(xs, ys, low, high, pyqtgraph.mkPen(colour, width=1)))
            self.lines[name] = list(zip(xs, ys, strict=True))
            entries.append(KeyEntry(name, colour, symbol=symbol))
            chart.points += [(x, y, self._point_text(name, x, y)) for x, y in self.lines[name]]
            top = max(top, *(y + h for y, h in zip(ys, high, strict=True)))
        self.key.show_curves(entries)
        chart.setYRange(0, max(top * 1.1, 1.0), padding=0)

    def _draw_curve(self) -> list[KeyEntry]:
        """Draw forecast, expectation and measured points, each with its entry in the legend."""
        curve, chart, tokens = self._curve, self.chart, self._theme.tokens
        muted, strong = tokens.colour("muted"), tokens.colour("text")
        drawn = [(self.tr("Forecast"), curve.forecast, muted, Qt.PenStyle.DashLine)]
        if curve.expected != curve.forecast:
            drawn.append((self.tr("Expected since measuring"), curve.expected, strong, Qt.PenStyle.SolidLine))
        entries = []
        for name, points, colour, style in drawn:
            line = [(float(p.length), float(getattr(p, self._field))) for p in points]
            if not line:
                continue
            pen = pyqtgraph.mkPen(colour, width=1.5, style=style)
            chart.plot([x for x, _ in line], [y for _, y in line], pen=pen, antialias=True)
            self.lines[name] = line
            chart.points += [(x, y, self._point_text(name, x, y)) for x, y in line]
            entries.append(KeyEntry(name, colour, style))
        if curve.measured:
            name = self.tr("Measured with a model of its family") if curve.of_family else self.tr("Measured points")
            line = [(float(p.length), float(getattr(p, self._field))) for p in curve.measured]
            xs, ys = [x for x, _ in line], [y for _, y in line]
            chart.plot(xs, ys, pen=None, symbol="x", symbolBrush=strong, symbolPen=None, symbolSize=11)
            self.lines[name] = line
            chart.points += [(x, y, self._point_text(name, x, y)) for x, y in line]
            entries.append(KeyEntry(name, strong, None, "x"))
        return entries

    def _point_text(self, name: str, length: float, speed: float) -> str:
        text = self.tr("{name}: {speed} tokens/s at {n} tokens")
        return text.format(name=name, speed=value_text(speed), n=formatted.whole(length))


def _bars(xs: list[float], ys: list[float], low: list[float], high: list[float], pen: Any) -> Any:
    """Error bars that show the spread of the repeats."""
    import numpy as np

    return pyqtgraph.ErrorBarItem(
        x=np.asarray(xs), y=np.asarray(ys), bottom=np.asarray(low), top=np.asarray(high), pen=pen
    )


class BusyPlot(_Titled):
    """CPU, GPU and NPU utilization over the last two minutes, in percent."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__(theme, title)
        self.chart.setFixedHeight(112)
        self.chart.setYRange(0, 100, padding=0.02)
        self.chart.getPlotItem().getAxis("left").setTicks([[(0, "0"), (50, "50"), (100, "100")]])
        ago = QCoreApplication.translate("TimePlot", "{n} min ago")
        now = QCoreApplication.translate("TimePlot", "now")
        clock = self.chart.getPlotItem().getAxis("bottom")
        clock.setTicks([[(-_SECONDS / 2, ago.format(n=_SECONDS // 120)), (0.0, now)]])
        clock.setStyle(hideOverlappingLabels=False)  # otherwise the label at the edge is omitted
        self.chart.getPlotItem().setContentsMargins(0, 8, 16, 4)
        self.chart.setXRange(-_SECONDS, 0, padding=0)
        self.series: dict[str, list[float]] = {}
        self._samples: Sequence[Usage] = ()
        self._draw()

    def show_samples(self, samples: Sequence[Usage]) -> None:
        """Show the server's samples, oldest first."""
        self._samples = samples
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        series: dict[str, list[tuple[float, float]]] = {}
        newest = self._samples[-1].at if self._samples else 0.0
        for sample in self._samples:
            at = sample.at - newest
            series.setdefault(self.tr("CPU"), []).append((at, 100 * sample.cpu_frac))
            for device in sample.devices:
                if device.busy_frac is not None:
                    name = f"{device.kind.upper()} {device.device}"
                    series.setdefault(name, []).append((at, 100 * device.busy_frac))
        entries = []
        text = self.tr("{name}, {n} s ago: {busy} %")
        for number, (name, points) in enumerate(series.items()):
            colour = chart.series_colour(number)
            chart.line([x for x, _ in points], [y for _, y in points], colour)
            chart.points += [
                (x, y, text.format(name=name, n=formatted.whole(-x), busy=formatted.whole(y))) for x, y in points
            ]
            entries.append(KeyEntry(name, colour))
        self.key.show_curves(entries)
        self.series = {name: [y for _, y in points] for name, points in series.items()}


def plots_image(widgets: Sequence[QWidget]) -> QPixmap:
    """An image of the widgets below each other, as currently drawn."""
    ratio = widgets[0].devicePixelRatioF()
    width = max(w.width() for w in widgets)
    height = sum(w.height() for w in widgets)
    pixmap = QPixmap(round(width * ratio), round(height * ratio))
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill()
    painter = QPainter(pixmap)
    top = 0
    for widget in widgets:
        painter.drawPixmap(0, top, widget.grab())
        top += widget.height()
    painter.end()
    return pixmap
