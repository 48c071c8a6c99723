"""The result of quantizing: measurements, compared with the llama.cpp preset of the same size."""

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QCoreApplication
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout

from app.gui import formatted
from app.gui.quantize.size_loss_plot import FrontierPlot
from app.gui.theme import Theme
from app.gui.widgets.basics import card, label, stack
from app.gui.widgets.tensor_mosaic import Mosaic, PrecisionLegend, tiles_of_tensors
from engine.api.quantizing import FileReport, PresetPlan, QuantizeReport, QuantPlan
from quantize.job.gate import could_veto
from quantize.job.report import exact_counts
from quantize.types import Interval


def report_card(theme: Theme, report: QuantizeReport) -> QFrame:
    """Mosaic, and a table that compares the result with the llama.cpp preset."""
    ours, stock = report.ours, report.stock
    verdict = label(_verdict(report), wrap=True)
    mosaic = Mosaic(theme, height=96)
    mosaic.show_tiles(tiles_of_tensors(report.plan.tensors))
    grid = QGridLayout()
    grid.setHorizontalSpacing(24)
    grid.setColumnStretch(0, 1)
    heads = [_tr("Measured on text outside the calibration text"), _tr("This file")]
    if stock:
        heads.append(_tr("llama.cpp {name}").format(name=report.stock_mix or ""))
    for column, text in enumerate(heads):
        grid.addWidget(label(text, "small"), 0, column)
    notes = [label(text, wrap=True) for text in [*own_file_texts(report), *gate_texts(report), *_how(report)]]
    if not ours:
        left_out = label(_tr("Not compared: the comparison was skipped."), "small")
        return card(verdict, mosaic, PrecisionLegend(theme), left_out, *notes)
    for number, (words_, written) in enumerate(_MEASURES, 1):
        grid.addWidget(label(_tr(words_)), number, 0)
        for column, measured in enumerate([ours, stock][: len(heads) - 1], 1):
            text = written(measured) if measured else ""
            grid.addWidget(label(text, "strong" if column == 1 else ""), number, column)
    return card(verdict, mosaic, PrecisionLegend(theme), grid, *notes, spacing=12)


def _verdict(report: QuantizeReport) -> str:
    size = formatted.size(report.file_bytes or report.plan.file_bytes)
    if report.shipped == "nothing" and report.gate:
        return _tr(
            "The new file was discarded. Choose a larger file, or measure more thoroughly. The "
            "original is unchanged."
        )
    if report.shipped == "stock" and _is_own_file_rejected(report):
        text = _tr(
            "{size}. Tessera's quantization did the task clearly worse, but the llama.cpp preset "
            "{name} did not, so the preset was written."
        )
        return text.format(size=size, name=report.stock_mix or "")
    if report.shipped == "stock":
        text = _tr(
            "{size}. Tessera's quantization was not clearly better than the llama.cpp preset {name}, "
            "so the preset was written."
        )
        return text.format(size=size, name=report.stock_mix or "")
    ratio = report.kld_ratio
    if ratio:
        return _tr("{size}. Its loss is {n} % of the loss of {name}, the llama.cpp preset of this size.").format(
            size=size, n=formatted.whole(100 * ratio), name=report.stock_mix or ""
        )
    return size


def _is_own_file_rejected(report: QuantizeReport) -> bool:
    return report.gate is not None and report.gate.checks[0].mix == "ours"


def gate_texts(report: QuantizeReport) -> list[str]:
    """Results of the quality gate for each checked file: counts and the interval of the loss."""
    if report.gate is None:
        return []
    lines = []
    for check in report.gate.checks:
        if check.mix == "ours":
            text = _tr("Task {task}: {before} of {cases} correct before, {after} after.")
        else:
            text = _tr("Task {task}, llama.cpp preset: {before} of {cases} correct before, {after} after.")
        counts = text.format(task=report.gate.task, before=check.before, cases=check.cases, after=check.after)
        low, high = 100 * check.loss.low, 100 * check.loss.high
        if check.vetoed:
            likely = _tr("A likely loss of {low} to {high} points: discarded.")
        elif high < 0:
            likely, low, high = _tr("A likely gain of {low} to {high} points."), -high, -low
        else:
            likely, low = _tr("Between {low} points better and {high} worse: no clear loss."), -low
        lines.append(f"{counts} {likely.format(low=formatted.whole(low), high=formatted.whole(high))}")
    if not could_veto(report.gate):
        lines.append(_tr("The original solves too few of these tasks, so this quality gate was skipped."))
    if report.gate.reference:
        lines.append(
            _tr("Compared with the original in 8 bits, because the original does not fit into free memory.")
        )
    return lines


