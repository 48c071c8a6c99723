"""What came out of making a model fit: measured, beside the stock mix of the same size."""

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFrame, QGridLayout

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import card, label
from app.gui.widgets.mosaic import Mosaic, PrecisionLegend, tiles_of_tensors


def report_card(look: Look, report: dict[str, Any]) -> QFrame:
    """Mosaic, and a table of measures: ours and stock."""
    plan, ours, stock = report.get("plan") or {}, report.get("ours") or {}, report.get("stock") or {}
    verdict = label(_verdict(report), wrap=True)
    mosaic = Mosaic(look, height=96)
    mosaic.show_tiles(tiles_of_tensors(plan.get("tensors") or ()))
    grid = QGridLayout()
    grid.setHorizontalSpacing(24)
    grid.setColumnStretch(0, 1)
    heads = [_tr("Measured on text it was not fitted to"), _tr("This file")]
    if stock:
        heads.append(_tr("Stock {name}").format(name=report.get("stock_mix") or ""))
    for column, text in enumerate(heads):
        grid.addWidget(label(text, "small"), 0, column)
    if not ours:
        return card(verdict, mosaic, PrecisionLegend(look), label(_tr("Not measured: Instant does not."), "small"))
    for number, (words_, name, written) in enumerate(_MEASURES, 1):
        grid.addWidget(label(_tr(words_)), number, 0)
        for column, found in enumerate([ours, stock][: len(heads) - 1], 1):
            text = written(found, name) if found else ""
            grid.addWidget(label(text, "strong" if column == 1 else ""), number, column)
    return card(verdict, mosaic, PrecisionLegend(look), grid, spacing=12)


def _verdict(report: dict[str, Any]) -> str:
    size = words.size(report.get("file_bytes") or (report.get("plan") or {}).get("file_bytes") or 0)
    ours, stock = report.get("ours") or {}, report.get("stock") or {}
    if report.get("shipped") == "stock":
        return _tr("{size}. The stock mix {name} was better at this size, so that is what was written.").format(
            size=size, name=report.get("stock_mix") or ""
        )
    loss, other = _value(ours, "kld_mean"), _value(stock, "kld_mean")
    if loss and other:
        return _tr("{size}. It loses {n} % of what the stock mix {name} of no more bytes loses.").format(
            size=size, n=words.whole(100 * loss / other), name=report.get("stock_mix") or ""
        )
    return size


def _value(found: dict[str, Any], name: str) -> float:
    value = found.get(name)
    return float(value.get("value") or 0) if isinstance(value, dict) else float(value or 0)


def _percent(found: dict[str, Any], name: str) -> str:
    return f"{words.decimal(100 * _value(found, name), 1)} %"


def _places(places: int) -> Callable[[dict[str, Any], str], str]:
    return lambda found, name: words.decimal(_value(found, name), places)


_MEASURES: tuple[tuple[str, str, Callable[[dict[str, Any], str], str]], ...] = (
    ("Mean loss (KL divergence)", "kld_mean", _places(5)),
    ("Worst 1 % of tokens", "kld_p99", _places(4)),
    ("Same first choice", "top1_agreement_frac", _percent),
    ("Perplexity", "perplexity", _places(3)),
)


def _tr(text: str) -> str:
    return QCoreApplication.translate("report", text)
