"""The size/loss curve: Tessera's plans, llama.cpp presets, and the slider position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, hypot, log10

import pyqtgraph
from PySide6.QtCore import QCoreApplication, QPointF, Qt, QTimer

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.chart import Chart
from engine.api.quantizing import PresetPlan
from quantize.plan.llama_cpp_preset_rules import WELL_KNOWN

_MIB = 1 << 20
_DOT = 10  # diameter of a point in pixels
_LINE = 6  # pixels that the curve occupies
_HEIGHT = 320  # pixels; fits below the choices in a window 780 pixels high


class FrontierPlot(Chart):
    """Predicted loss over file size on a logarithmic scale. Lower is better."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, QCoreApplication.translate("FrontierPlot", "Loss of quality by size"))
        self.setFixedHeight(_HEIGHT)
        self.setLogMode(y=True)
        self._ours = self.plot([], [], symbol="o", symbolSize=7, antialias=True)
        self._stock = pyqtgraph.ScatterPlotItem(size=9, symbol="s")
        self.addItem(self._stock)
        self._here = pyqtgraph.InfiniteLine(angle=90, movable=False)
        self.addItem(self._here)
        self._leaders = pyqtgraph.PlotCurveItem(connect="pairs")  # lines from names to their points
        self.addItem(self._leaders)
        self._labels: list[pyqtgraph.TextItem] = []
        self._points: list[tuple[float, float]] = []
        self._settle = QTimer(self, singleShot=True)
        self._settle.timeout.connect(self._place_labels)
        self.getViewBox().sigRangeChanged.connect(lambda *_: self._settle.start(0))
        self.getViewBox().sigResized.connect(lambda *_: self._settle.start(0))
        self._stock_rows: Sequence[PresetPlan] = ()
        self.legend = self.addLegend(offset=(-8, 8))
        self.legend.addItem(self._ours, self.tr("Tessera"))
        self.legend.addItem(self._stock, self.tr("llama.cpp presets"))
        self.name_axes(bottom=self.tr("Size of the file, MiB"), left=self.tr("Predicted loss (KLD)"))
        self._recolour()
        theme.changed.connect(self._recolour)

    _own_tips: Sequence[tuple[float, float, str]] = ()

    def show_points(self, ours: Mapping[int, float], stock: Sequence[PresetPlan]) -> None:
        """Show the points. `ours`: file bytes to predicted loss. `stock`: presets; `damage` None means unknown."""
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
        """Mark the slider position."""
        self._here.setValue(num_bytes / _MIB)
        self._settle.start(0)

    def _show_stock(self) -> None:
        # The scatter item does not apply the logarithmic mode itself.
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
        self._leaders.setData([], [])
        for row in self._stock_rows:
            if row.name not in WELL_KNOWN:  # more names would overlap
                continue
            item = pyqtgraph.TextItem(row.name, color=self._theme.tokens.colour("muted"), anchor=(0, 1))
            item.setZValue(2)
            item.setFont(self._theme.font("small"))
            item.textItem.document().setDocumentMargin(1)  # otherwise a name starts far from its point
            item.setPos(row.file_bytes / _MIB, log10(row.damage or 1))
            item.setVisible(False)  # until it has its place: at its point it would cover others
            self.addItem(item)
            self._labels.append(item)
        self._settle.start(0)

    def _place_labels(self) -> None:
        """Place names next to their points without covering points, lines or other names."""
        box = self.getViewBox()
        stock = [(row.file_bytes / _MIB, log10(row.damage or 1)) for row in self._stock_rows]
        boxes = []
        for x, y in (*stock, *self._points):
            at = box.mapViewToScene(QPointF(x, y))
            boxes.append(Box(at.x() - _DOT / 2, at.y() - _DOT / 2, _DOT, _DOT))
        curve = [box.mapViewToScene(QPointF(x, y)) for x, y in self._points]
        boxes += [
            Box(x - _LINE / 2, y - _LINE / 2, _LINE, _LINE)
            for first, last in pairwise(curve)
            for x, y in along((first.x(), first.y()), (last.x(), last.y()), _LINE)
        ]
        line = box.mapViewToScene(QPointF(self._here.value(), 0.0)).x()
        whole = box.sceneBoundingRect()
        boxes.append(Box(line - 1, whole.top(), 2, whole.height()))  # keep names off the dashed line
        boxes += around(Box(whole.left(), whole.top(), whole.width(), whole.height()))  # keep names inside the plot
        ends: list[QPointF] = []
        for item in self._labels:
            at = box.mapViewToScene(item.pos())
            size = item.boundingRect()
            spot = place(at.x(), at.y(), size.width(), size.height(), boxes)
            item.setVisible(spot is not None)
            if spot is not None:
                boxes.append(spot)
                item.setAnchor(((at.x() - spot.left) / spot.width, (at.y() - spot.top) / spot.height))
                near = QPointF(
                    min(max(at.x(), spot.left), spot.left + spot.width),
                    min(max(at.y(), spot.top), spot.top + spot.height),
                )
                if hypot(near.x() - at.x(), near.y() - at.y()) > 2 * _DISTANCES[0]:
                    ends += [item.pos(), box.mapSceneToView(near)]
        self._leaders.setData([end.x() for end in ends], [end.y() for end in ends])

    def _recolour(self) -> None:
        tokens = self._theme.tokens
        ours = tokens.colour("accent")
        self._ours.setPen(pyqtgraph.mkPen(ours, width=2))
        self._ours.setSymbolBrush(ours)
        self._ours.setSymbolPen(None)
        self._stock.setBrush(tokens.stock)
        self._stock.setPen(None)
        self._leaders.setPen(pyqtgraph.mkPen(tokens.colour("muted"), width=1))
        self._here.setPen(pyqtgraph.mkPen(tokens.colour("muted"), width=1, style=Qt.PenStyle.DashLine))
        for _, name in self.legend.items:  # the legend does not update its colours itself
            name.setText(name.text, color=tokens.colour("text"), size=f"{tokens.small}px")
        self.legend.updateSize()
        self._show_stock()