def _how(report: QuantizeReport) -> list[str]:
    """Describe how the file was made, if not in the usual way."""
    text = _tr("The source stores {n} weights as {format}. What that lost cannot be restored.")
    lines = [text.format(n=formatted.whole(n), format=what) for what, n in report.formats.items()]
    if report.stopped == "unmeasured":
        lines.append(
            _tr(
                "Stopped early: this first version was made without measuring the model. Start again to continue "
                "from what was measured."
            )
        )
    elif report.stopped:
        lines.append(_tr("Stopped early, before the comparison with the llama.cpp preset."))
    if report.shipped != "stock":
        lines += grid_texts(report.plan)
    if report.smoothed:
        text = _tr(
            "{n} of its inputs were smoothed: LoRA adapters of the original work here, but not in other programs."
        )
        lines.append(text.format(n=formatted.whole(report.smoothed)))
    if report.gpu_layers:
        lines.append(_tr("Measured with {n} layers on the GPU.").format(n=report.gpu_layers))
    return lines


def grid_texts(plan: QuantPlan) -> list[str]:
    """The tensors whose weights are already on a grid of their type, by grid."""
    text = _tr("Tensors whose weights already fit {grid} and lose nothing more: {n}")
    lines = [text.format(n=formatted.whole(n), grid=_tr(grid)) for grid, n in exact_counts(plan).items()]
    if plan.added_rows:
        text = _tr("Rows of these tensors that fit no grid (tokens added later) and lose as usual: {n}")
        lines.append(text.format(n=formatted.whole(plan.added_rows)))
    return lines


def own_file_texts(report: QuantizeReport) -> list[str]:
    """Change on the user's calibration text and on general text, compared with llama.cpp's preset."""
    if report.own is None or report.own.ratio is None:
        return []
    lines = [_change(_tr("On your own text: {change}."), report.own.ratio)]
    if report.ours is not None and report.ours.ratio is not None:
        lines.append(_change(_tr("On general text: {change}."), report.ours.ratio))
    return lines


def _change(text: str, ratio: Interval) -> str:
    if ratio.low <= 1 <= ratio.high:
        return text.format(change=_tr("the same loss as the llama.cpp preset"))
    less = ratio.value < 1
    change = (
        _tr("{n} % less loss than the llama.cpp preset")
        if less
        else _tr("{n} % more loss than the llama.cpp preset")
    )
    return text.format(change=change.format(n=formatted.whole(100 * abs(1 - ratio.value))))


_MEASURES: tuple[tuple[str, Callable[[FileReport], str]], ...] = (
    ("Mean loss (KL divergence)", lambda report: formatted.decimal(report.kld_mean.value, 5)),
    ("Loss that 1 word in 100 exceeds", lambda report: formatted.decimal(report.kld_p99, 4)),
    (
        "Picks the same next word",
        lambda report: f"{formatted.decimal(100 * report.top1_agreement_frac.value, 1)} %",
    ),
    ("Perplexity", lambda report: formatted.decimal(report.perplexity.value, 3)),
)


def _tr(text: str) -> str:
    return QCoreApplication.translate("report", text)


_BESIDE = 56  # times the body text height: minimum width to show the tensors next to the curve
_SHARES = (3, 2)  # shares of the width for the curve and the tensors


class PlanView(QFrame):
    """The curve and the tensors, side by side if the view is wide enough."""

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

    def show_points(self, ours: Mapping[int, float], stock: Sequence[PresetPlan]) -> None:
        """Show the curve (file bytes to predicted loss) and the llama.cpp presets."""
        self.plot.show_points(ours, stock)

    def show_plan(self, plan: QuantPlan) -> None:
        """Show this plan's tensors, and those of the llama.cpp preset of this size if its types are known."""
        self.mosaic.show_tiles(tiles_of_tensors(plan.tensors))
        self._ours_name.setText(self.tr("Tessera · {size}").format(size=formatted.size(plan.file_bytes)))
        stock = next((row for row in plan.stock if row.types), None)
        for widget in (self.rival, self._rival_name):
            widget.setVisible(stock is not None)
        if stock is not None:
            self.rival.show_tiles(tiles_of_tensors(plan.tensors, stock.types))
            text = self.tr("llama.cpp preset {name} · {size}")
            self._rival_name.setText(text.format(name=stock.name, size=formatted.size(stock.file_bytes)))
        self.plot.show_here(plan.file_bytes)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the layout again: it depends on the width."""
        super().resizeEvent(event)
        self._turn()

    def _turn(self) -> None:
        """Wide: curve left, tensors right. Narrow: curve above the tensors, which are side by side."""
        wide = self.width() >= _BESIDE * self._theme.tokens.body
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._both.setDirection(across if wide else down)
        self._pair.setDirection(down if wide else across)
