"""The offer to download an original from the hub and make a smaller file from it."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QFrame

from app.gui import formatted
from app.gui.library.recommended import download_words
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox
from engine.api.hub import RepoPlan
from engine.api.quantizing import QuantizeOptions

# Sizes to choose from if the repository has no quantized files to compare with.
_BITS = (6.6, 5.5, 4.5, 3.5)
_TIERS = (
    ("balanced", "Balanced", "Measures this model in groups of tensors."),
    ("instant", "Instant", "Estimates the loss from similar models. Takes seconds."),
    ("max", "Best", "Measures every tensor. Takes longest."),
)
_SAME_SIZE = 0.02


class FitFromHub(QFrame):
    """Chooses size and thoroughness before anything is downloaded. `pressed` carries the request."""

    pressed = Signal(object)  # QuantizeOptions

    def __init__(self, plan: RepoPlan) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        source = next(option for option in plan.options if option.choice.label == plan.build_from)
        self._model = f"{plan.repository.repo}:{source.choice.label}"
        size = source.size_bytes
        self.target = ComboBox()
        self.target.setAccessibleName(self.tr("Size of the new file"))
        self.target.addItem(self.tr("As large as fits this computer"), QuantizeOptions(model=self._model, fit=True))
        smaller = [o for o in plan.options if o.choice.format == "gguf" and o.size_bytes < size]
        for option in sorted(smaller, key=lambda o: -o.size_bytes):
            words = self.tr("{size}, as {name}").format(
                size=formatted.size(option.size_bytes), name=option.choice.label
            )
            self._add(words, budget_bytes=option.size_bytes)
        if not smaller:
            for bits in _BITS:
                self._add(self.tr("{n} bits per weight").format(n=formatted.decimal(bits, 1)), bpw=bits)
        own = plan.own
        near = [o.size_bytes for o in smaller if own and _is_near(o.size_bytes, own.file_bytes)]
        if own is not None and near:
            self.target.setCurrentIndex(
                next(n for n in range(self.target.count()) if self.target.itemData(n).budget_bytes == near[0])
            )
        self.tier = ComboBox()
        self.tier.setAccessibleName(self.tr("How thorough"))
        for value, name, tip in _TIERS:
            self.tier.addItem(self.tr(name), value)
            self.tier.setItemData(self.tier.count() - 1, self.tr(tip), Qt.ItemDataRole.ToolTipRole)
        self.delete = QCheckBox(self.tr("Delete the original afterwards"))
        go = button(self.tr("Make it fit"), self._press, "primary")
        go.setAccessibleName(self.tr("Download the original and make it fit"))
        text = self.tr(
            "Downloads the original ({size}; {time}). Then chooses a precision for every tensor, so that the model "
            "loses least, and compares the file with the usual one of its size."
        ).format(size=formatted.size(size), time=download_words(size))
        controls = Flow(spacing=8)
        for control in (self.target, self.tier, self.delete):
            controls.add(control)
        line = row(controls, go, spacing=16)
        line.setStretch(0, 1)
        self.setLayout(
            stack(
                label(self.tr("Make your own file from the original"), "strong"),
                label(text, "small", wrap=True),
                line,
                spacing=8,
                margins=(16, 16, 16, 16),
            )
        )

    def _add(self, words: str, *, budget_bytes: int | None = None, bpw: float | None = None) -> None:
        self.target.addItem(words, QuantizeOptions(model=self._model, budget_bytes=budget_bytes, bpw=bpw))

    @property
    def request(self) -> QuantizeOptions:
        """What the user has chosen."""
        chosen: QuantizeOptions = self.target.currentData()
        return QuantizeOptions(
            model=chosen.model,
            fit=chosen.fit,
            budget_bytes=chosen.budget_bytes,
            bpw=chosen.bpw,
            tier=self.tier.currentData(),
            download=True,
            keep_source=not self.delete.isChecked(),
        )

    def _press(self) -> None:
        self.pressed.emit(self.request)


def _is_near(size: int, wanted: int) -> bool:
    return abs(size - wanted) <= _SAME_SIZE * wanted
