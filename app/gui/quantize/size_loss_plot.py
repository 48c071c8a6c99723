"""The frontier: bytes against loss, our mixes and the stock ones, and where the slider stands."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10

import pyqtgraph
from PySide6.QtCore import QCoreApplication, QPointF, Qt, QTimer

from app.gui import formatted
from app.gui.quantize.label_layout import Box, along, around, place
from app.gui.theme import Theme
from app.gui.widgets.chart import Chart
from engine.api.quantizing import StockPlan
from quantize.plan.llama_cpp_preset_rules import WELL_KNOWN

_MIB = 1 << 20
_DOT = 10  # pixels of a point
_LINE = 6  # pixels that a line needs for itself
_HEIGHT = 320  # pixels: below the choices, and above the fold of a window of 780


class FrontierPlot(Chart):
    """Lower is better: predicted loss over size, on a logarithmic scale."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, QCoreApplication.translate("FrontierPlot", "Loss of quality by size"))
        self.setFixedHeight(_HEIGHT)
        self.setLogMode(y=True)
        self._ours = self.plot([], [], symbol="o", symbolSize=7, antialias=True)
        self._stock = pyqtgraph.ScatterPlotItem(size=9, symbol="s")
        self.addItem(self._stock)
        self._here = pyqtgraph.InfiniteLine(angle=90, movable=False)
        self.addItem(self._here)
        self._labels: list[pyqtgraph.TextItem] = []
        self._points: list[tuple[float, float]] = []
        self._settle = QTimer(self)
        self._settle.setSingleShot(True)
        self._settle.timeout.connect(self._place_labels)
        self.getViewBox().sigRangeChanged.connect(lambda *_: self._settle.start(0))
        self.getViewBox().sigResized.connect(lambda *_: self._settle.start(0))
        self._stock_rows: Sequence[StockPlan] = ()
        self.legend = self.addLegend(offset=(-8, 8))
        self.legend.addItem(self._ours, self.tr("Tessera"))
        self.legend.addItem(self._stock, self.tr("Stock mixes"))
        self.name_axes(bottom=self.tr("Size of the file, MiB"), left=self.tr("Predicted loss (KLD)"))
        self._recolour()
        theme.changed.connect(self._recolour)

    _own_tips: Sequence[tuple[float, float, str]] = ()

    def show_points(self, ours: Mapping[int, float], stock: Sequence[StockPlan]) -> None:
        """Ours: file bytes to predicted loss. Stock: rows with name, file_bytes, damage (None: not known)."""
        points = sorted((size, loss) for size, loss in ours.items() if loss > 0)
        self._ours.setData([size / _MIB for size, _ in points], [loss for _, loss in points])
        self._points = [(size / _MIB, log10(loss)) for size, loss in points]
        self._own_tips = [
            (size / _MIB, log10(loss), self._tip(self.tr("Tessera"), size, loss)) for size, loss in points
        ]
        self._stock_rows = [row for row in stock if (row.damage or 0) > 0]
        self._show_stock()

    def _tip(self, name: str, num_bytes: int, loss: float) -> str:
        text = QCoreApplication.translate("FrontierPlot", "{name}: {size}, loss {n}")
        return text.format(name=name, size=formatted.size(num_bytes), n=formatted.decimal(loss, 4))

    def show_here(self, num_bytes: int) -> None:
        """Where the slider stands."""
        self._here.setValue(num_bytes / _MIB)
        self._settle.start(0)

    def _show_stock(self) -> None:
        # The scatter item does not follow the logarithmic mode by itself.
        self._stock.setData(
            [row.file_bytes / _MIB for row in self._stock_rows],
            [log10(row.damage or 1) for row in self._stock_rows],
        )
        tips = [
            (row.file_bytes / _MIB, log10(row.damage or 1), self._tip(row.name, row.file_bytes, row.damage or 0))
            for row in self._stock_rows
        ]
        self.points = [*self._own_tips, *tips]
        for item in self._labels:
            self.removeItem(item)
        self._labels = []
        for row in self._stock_rows:
            if row.name not in WELL_KNOWN:  # more names would cover each other
                continue
            item = pyqtgraph.TextItem(row.name, color=self._theme.tokens.colour("muted"), anchor=(0, 1))
            item.setZValue(2)
            item.setFont(self._theme.font("small"))
            item.setPos(row.file_bytes / _MIB, log10(row.damage or 1))
            self.addItem(item)
            self._labels.append(item)
        self._settle.start(0)

    def _place_labels(self) -> None:
        """Names beside their points, where they cover neither points nor lines nor each other."""
        box = self.getViewBox()
        stock = [(row.file_bytes / _MIB, log10(row.damage or 1)) for row in self._stock_rows]
        taken = []
        for x, y in (*stock, *self._points):
            at = box.mapViewToScene(QPointF(x, y))
            taken.append(Box(at.x() - _DOT / 2, at.y() - _DOT / 2, _DOT, _DOT))
        curve = [box.mapViewToScene(QPointF(x, y)) for x, y in self._points]
        taken += [
            Box(x - _LINE / 2, y - _LINE / 2, _LINE, _LINE)
            for first, last in pairwise(curve)
            for x, y in along((first.x(), first.y()), (last.x(), last.y()), _LINE)
        ]
        line = box.mapViewToScene(QPointF(self._here.value(), 0.0)).x()
        whole = box.sceneBoundingRect()
        taken.append(Box(line - 1, whole.top(), 2, whole.height()))  # a dash through a name spoils it
        taken += around(Box(whole.left(), whole.top(), whole.width(), whole.height()))  # a name is not cut off
        for item in self._labels:
            at = box.mapViewToScene(item.pos())
            size = item.boundingRect()
            found = place(at.x(), at.y(), size.width(), size.height(), taken)
            item.setVisible(found is not None)
            if found is not None:
                taken.append(found)
                item.setAnchor(((at.x() - found.left) / found.width, (at.y() - found.top) / found.height))

    def _recolour(self) -> None:
        tokens = self._theme.tokens
        ours = tokens.colour("accent")
        self._ours.setPen(pyqtgraph.mkPen(ours, width=2))
        self._ours.setSymbolBrush(ours)
        self._ours.setSymbolPen(None)
        self._stock.setBrush(tokens.stock)
        self._stock.setPen(None)
        self._here.setPen(pyqtgraph.mkPen(tokens.colour("muted"), width=1, style=Qt.PenStyle.DashLine))
        for _, name in self.legend.items:  # the legend keeps showing the old ones
            name.setText(name.text, color=tokens.colour("text"), size=f"{tokens.small}px")
        self.legend.updateSize()
        self._show_stock()


def size_words(num_bytes: int, bpw: float) -> str:
    """5.5 MiB · 4.9 bits per weight."""
    if not bpw:
        return formatted.size(num_bytes)
    bits = QCoreApplication.translate("fit", "{n} bits").format(n=formatted.decimal(bpw, 2))
    return f"{formatted.size(num_bytes)} · {bits}"
