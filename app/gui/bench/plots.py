"""Plots of the bench page: speeds against the length of the prompt, and how busy the machine is meanwhile."""

from collections.abc import Sequence
from typing import Any

import pyqtgraph
from PySide6.QtGui import QColor

from app.gui.look import Look
from engine.api.measuring import Point
from engine.api.stats import Usage

_SYMBOLS = ("o", "s", "t", "d", "+", "x")


class SpeedPlot(pyqtgraph.PlotWidget):  # type: ignore[misc]  # pyqtgraph is unannotated
    """One line a result: `field` of its points (decode_tok_s or prefill_tok_s) with the spread of the repeats."""

    def __init__(self, look: Look, title: str, field: str) -> None:
        super().__init__()
        self._look, self._field = look, field
        self._shown: Sequence[tuple[str, Sequence[Point]]] = ()
        self.setMinimumHeight(220)
        self.setMouseEnabled(x=False, y=False)
        self.setMenuEnabled(False)
        self.hideButtons()
        self.setAccessibleName(title)
        self.setTitle(title)
        self.setLabel("bottom", self.tr("tokens in the prompt"))
        self.legend = self.addLegend(offset=(-8, 8))
        self.lines: dict[str, list[tuple[float, float]]] = {}
        look.changed.connect(self._draw)
        self._draw()

    def show_results(self, results: Sequence[tuple[str, Sequence[Point]]]) -> None:
        """The points of each result with the name of its line. A result without points draws nothing."""
        self._shown = results
        self._draw()

    def _draw(self) -> None:
        look = self._look
        self.clear()
        self.legend.clear()
        self.lines = {}
        self.setBackground(look.tokens.colour("raised"))
        muted = look.tokens.colour("muted")
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.setPen(pyqtgraph.mkPen(look.tokens.colour("border")))
            axis.setTextPen(pyqtgraph.mkPen(muted))
        top = 0.0
        for number, (name, points) in enumerate(self._shown):
            rows = [(p.length, getattr(p, self._field)) for p in sorted(points, key=lambda p: p.length)]
            if not rows:
                continue
            xs, ys = [float(x) for x, _ in rows], [s.median for _, s in rows]
            colour = QColor(look.tokens.series[number % len(look.tokens.series)])
            pen = pyqtgraph.mkPen(colour, width=2)
            symbol = _SYMBOLS[number % len(_SYMBOLS)]
            self.plot(xs, ys, pen=pen, symbol=symbol, symbolBrush=colour, symbolPen=colour, symbolSize=7, name=name)
            low = [y - s.low for y, (_, s) in zip(ys, rows, strict=True)]
            high = [s.high - y for y, (_, s) in zip(ys, rows, strict=True)]
            self.addItem(_bars(xs, ys, low, high, pen))
            self.lines[name] = list(zip(xs, ys, strict=True))
            top = max(top, *(y + h for y, h in zip(ys, high, strict=True)))
        self.setYRange(0, max(top * 1.1, 1.0), padding=0)


def _bars(xs: list[float], ys: list[float], low: list[float], high: list[float], pen: Any) -> Any:
    """The spread of the repeats as bars."""
    import numpy as np  # noqa: PLC0415 - only where something is drawn

    return pyqtgraph.ErrorBarItem(
        x=np.asarray(xs), y=np.asarray(ys), bottom=np.asarray(low), top=np.asarray(high), pen=pen
    )


class BusyPlot(pyqtgraph.PlotWidget):  # type: ignore[misc]  # pyqtgraph is unannotated
    """Processor, GPUs and NPUs over the last two minutes, in percent."""

    def __init__(self, look: Look, title: str) -> None:
        super().__init__()
        self._look = look
        self.setFixedHeight(120)
        self.setMouseEnabled(x=False, y=False)
        self.setMenuEnabled(False)
        self.hideButtons()
        self.setAccessibleName(title)
        self.setTitle(title)
        self.setYRange(0, 100, padding=0.02)
        self.legend = self.addLegend(offset=(-8, 8))
        self.series: dict[str, list[float]] = {}
        self._samples: Sequence[Usage] = ()
        look.changed.connect(self._draw)
        self._draw()

    def show_samples(self, samples: Sequence[Usage]) -> None:
        """Samples of the server, oldest first."""
        self._samples = samples
        self._draw()

    def _draw(self) -> None:
        self.clear()
        self.legend.clear()
        self.setBackground(self._look.tokens.colour("raised"))
        found: dict[str, list[tuple[float, float]]] = {}
        newest = self._samples[-1].at if self._samples else 0.0
        for sample in self._samples:
            at = sample.at - newest
            found.setdefault(self.tr("Processor"), []).append((at, 100 * sample.cpu_frac))
            for device in sample.devices:
                if device.busy_frac is not None:
                    name = f"{device.kind.upper()} {device.device}"
                    found.setdefault(name, []).append((at, 100 * device.busy_frac))
        for number, (name, points) in enumerate(found.items()):
            colour = QColor(self._look.tokens.series[number % len(self._look.tokens.series)])
            self.plot(
                [x for x, _ in points], [y for _, y in points], pen=pyqtgraph.mkPen(colour, width=2), name=name
            )
        self.series = {name: [y for _, y in points] for name, points in found.items()}
