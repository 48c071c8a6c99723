"""What came out of making a model fit: measured, beside the stock mix of the same size."""

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFrame, QGridLayout

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import card, label
from app.gui.widgets.mosaic import Mosaic, PrecisionLegend, tiles_of_tensors
from engine.api.quantizing import FileReport, QuantizeReport


def report_card(look: Look, report: QuantizeReport) -> QFrame:
    """Mosaic, and a table of measures: ours and stock."""
    ours, stock = report.ours, report.stock
    verdict = label(_verdict(report), wrap=True)
    mosaic = Mosaic(look, height=96)
    mosaic.show_tiles(tiles_of_tensors(report.plan.tensors))
    grid = QGridLayout()
    grid.setHorizontalSpacing(24)
    grid.setColumnStretch(0, 1)
    heads = [_tr("Measured on text it was not fitted to"), _tr("This file")]
    if stock:
        heads.append(_tr("Stock {name}").format(name=report.stock_mix or ""))
    for column, text in enumerate(heads):
        grid.addWidget(label(text, "small"), 0, column)
    if not ours:
        return card(verdict, mosaic, PrecisionLegend(look), label(_tr("Not compared: that was left out."), "small"))
    for number, (words_, written) in enumerate(_MEASURES, 1):
        grid.addWidget(label(_tr(words_)), number, 0)
        for column, found in enumerate([ours, stock][: len(heads) - 1], 1):
            text = written(found) if found else ""
            grid.addWidget(label(text, "strong" if column == 1 else ""), number, column)
    return card(verdict, mosaic, PrecisionLegend(look), grid, spacing=12)


def _verdict(report: QuantizeReport) -> str:
    size = words.size(report.file_bytes or report.plan.file_bytes)
    if report.shipped == "stock":
        told = _tr("{size}. Ours was not clearly better than the stock mix {name}, which was written.")
        return told.format(size=size, name=report.stock_mix or "")
    ratio = report.kld_ratio
    if ratio:
        return _tr("{size}. Its loss is {n} % of that of {name}, the usual mix of this size.").format(
            size=size, n=words.whole(100 * ratio), name=report.stock_mix or ""
        )
    return size


_MEASURES: tuple[tuple[str, Callable[[FileReport], str]], ...] = (
    ("Mean loss (KL divergence)", lambda found: words.decimal(found.kld_mean.value, 5)),
    ("Worst 1 % of tokens", lambda found: words.decimal(found.kld_p99, 4)),
    ("Same first choice", lambda found: f"{words.decimal(100 * found.top1_agreement_frac.value, 1)} %"),
    ("Perplexity", lambda found: words.decimal(found.perplexity.value, 3)),
)


def _tr(text: str) -> str:
    return QCoreApplication.translate("report", text)