def size_text(num_bytes: int, bpw: float) -> str:
    """File size and bits per weight, for example "5.5 MiB · 4.9 bits"."""
    if not bpw:
        return formatted.size(num_bytes)
    bits = QCoreApplication.translate("fit", "{n} bits").format(n=formatted.decimal(bpw, 2))
    return f"{formatted.size(num_bytes)} · {bits}"


# Finds positions for point labels that cover nothing.

# Directions to try, best first: above right, above, right, above left, left, below right, below. Presets lie above
# Tessera's curve, which a label below left would cross.
_WAYS = ((0.0, -1.0), (-0.5, -1.0), (0.0, -0.5), (-1.0, -1.0), (-1.0, -0.5), (0.0, 0.0), (-0.5, 0.0))
_DISTANCES = (6, 12, 20, 30)
_FAR = 1e4  # pixels, more than any label's distance


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels; y grows downwards."""

    left: float
    top: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """Whether the rectangles overlap."""
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


def along(first: tuple[float, float], last: tuple[float, float], step: float) -> list[tuple[float, float]]:
    """Points between two points, at most `step` apart, without the ends."""
    far = hypot(last[0] - first[0], last[1] - first[1])
    count = ceil(far / step)
    return [
        (first[0] + (last[0] - first[0]) * n / count, first[1] + (last[1] - first[1]) * n / count)
        for n in range(1, count)
    ]


def around(box: Box) -> tuple[Box, ...]:
    """Four boxes that cover the area outside a rectangle."""
    return (
        Box(box.left - _FAR, box.top - _FAR, _FAR, box.height + 2 * _FAR),
        Box(box.left + box.width, box.top - _FAR, _FAR, box.height + 2 * _FAR),
        Box(box.left, box.top - _FAR, box.width, _FAR),
        Box(box.left, box.top + box.height, box.width, _FAR),
    )


def place(x: float, y: float, width: float, height: float, occupied: Sequence[Box]) -> Box | None:
    """The nearest free box for a label of this size next to the point, or None."""
    for distance in _DISTANCES:
        for across, down in _WAYS:
            left = x + across * width + distance * (0 if across == -0.5 else 1 if across == 0 else -1)  # noqa: PLR2004 - centred
            top = y + down * height + distance * (0 if down == -0.5 else 1 if down == 0 else -1)  # noqa: PLR2004 - centred
            box = Box(left, top, width, height)
            if not any(box.meets(other) for other in occupied):
                return box
    return None
