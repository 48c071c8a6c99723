"""Shows a model as a mosaic: one tile per tensor, coloured by precision."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QCoreApplication, QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QToolTip, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import label
from app.gui.widgets.swatch import Swatch, shape_painter
from engine.api.library import Tensor
from engine.api.quantizing import TensorPlan
from quantize.ggml_types import GgmlType, bits_per_weight

_ROW = 16  # height in pixels of a grid row and of the layer labels at the normal text size
_IN_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?$")
# Tensor roles in the order in which a layer computes them.
# Source: tensor names of llama.cpp, gguf-py constants.py.
_ROLE_NAMES = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "output",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "ffn_gate_inp": "router",
    "ffn_gate_exps": "experts' gate",
    "ffn_up_exps": "experts' up",
    "ffn_down_exps": "experts' down",
    "ffn_gate_shexp": "shared gate",
    "ffn_up_shexp": "shared up",
    "ffn_down_shexp": "shared down",
}
_ORDER = tuple(_ROLE_NAMES)


@dataclass(frozen=True)
class Tile:
    """One tensor: bits per weight, tooltip and position. `layer` is -1 outside layers."""

    bits: float
    tip: str
    role: str = ""
    layer: int = -1


def bits_of(qtype: str) -> float:
    """Bits per weight of a GGML type; 0 if unknown."""
    return bits_per_weight(GgmlType[qtype]) if qtype in GgmlType.__members__ else 0.0


def tiles_of_types(type_bytes: Mapping[str, int], num_tiles: int) -> list[Tile]:
    """Tiles in proportion to the weights of each type, for when the tensors are not known."""
    weights = {name: size * 8 / bits_of(name) for name, size in type_bytes.items() if bits_of(name)}
    total = sum(weights.values())
    tiles: list[Tile] = []
    for name, share in sorted(weights.items(), key=lambda item: bits_of(item[0])):
        tip = f"{name}: {formatted.size(type_bytes[name])}"
        tiles.extend([Tile(bits_of(name), tip)] * max(1, round(num_tiles * share / total)))
    return tiles[:num_tiles]


def tiles_of_tensors(tensors: Iterable[Tensor | TensorPlan], types: Mapping[str, str] | None = None) -> list[Tile]:
    """One tile per tensor, in file order. Omits vectors (norms, biases), which no plan may change.

    `types` overrides tensor types by name, for example with those of a llama.cpp preset.
    """
    tiles = []
    for tensor in tensors:
        if sum(extent > 1 for extent in tensor.shape or (2, 2)) <= 1:
            continue
        qtype = (types or {}).get(tensor.name, tensor.qtype)
        parts = [tensor.name, qtype]
        if types is None:
            parts.append(formatted.size(tensor.num_bytes))
            if isinstance(tensor, TensorPlan):
                damage = formatted.decimal(tensor.damage, 5)
                parts.append(QCoreApplication.translate("Mosaic", "loss {n}").format(n=damage))
        layer, role = _place_of(tensor.name)
        tiles.append(Tile(bits_of(qtype), " · ".join(parts), role, layer))
    return tiles


def _place_of(name: str) -> tuple[int, str]:
    """Layer and role of a name such as `blk.3.attn_q.weight`; -1 and the name for tensors outside layers."""
    match = _IN_LAYER.match(name)
    return (int(match[1]), match[2]) if match else (-1, name.removesuffix(".weight"))


_GAP = 1


class Mosaic(QWidget):
    """Draws the tiles by role and layer if known, else in rows."""

    def __init__(self, theme: Theme, *, height: int = 96) -> None:
        super().__init__()
        self._theme = theme
        self._tiles: Sequence[Tile] = ()
        self._boxes: list[tuple[QRectF, Tile]] = []
        self._roles: list[str] = []
        self.setMinimumHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self._fit)

    @property
    def _row(self) -> int:
        return self._theme.tokens.scaled(_ROW)

    def _fit(self) -> None:
        """Leave space for the names of the rows."""
        if self._roles:
            self.setMinimumHeight((len(self._roles) + 2) * self._row)
        self.updateGeometry()
        self._place()

    def show_tiles(self, tiles: Sequence[Tile]) -> None:
        self._tiles = tiles
        roles = {tile.role for tile in tiles if tile.layer >= 0}
        self._roles = sorted(roles, key=lambda role: (_ORDER.index(role) if role in _ORDER else len(_ORDER), role))
        average = sum(tile.bits for tile in tiles) / len(tiles) if tiles else 0
        self.setAccessibleName(
            self.tr("{n} tensors, {bits} bits on average").format(n=len(tiles), bits=formatted.decimal(average))
        )
        self._fit()

    @property
    def roles(self) -> list[str]:
        """The rows, top to bottom. Empty if the tiles have no layers."""
        return self._roles

    def sizeHint(self) -> QSize:
        """Minimum size; the width expands."""
        return QSize(160, self.minimumHeight())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Place the tiles again."""
        super().resizeEvent(event)
        self._place()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the tiles and the names of rows and layers."""
        del event
        painter = shape_painter(self)
        for box, tile in self._boxes:
            painter.setBrush(self._theme.tokens.precision_colour(tile.bits))
            painter.drawRoundedRect(box, 2, 2)
        if self._roles:
            self._paint_names(painter)

    def _paint_names(self, painter: QPainter) -> None:
        painter.setFont(self._theme.font("small"))
        painter.setPen(self._theme.tokens.colour("muted"))
        height = (self.height() - self._row) / (len(self._roles) + 1)
        side = self._side()
        names = [_ROLE_NAMES.get(role, role) for role in self._roles]
        for number, name in enumerate([*names, self.tr("first and last")]):
            box = QRectF(0, number * height, side - 8, height)
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, name)
        last = max(tile.layer for tile in self._tiles)
        foot = QRectF(side, self.height() - self._row, self.width() - side, self._row)
        painter.drawText(foot, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom, self.tr("layer 0"))
        painter.drawText(foot, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignBottom, str(last))

    def _side(self) -> float:
        metrics = QFontMetricsF(self._theme.font("small"))
        names = [_ROLE_NAMES.get(role, role) for role in self._roles]
        return max(metrics.horizontalAdvance(name) for name in [*names, self.tr("first and last")]) + 10

    def event(self, event: QEvent) -> bool:
        """Show the tooltip of the tile under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            for box, tile in self._boxes:
                if box.contains(event.pos()):
                    QToolTip.showText(event.globalPos(), formatted.plain_tip(tile.tip), self)
                    return True
            QToolTip.hideText()
            return True
        return super().event(event)

    def _place(self) -> None:
        self._boxes = self._grid() if self._roles else self._rows()
        self.update()

    def _grid(self) -> list[tuple[QRectF, Tile]]:
        """Place tiles by layer (columns) and role (rows). Tensors outside layers go into a row below."""
        side, cells = self._side(), []
        height = (self.height() - self._row) / (len(self._roles) + 1)
        width = (self.width() - side) / (max(tile.layer for tile in self._tiles) + 1)
        gap = _GAP if width > 4 * _GAP else 0.5
        ends = [tile for tile in self._tiles if tile.layer < 0]
        for tile in self._tiles:
            if tile.layer >= 0:
                x, y, wide = side + tile.layer * width, self._roles.index(tile.role) * height, width
            else:
                wide = (self.width() - side) / len(ends)
                x, y = side + ends.index(tile) * wide, len(self._roles) * height
            cells.append((QRectF(x + gap / 2, y + gap / 2, wide - gap, height - gap), tile))
        return cells

    def _rows(self) -> list[tuple[QRectF, Tile]]:
        count = max(len(self._tiles), 1)
        columns = max(1, min(count, math.ceil(math.sqrt(count * self.width() / max(self.height(), 1)))))
        width, height = self.width() / columns, self.height() / math.ceil(count / columns)
        return [
            (
                QRectF(
                    number % columns * width + _GAP / 2,
                    number // columns * height + _GAP / 2,
                    width - _GAP,
                    height - _GAP,
                ),
                tile,
            )
            for number, tile in enumerate(self._tiles)
        ]


class PrecisionLegend(QWidget):
    """The colour scale of the mosaic."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.tokens.unit // 2)
        for bits, _ in theme.tokens.precision:
            layout.addWidget(Swatch(12, 2, partial(_colour_of, theme, bits)))
            layout.addWidget(label(formatted.decimal(bits, 0), "small"))
        layout.addWidget(label(self.tr("bits per weight"), "small"))
        layout.addStretch(1)


def _colour_of(theme: Theme, bits: float) -> QColor:
    return theme.tokens.precision_colour(bits)
