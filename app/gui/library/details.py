"""The dialog with all details of one model."""

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QDialog, QFrame, QGridLayout, QPlainTextEdit, QScrollArea, QWidget

from app.gui import formatted
from app.gui.library.model_card import capability_text, facts_of, origin_text
from app.gui.markdown.view import MarkdownView
from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, rule, stack
from app.gui.widgets.popups import largest_dialog
from app.gui.widgets.tensor_mosaic import Mosaic, PrecisionLegend, tiles_of_tensors, tiles_of_types
from engine.api.library import Model, Tensor

_TILES = 240


class DetailsDialog(QDialog):
    """Details of a model; Esc closes it. Without `tensors` the mosaic shows the shares of the tensor types."""

    def __init__(self, theme: Theme, model: Model, tensors: Sequence[Tensor], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(model.name)
        self.resize(QSize(720, 760).boundedTo(largest_dialog(parent)))
        details = model.details
        self.mosaic = Mosaic(theme, height=96)
        tiles = tiles_of_tensors(tensors)
        self.mosaic.show_tiles(tiles or tiles_of_types(details.type_bytes, _TILES))
        what = (
            self.tr("One tile for each of {n} tensors; point at one to read its name.").format(
                n=formatted.whole(len(tiles))
            )
            if tiles
            else self.tr("Each tile is a share of the weights.")
        )
        grid = QGridLayout()
        grid.setColumnStretch(1, 1)
        grid.setVerticalSpacing(8)
        grid.setHorizontalSpacing(16)
        for number, (name, value) in enumerate(_rows(model)):
            grid.addWidget(label(name, "small"), number, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(label(value, "", wrap=True, selectable=True), number, 1)
        column = stack(
            self.mosaic,
            label(what, "small", wrap=True),
            PrecisionLegend(theme),
            rule(),
            grid,
            spacing=12,
            margins=(24, 8, 24, 16),
        )
        if model.card_text:
            self.card = MarkdownView(theme)
            self.card.set_markdown(model.card_text)
            column.addWidget(rule())
            column.addWidget(self.card)
        if details.chat_template:
            column.addWidget(rule())
            column.addWidget(label(self.tr("Chat template"), "strong"))
            area = QPlainTextEdit(details.chat_template, readOnly=True)
            theme.dress(area, "small")
            area.setAccessibleName(self.tr("Chat template"))
            area.setFixedHeight(160)
            column.addWidget(area)
        column.addStretch(1)
        inner = QWidget()
        inner.setProperty("kind", "page")
        inner.setLayout(column)
        self._scroll = QScrollArea(widgetResizable=True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setWidget(inner)
        head = stack(
            label(model.name, "title"),
            label(facts_of(model), "muted", wrap=True),
            spacing=4,
            margins=(24, 24, 24, 8),
        )
        close = row(1, button(self.tr("Close"), self.close), margins=(24, 8, 24, 16))
        layout = stack(head, self._scroll, close, spacing=0, grow=1)
        self.setLayout(layout)
        if model.card_text:
            self._fit_card()

    card: MarkdownView | None = None

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the height of the model card to this width."""
        super().resizeEvent(event)
        self._fit_card()

    def _fit_card(self) -> None:
        if self.card is not None:
            self.card.fit_width(self._scroll.viewport().width() - 2 * 24)


def _rows(model: Model) -> list[tuple[str, str]]:
    details = model.details
    rows = [
        (_tr("API identifier"), model.id),
        (_tr("File"), model.path),
        (_tr("From"), origin_text(model.origin)),
        (_tr("Licence"), details.license or _tr("not stated")),
        (_tr("Capabilities"), ", ".join(map(capability_text, model.capabilities))),
    ]
    by_source: dict[str, list[str]] = {}
    for name, fact in model.sampling.items():
        by_source.setdefault(formatted.source(fact.source), []).append(f"{name} {fact.value:g}")
    rows += [(_tr("Sampling"), f"{', '.join(values)} ({source})") for source, values in by_source.items()]
    types = details.type_bytes
    if types:
        ordered = sorted(types.items(), key=lambda item: -item[1])
        rows.append((_tr("Tensors"), ", ".join(f"{name} {formatted.size(size)}" for name, size in ordered)))
    sums = [file.sha256 for file in model.files if file.sha256]
    if sums:
        rows.append(("SHA-256", "\n".join(sums)))
    return rows


def _tr(text: str) -> str:
    return QCoreApplication.translate("details", text)
