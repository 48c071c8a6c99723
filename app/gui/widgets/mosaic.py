"""A model as a mosaic: one tile a tensor, coloured by its precision."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolTip, QWidget

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import label
from engine.api.library import Tensor
from engine.api.quantizing import TensorPlan
from quantize.ggml_types import GgmlType, bits_per_weight


@dataclass(frozen=True)
class Tile:
    """One tensor: precision in bits a weight, and what the tip says."""

    bits: float
    tip: str


def bits_of(qtype: str) -> float:
    """Bits a weight of a GGML type; 0 for a name nobody knows."""
    return bits_per_weight(GgmlType[qtype]) if qtype in GgmlType.__members__ else 0.0


def tiles_of_types(type_bytes: Mapping[str, int], num_tiles: int) -> list[Tile]:
    """Tiles in proportion to the weights each type holds, when the single tensors are not known."""
    weights = {name: size * 8 / bits_of(name) for name, size in type_bytes.items() if bits_of(name)}
    total = sum(weights.values())
    made: list[Tile] = []
    for name, share in sorted(weights.items(), key=lambda item: bits_of(item[0])):
        tip = f"{name}: {words.size(type_bytes[name])}"
        made.extend([Tile(bits_of(name), tip)] * max(1, round(num_tiles * share / total)))
    return made[:num_tiles]


def tiles_of_tensors(tensors: Iterable[Tensor | TensorPlan]) -> list[Tile]:
    """One tile a tensor, in file order; vectors (norms, biases) stay out, for no plan may change them."""
    return [
        Tile(bits_of(tensor.qtype), f"{tensor.name}: {tensor.qtype}, {words.size(tensor.num_bytes)}")
        for tensor in tensors
        if sum(extent > 1 for extent in tensor.shape or (2, 2)) > 1
    ]


class Mosaic(QWidget):
    """Draws tiles into the space it has."""

    def __init__(self, look: Look, *, height: int = 96, gap: int = 1) -> None:
        super().__init__()
        self._look = look
        self._gap = gap
        self._tiles: Sequence[Tile] = ()
        self.setMinimumHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.update)

    def show_tiles(self, tiles: Sequence[Tile]) -> None:
        """Show these tensors."""
        self._tiles = tiles
        average = sum(tile.bits for tile in tiles) / len(tiles) if tiles else 0
        self.setAccessibleName(
            self.tr("{n} tensors, {bits} bits on average").format(n=len(tiles), bits=words.decimal(average))
        )
        self.update()

    def sizeHint(self) -> QSize:
        """As wide as it gets."""
        return QSize(160, self.minimumHeight())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Rows of tiles."""
        del event
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        for number, tile in enumerate(self._tiles):
            painter.setBrush(self._look.tokens.precision_colour(tile.bits))
            painter.drawRoundedRect(self._box(number), 2, 2)

    def event(self, event: QEvent) -> bool:
        """The tip of the tile under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            for number, tile in enumerate(self._tiles):
                if self._box(number).contains(event.pos()):
                    QToolTip.showText(event.globalPos(), tile.tip, self)
                    return True
            QToolTip.hideText()
            return True
        return super().event(event)

    def _columns(self) -> int:
        count = max(len(self._tiles), 1)
        return max(1, min(count, math.ceil(math.sqrt(count * self.width() / max(self.height(), 1)))))

    def _box(self, number: int) -> QRectF:
        columns = self._columns()
        rows = math.ceil(max(len(self._tiles), 1) / columns)
        width, height = self.width() / columns, self.height() / rows
        return QRectF(
            number % columns * width + self._gap / 2,
            number // columns * height + self._gap / 2,
            width - self._gap,
            height - self._gap,
        )


class PrecisionLegend(QWidget):
    """The scale of the mosaic's colours."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(look.tokens.unit // 2)
        for bits, _ in look.tokens.precision:
            layout.addWidget(_Swatch(look, bits))
            layout.addWidget(label(words.decimal(bits, 0), "small"))
        layout.addWidget(label(self.tr("bits per weight"), "small"))
        layout.addStretch(1)


class _Swatch(QWidget):
    def __init__(self, look: Look, bits: float) -> None:
        super().__init__()
        self._look, self._bits = look, bits
        self.setFixedSize(12, 12)

    def paintEvent(self, event: QPaintEvent) -> None:
        """One tile."""
        del event
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._look.tokens.precision_colour(self._bits))
        painter.drawRoundedRect(QRectF(0, 0, 12, 12), 2, 2)
