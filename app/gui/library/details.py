"""Everything about one model: its mosaic, facts, files, chat template."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QFrame, QGridLayout, QPlainTextEdit, QScrollArea, QWidget

from app.gui import words
from app.gui.chat.sampling_fields import source_words
from app.gui.library.model_card import facts_of
from app.gui.look import Look
from app.gui.markdown.view import MarkdownView
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.mosaic import Mosaic, PrecisionLegend, tiles_of_tensors, tiles_of_types
from engine.api.library import Model, Tensor

_TILES = 240


class DetailsDialog(QDialog):
    """Closes with Esc. Without `tensors` (not a GGUF file, or not readable) the mosaic shows shares of types."""

    def __init__(self, look: Look, model: Model, tensors: Sequence[Tensor], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(model.name)
        self.resize(640, 720 if model.card_text else 560)
        details = model.details
        self.mosaic = Mosaic(look, height=120)
        tiles = tiles_of_tensors(tensors)
        self.mosaic.show_tiles(tiles or tiles_of_types(details.type_bytes, _TILES))
        what = (
            self.tr("One tile for each of {n} tensors; point at one to read its name.").format(n=len(tiles))
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
        layout = stack(
            label(model.name, "title"),
            label(facts_of(model), "muted", wrap=True),
            self.mosaic,
            label(what, "small", wrap=True),
            PrecisionLegend(look),
            grid,
            spacing=12,
            margins=(24, 24, 24, 24),
        )
        card, template = model.card_text, details.chat_template
        if card:
            self.card = MarkdownView(look)
            self.card.set_markdown(card)
            scroll = QScrollArea()
            scroll.setWidgetResizable(True)
            scroll.setFrameShape(QFrame.Shape.NoFrame)
            scroll.setWidget(self.card)
            layout.addWidget(scroll, 2)
        if template:
            area = QPlainTextEdit(template)
            area.setReadOnly(True)
            area.setFont(look.font("small", mono=True))
            area.setAccessibleName(self.tr("Chat template"))
            layout.addWidget(label(self.tr("Chat template"), "strong"))
            layout.addWidget(area, 1)
        elif not card:
            layout.addStretch(1)
        layout.addLayout(row(1, button(self.tr("Close"), self.close)))
        self.setLayout(layout)


def _rows(model: Model) -> list[tuple[str, str]]:
    details, origin = model.details, model.origin
    rows = [
        ("API identifier", model.id),
        ("File", model.path),
        ("From", origin.repo or origin.app or origin.kind),
        ("License", details.license or "not stated"),
        ("Capabilities", ", ".join(model.capabilities)),
    ]
    rows += [("Sampling", f"{n} {fact.value:g}: {source_words(fact.source)}") for n, fact in model.sampling.items()]
    types = details.type_bytes
    if types:
        ordered = sorted(types.items(), key=lambda item: -item[1])
        rows.append(("Tensors", ", ".join(f"{name} {words.size(size)}" for name, size in ordered)))
    sums = [file.sha256 for file in model.files if file.sha256]
    if sums:
        rows.append(("SHA-256", "\n".join(sums)))
    return rows
