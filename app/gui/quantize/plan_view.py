"""What a plan looks like: loss by size, and beside it each tensor's precision next to that of a stock mix."""

from collections.abc import Mapping, Sequence

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame

from app.gui import formatted
from app.gui.quantize.size_loss_plot import FrontierPlot
from app.gui.theme import Theme
from app.gui.widgets.basics import label, stack
from app.gui.widgets.tensor_mosaic import Mosaic, PrecisionLegend, tiles_of_tensors
from engine.api.quantizing import QuantPlan, StockPlan

_BESIDE = 56  # times the height of body text: from this width on the tensors stand beside the curve
_SHARES = (3, 2)  # of the width, for the curve and for the tensors


class PlanView(QFrame):
    """The curve and the tensors: side by side where there is room, so that both are seen at once."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setProperty("kind", "card")
        self.plot = FrontierPlot(theme)
        self.mosaic = Mosaic(theme, height=96)
        self.rival = Mosaic(theme, height=96)
        self._ours_name, self._rival_name = label("", "small"), label("", "small")
        for widget in (self.rival, self._rival_name):
            widget.hide()
        ours = stack(self._ours_name, self.mosaic, spacing=4)
        rival = stack(self._rival_name, self.rival, spacing=4)
        self._pair = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._pair.setSpacing(8)
        for side in (ours, rival):
            self._pair.addLayout(side, 1)
        tensors = stack(self._pair, PrecisionLegend(theme), 1, spacing=8)
        self._both = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._both.setContentsMargins(16, 16, 16, 16)
        self._both.setSpacing(16)
        self._both.addWidget(self.plot, _SHARES[0])
        self._both.addLayout(tensors, _SHARES[1])
        theme.changed.connect(self._turn)

    def show_points(self, ours: Mapping[int, float], stock: Sequence[StockPlan]) -> None:
        """The curve: file bytes to predicted loss, and the stock mixes."""
        self.plot.show_points(ours, stock)

    def show_plan(self, plan: QuantPlan) -> None:
        """Our tensors, and those of the stock mix of this size whose types are known."""
        self.mosaic.show_tiles(tiles_of_tensors(plan.tensors))
        self._ours_name.setText(self.tr("Tessera · {size}").format(size=formatted.size(plan.file_bytes)))
        stock = next((row for row in plan.stock if row.types), None)
        for widget in (self.rival, self._rival_name):
            widget.setVisible(stock is not None)
        if stock is not None:
            self.rival.show_tiles(tiles_of_tensors(plan.tensors, stock.types))
            text = self.tr("Stock mix {name} · {size}")
            self._rival_name.setText(text.format(name=stock.name, size=formatted.size(stock.file_bytes)))
        self.plot.show_here(plan.file_bytes)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Another width may have another order."""
        super().resizeEvent(event)
        self._turn()

    def _turn(self) -> None:
        """Wide: the curve left, the tensors right. Narrow: the curve above, the tensors below it, side by side."""
        wide = self.width() >= _BESIDE * self._theme.tokens.body
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._both.setDirection(across if wide else down)
        self._pair.setDirection(down if wide else across)
