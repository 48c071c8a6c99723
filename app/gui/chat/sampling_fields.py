"""Sampling of one chat: what the model's makers recommend, and what this chat has of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QDoubleSpinBox, QLabel, QSpinBox, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, row, stack
from engine.api.models import Decided
from quantize.files.sampling_keys import SAMPLING, SamplingField


@dataclass(frozen=True)
class Knob:
    """One field of the table of sampling as the window offers it, whose bounds may be narrower."""

    name: str
    title: str
    description: str
    maximum: float = 1
    minimum: float = 0

    @property
    def row(self) -> SamplingField:
        """Its facts."""
        return SAMPLING[self.name]


KNOBS = (
    Knob("temperature", "Temperature", "0 always takes the likeliest word; higher is more varied.", 2),
    Knob("top_p", "Top P", "Only the likeliest words that have this probability together. 1: all.", 1, 0.01),
    Knob("min_p", "Min P", "Drops words less likely than this share of the likeliest. 0 keeps all."),
    Knob("top_k", "Top K", "Only this many words. 0 keeps all.", 1000),
    Knob("repeat_penalty", "Repeat penalty", "Above 1 discourages words used shortly before.", 2, 0.5),
)


class SamplingFields(QWidget):
    """Shows for each field what is in force and who decided it. A field the user changes is the chat's own."""

    changed = Signal()
    keep_pressed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.own: dict[str, float] = {}
        self._recommended: Mapping[str, Decided] = {}
        self._showing = False
        self.fields: dict[str, QSpinBox | QDoubleSpinBox] = {}
        self.resets: dict[str, IconButton] = {}
        self.states: dict[str, QLabel] = {}
        column = stack(spacing=4)
        for knob in KNOBS:
            title = self.tr(knob.title)
            field = self.fields[knob.name] = self._field(knob)
            reset = self.resets[knob.name] = IconButton(
                theme,
                "refresh",
                self.tr("{name} as the model recommends").format(name=title),
                partial(self.follow, knob.name),
            )
            state = self.states[knob.name] = label("", "small", wrap=True)
            column.addLayout(row(label(title, "strong"), 1, reset, field, spacing=4))
            column.addWidget(state)
            column.addWidget(label(self.tr(knob.description), "small", wrap=True))
            column.addSpacing(4)
        self.all = button(self.tr("Reset to the model's values"), lambda: self.follow(*self.fields))
        self.keep = button(self.tr("Keep for this model"), self.keep_pressed.emit)
        self.keep.setToolTip(self.tr("Every chat with this model begins with these values"))
        column.addWidget(self.all)
        column.addWidget(self.keep)
        self.setLayout(column)

    def show_values(self, own: Mapping[str, object], recommended: Mapping[str, Decided]) -> None:
        """Show a chat's own values over the model's; `recommended` is the model's."""
        self.own = {k.name: float(v) for k in KNOBS if isinstance(v := own.get(k.name), int | float)}
        self._recommended = recommended
        self._show()

    def follow(self, *names: str) -> None:
        """Go back to the recommendation."""
        self.own = {name: value for name, value in self.own.items() if name not in names}
        self._show()
        self.changed.emit()

    def _show(self) -> None:
        self._showing = True
        for knob in KNOBS:
            recommended = self._recommended.get(knob.name)
            usual = float(recommended.value if recommended is not None else knob.row.neutral)
            is_own = knob.name in self.own
            value = self.own.get(knob.name, usual)
            field = self.fields[knob.name]
            if field.value() != value:  # setting it writes its text again, also while somebody types there
                field.setValue(int(value) if knob.row.whole else value)  # type: ignore[arg-type]
            source = formatted.source(recommended.source if recommended is not None else "")
            form = self.tr("This chat's own; otherwise {value} ({source})") if is_own else "{source}"
            self.states[knob.name].setText(form.format(value=f"{usual:g}", source=source))
            self.resets[knob.name].setEnabled(is_own)
        self.all.setEnabled(bool(self.own))
        self.keep.setEnabled(bool(self.own))
        self._showing = False

    def _field(self, knob: Knob) -> QSpinBox | QDoubleSpinBox:
        field: QSpinBox | QDoubleSpinBox
        if knob.row.whole:
            field = QSpinBox()
            field.setRange(int(knob.minimum), int(knob.maximum))
        else:
            field = QDoubleSpinBox()
            field.setSingleStep(0.05)
            field.setRange(knob.minimum, knob.maximum)
        field.setFixedWidth(96)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        field.setAccessibleName(self.tr(knob.title))
        field.setToolTip(self.tr(knob.description))
        field.valueChanged.connect(lambda value, name=knob.name: self._on_edited(name, value))
        return field

    def _on_edited(self, name: str, value: float) -> None:
        if not self._showing:
            self.own[name] = round(value, 4)
            self._show()
            self.changed.emit()
