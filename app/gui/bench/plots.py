"""Plots of the bench page: speeds against the length of the prompt, and how busy the machine is meanwhile."""

from collections.abc import Sequence
from typing import Any

import pyqtgraph
from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import label, stack
from app.gui.widgets.chart import Chart, ChartKey, value_words
from engine.api.measuring import Point
from engine.api.stats import Usage

_SECONDS = 120
_SYMBOLS = ("o", "s", "t", "d", "+", "x")


class _Titled(QWidget):
    """A chart below its title and key."""

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
    """One line a result: `field` of its points (decode_tok_s or prefill_tok_s) with the spread of the repeats."""

    def __init__(self, theme: Theme, title: str, field: str) -> None:
        super().__init__(theme, title)
        self._field = field
        self._shown: Sequence[tuple[str, Sequence[Point]]] = ()
        self.chart.setMinimumHeight(200)
        self.chart.name_axes(bottom=self.tr("tokens in the prompt"))
        self.lines: dict[str, list[tuple[float, float]]] = {}
        self._draw()

    def show_results(self, results: Sequence[tuple[str, Sequence[Point]]]) -> None:
        """The points of each result with the name of its line. A result without points draws nothing."""
        self._shown = results
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        self.lines = {}
        entries = []
        top = 0.0
        for number, (name, points) in enumerate(self._shown):
            rows = [(p.length, getattr(p, self._field)) for p in sorted(points, key=lambda p: p.length)]
            if not rows:
                continue
            xs, ys = [float(x) for x, _ in rows], [s.median for _, s in rows]
            colour = chart.series_colour(number)
            chart.line(xs, ys, colour, symbol=_SYMBOLS[number % len(_SYMBOLS)])
            low = [y - s.low for y, (_, s) in zip(ys, rows, strict=True)]
            high = [s.high - y for y, (_, s) in zip(ys, rows, strict=True)]
            chart.addItem(_bars(xs, ys, low, high, pyqtgraph.mkPen(colour, width=1)))
            self.lines[name] = list(zip(xs, ys, strict=True))
            entries.append((name, colour))
            text = self.tr("{name}: {speed} tokens/s at {n} tokens")
            chart.points += [
                (x, y, text.format(name=name, speed=value_words(y), n=formatted.whole(x)))
                for x, y in self.lines[name]
            ]
            top = max(top, *(y + h for y, h in zip(ys, high, strict=True)))
        self.key.show_names(entries)
        chart.setYRange(0, max(top * 1.1, 1.0), padding=0)


def _bars(xs: list[float], ys: list[float], low: list[float], high: list[float], pen: Any) -> Any:
    """The spread of the repeats as bars."""
    import numpy as np  # noqa: PLC0415 - only where something is drawn

    return pyqtgraph.ErrorBarItem(
        x=np.asarray(xs), y=np.asarray(ys), bottom=np.asarray(low), top=np.asarray(high), pen=pen
    )


class BusyPlot(_Titled):
    """Processor, GPUs and NPUs over the last two minutes, in percent."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__(theme, title)
        self.chart.setFixedHeight(112)
        self.chart.setYRange(0, 100, padding=0.02)
        self.chart.getPlotItem().getAxis("left").setTicks([[(0, "0"), (50, "50"), (100, "100")]])
        ago = QCoreApplication.translate("TimePlot", "{n} min ago")
        now = QCoreApplication.translate("TimePlot", "now")
        clock = self.chart.getPlotItem().getAxis("bottom")
        clock.setTicks([[(-_SECONDS / 2, ago.format(n=_SECONDS // 120)), (0.0, now)]])
        clock.setStyle(hideOverlappingLabels=False)  # or the word at the edge is left out
        self.chart.getPlotItem().setContentsMargins(0, 8, 16, 4)
        self.chart.setXRange(-_SECONDS, 0, padding=0)
        self.series: dict[str, list[float]] = {}
        self._samples: Sequence[Usage] = ()
        self._draw()

    def show_samples(self, samples: Sequence[Usage]) -> None:
        """Samples of the server, oldest first."""
        self._samples = samples
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        found: dict[str, list[tuple[float, float]]] = {}
        newest = self._samples[-1].at if self._samples else 0.0
        for sample in self._samples:
            at = sample.at - newest
            found.setdefault(self.tr("Processor"), []).append((at, 100 * sample.cpu_frac))
            for device in sample.devices:
                if device.busy_frac is not None:
                    name = f"{device.kind.upper()} {device.device}"
                    found.setdefault(name, []).append((at, 100 * device.busy_frac))
        entries = []
        text = self.tr("{name}, {n} s ago: {busy} %")
        for number, (name, points) in enumerate(found.items()):
            colour = chart.series_colour(number)
            chart.line([x for x, _ in points], [y for _, y in points], colour)
            chart.points += [
                (x, y, text.format(name=name, n=formatted.whole(-x), busy=formatted.whole(y))) for x, y in points
            ]
            entries.append((name, colour))
        self.key.show_names(entries)
        self.series = {name: [y for _, y in points] for name, points in found.items()}
