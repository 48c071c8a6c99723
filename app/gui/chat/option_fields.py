"""The options of a chat one by one: creativity, sampling, and the form of answers, with ranges and defaults."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QLocale, QRegularExpression, Qt, Signal
from PySide6.QtGui import QRegularExpressionValidator
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QLabel, QPlainTextEdit, QSlider, QSpinBox, QWidget

from app.gui import formatted
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, holding, label, line_field, row, rule, stack
from engine.api.models import EffectiveValue
from quantize.files.sampling_keys import SAMPLING, SamplingField

FIELD_WIDTH = 96  # pixels, of a number field


@dataclass(frozen=True)
class SamplingControl:
    """A sampling field in the window. Its bounds may be narrower than the API's."""

    name: str
    title: str
    description: str
    maximum: float = 1
    minimum: float = 0
    group: str = "Choice of words"

    @property
    def row(self) -> SamplingField:
        """The field's row in the sampling table."""
        return SAMPLING[self.name]


_REPETITION = "Repetition"
KNOBS = (
    SamplingControl(
        "temperature",
        "Temperature",
        "0 always picks the most likely token; higher values give more varied answers.",
        2,
    ),
    SamplingControl(
        "top_p", "Top P", "Keeps the most likely tokens that together have this probability. 1 keeps all.", 1, 0.01
    ),
    SamplingControl(
        "min_p", "Min P", "Ignores tokens below this fraction of the top token's probability. 0 turns it off."
    ),
    SamplingControl("top_k", "Top K", "Keeps only this many of the most likely tokens. 0 keeps all.", 1000),
    SamplingControl(
        "repeat_penalty", "Repeat penalty", "Values above 1 discourage repeating recent words.", 2, 0.5, _REPETITION
    ),
    SamplingControl(
        "presence_penalty",
        "Presence penalty",
        "Values above 0 favour words that have not occurred yet.",
        2,
        -2,
        _REPETITION,
    ),
    SamplingControl(
        "frequency_penalty",
        "Frequency penalty",
        "Values above 0 discourage words more, the more often they have occurred.",
        2,
        -2,
        _REPETITION,
    ),
)


_PRECISE, _CREATIVE = 0.2, 1.2  # temperatures


class Creativity(QWidget):
    """Three steps of the temperature: precise, as the model recommends, and creative."""

    chosen = Signal(object)  # a temperature, or None for the model's recommendation

    def __init__(self) -> None:
        super().__init__()
        self._usual = 1.0
        self.is_custom = False  # a temperature between the steps
        self.steps = QSlider(Qt.Orientation.Horizontal)
        self.steps.setRange(0, 2)
        self.steps.setPageStep(1)
        self.steps.setTickPosition(QSlider.TickPosition.TicksBelow)
        self.steps.setAccessibleName(self.tr("Creativity"))
        self.steps.valueChanged.connect(lambda step: self.chosen.emit(self._temperatures[step]))
        self._name = label("", "small")
        self._meaning = label("", "small", wrap=True)
        self.setLayout(
            stack(row(label(self.tr("Creativity"), "strong"), 1, self._name), self.steps, self._meaning, spacing=6)
        )

    @property
    def _temperatures(self) -> tuple[float, None, float]:
        """Temperature of each step, in ascending order whatever the model recommends."""
        return (min(_PRECISE, round(self._usual / 2, 2)), None, max(_CREATIVE, round(self._usual + 0.2, 2)))

    def show_value(self, own: float | None, usual: float) -> None:
        """Show the chat's own temperature, or that it follows the model's."""
        self._usual = usual
        precise, _, creative = self._temperatures
        step = 1 if own is None else 0 if own < (precise + usual) / 2 else 2 if own > (creative + usual) / 2 else 1
        self.steps.blockSignals(True)
        self.steps.setValue(step)
        self.steps.blockSignals(False)
        names = (self.tr("Precise"), self.tr("Balanced"), self.tr("Creative"))
        meanings = (
            self.tr("Keeps to the most likely words: for facts and code."),
            self.tr("As the model recommends."),
            self.tr("Also picks unlikely words: for stories and ideas."),
        )
        is_step = own == self._temperatures[step]
        self.is_custom = not is_step
        form = self.tr("Temperature {value}")
        self._name.setText(names[step] if is_step else form.format(value=_number(own or 0)))
        self._meaning.setText(meanings[step] if is_step else self.tr("Set under Advanced."))
        self.steps.setAccessibleDescription(self._name.text())


def _number(value: float) -> str:
    """As few decimals as needed, for example 1, 0.6 or 0.05."""
    return QLocale().toString(float(round(value, 4)), "g", 6)


class SamplingFields(QWidget):
    """Shows the effective value of each field and its origin. A value that the user changes belongs to the chat."""

    changed = Signal()
    keep_pressed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.own: dict[str, float] = {}
        self._recommended: Mapping[str, EffectiveValue] = {}
        self._showing = False
        self.fields: dict[str, QSpinBox | QDoubleSpinBox] = {}
        self.resets: dict[str, IconButton] = {}
        self.states: dict[str, QLabel] = {}
        column = stack(spacing=4)
        group = ""
        for knob in KNOBS:
            title = self.tr(knob.title)
            if knob.group != group:
                if group:
                    column.addWidget(rule())
                    column.addSpacing(4)
                group = knob.group
                column.addWidget(label(self.tr(group), "muted"))
                column.addSpacing(4)
            field = self.fields[knob.name] = self._field(knob)
            reset = self.resets[knob.name] = IconButton(
                theme,
                "refresh",
                self.tr("{name} as the model recommends").format(name=title),
                partial(self.follow, knob.name),
            )
            state = self.states[knob.name] = label("", "small", wrap=True)
            name = label(title, "strong", wrap=True)
            line = row(name, reset, field, spacing=4, grow=0)
            column.addLayout(line)
            column.addWidget(label(self.tr(knob.description), "small", wrap=True))
            column.addWidget(state)
            column.addSpacing(8)
        self.keep = button(self.tr("Save for this model"), self.keep_pressed.emit)
        self.keep.setToolTip(self.tr("Every chat with this model starts with these values"))
        column.addWidget(self.keep)
        self.setLayout(column)

    def show_values(self, own: Mapping[str, object], recommended: Mapping[str, EffectiveValue]) -> None:
        """Show a chat's own values; `recommended` applies to the other fields."""
        self.own = {k.name: float(v) for k in KNOBS if isinstance(v := own.get(k.name), int | float)}
        self._recommended = recommended
        self._show()

    def usual(self, name: str) -> float:
        """The value of a field that the chat does not set."""
        recommended = self._recommended.get(name)
        return float(recommended.value if recommended is not None else SAMPLING[name].neutral)

    def set_own(self, name: str, value: float) -> None:
        self.own[name] = round(value, 4)
        self._show()
        self.changed.emit()

    def follow(self, *names: str) -> None:
        """Reset fields to the recommendation."""
        self.own = {name: value for name, value in self.own.items() if name not in names}
        self._show()
        self.changed.emit()

    def _show(self) -> None:
        self._showing = True
        for knob in KNOBS:
            recommended = self._recommended.get(knob.name)
            usual = self.usual(knob.name)
            is_own = knob.name in self.own
            value = self.own.get(knob.name, usual)
            field = self.fields[knob.name]
            if field.value() != value:  # setValue rewrites the text, even while the user types
                field.setValue(int(value) if knob.row.whole else value)  # type: ignore[arg-type]
            source = formatted.source(recommended.source if recommended is not None else "")
            form = self.tr("{low} to {high} · Default: {value} ({source})")
            low, high, default = (_number(each) for each in (knob.minimum, knob.maximum, usual))
            self.states[knob.name].setText(form.format(low=low, high=high, value=default, source=source))
            self.resets[knob.name].setEnabled(is_own)
        self.keep.setEnabled(bool(self.own))
        self._showing = False

    def _field(self, knob: SamplingControl) -> QSpinBox | QDoubleSpinBox:
        field: QSpinBox | QDoubleSpinBox
        if knob.row.whole:
            field = QSpinBox()
            field.setRange(int(knob.minimum), int(knob.maximum))
        else:
            field = QDoubleSpinBox(singleStep=0.05)
            field.setRange(knob.minimum, knob.maximum)
        field.setMinimumWidth(FIELD_WIDTH)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        field.setAccessibleName(self.tr(knob.title))
        field.setToolTip(self.tr(knob.description))
        field.valueChanged.connect(lambda value, name=knob.name: self._on_edited(name, value))
        return field

    def _on_edited(self, name: str, value: float) -> None:
        if not self._showing:
            self.set_own(name, value)


# Steps of the reasoning slider: None is the model's default, 0 is off, then token budgets.
_BUDGETS: tuple[int | None, ...] = (None, 0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_MOST_STOPS = 16  # the server's limit
_MOST_SEED = 999_999_999


class OutputOptions(QWidget):
    """Output options. `own` has only fields that are set; the model and the server decide the rest."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._showing = False
        self.seed = line_field(self.tr("Random"), self.tr("Seed"))
        self.seed.setValidator(QRegularExpressionValidator(QRegularExpression(r"\d{0,9}"), self.seed))
        self.stops = self._text(self.tr("Stop sequences"), self.tr("One per line"), 56)
        self.schema = self._text(self.tr("JSON schema"), '{"type": "object", …}', 96)
        self.reasoning = QSlider(Qt.Orientation.Horizontal)
        self.reasoning.setRange(0, len(_BUDGETS) - 1)
        self.reasoning.setPageStep(1)
        self.reasoning.setAccessibleName(self.tr("Reasoning budget"))
        self.reasoning.valueChanged.connect(lambda _: self._on_reasoning())
        self._budget = label("", "small")
        self._reasons = holding(
            stack(
                row(label(self.tr("Reasoning budget"), "strong"), 1, self._budget),
                self.reasoning,
                label(self.tr("Tokens the model may think before it answers."), "small", wrap=True),
                label(
                    self.tr("{low} to {high} tokens · Default: {value}").format(
                        low=0, high=formatted.whole(_BUDGETS[-1] or 0), value=self.tr("Model's default")
                    ),
                    "small",
                    wrap=True,
                ),
                spacing=6,
            )
        )
        self._reasons.hide()
        self._problem = label("", "chip-bad", wrap=True)
        self._problem.hide()
        self.receipt = QCheckBox(self.tr("Attach a receipt to answers"))
        self.receipt.toggled.connect(lambda _: self._on_edited())
        self.seed.textEdited.connect(lambda _: self._on_edited())
        self.stops.textChanged.connect(self._on_edited)
        self.schema.textChanged.connect(self._on_edited)
        self.setLayout(
            stack(
                self._reasons,
                label(self.tr("Seed"), "strong"),
                self.seed,
                label(
                    self.tr("The same seed usually gives the same answer. A receipt lets you repeat it exactly."),
                    "small",
                    wrap=True,
                ),
                label(self.tr("0 to {high} · Default: random").format(high=formatted.whole(_MOST_SEED)), "small"),
                label(self.tr("Stop sequences"), "strong"),
                self.stops,
                label(
                    self.tr("The answer ends before any of these texts. Up to {n} · Default: none").format(
                        n=_MOST_STOPS
                    ),
                    "small",
                    wrap=True,
                ),
                label(self.tr("JSON schema"), "strong"),
                self.schema,
                self._problem,
                label(
                    self.tr("Answers contain only JSON that matches this schema. Default: none"), "small", wrap=True
                ),
                self.receipt,
                label(
                    self.tr(
                        "The same request then gives the same answer, even when other requests run "
                        "at the same time. Default: off"
                    ),
                    "small",
                    wrap=True,
                ),
                spacing=6,
            )
        )

    @property
    def own(self) -> dict[str, object]:
        """The set fields, in request form. A schema that is not a JSON object is omitted."""
        values: dict[str, object] = {}
        if self.seed.text():
            values["seed"] = int(self.seed.text())
        stops = [line for line in self.stops.toPlainText().split("\n") if line][:_MOST_STOPS]
        if stops:
            values["stop"] = stops
        schema = _object(self.schema.toPlainText())
        if schema is not None:
            values["json_schema"] = schema
        budget = _BUDGETS[self.reasoning.value()]
        if budget is not None:
            values["thinking_budget"] = budget
        if self.receipt.isChecked():
            values["receipt"] = True
        return values

    def offer_reasoning(self, *, reasons: bool) -> None:
        """Show the reasoning slider if the chat's model reasons."""
        self._reasons.setVisible(reasons)

    def _on_reasoning(self) -> None:
        budget = _BUDGETS[self.reasoning.value()]
        if budget is None:
            words_ = self.tr("Model's default")
        else:
            words_ = self.tr("{n} tokens").format(n=formatted.whole(budget)) if budget else self.tr("Off")
        self._budget.setText(words_)
        self._on_edited()

    def show_values(self, values: Mapping[str, object]) -> None:
        if self._budget.text() and (values == self.own or self.hasFocus()):
            return
        self._showing = True
        seed, stops, schema = values.get("seed"), values.get("stop"), values.get("json_schema")
        self.seed.setText(str(seed) if isinstance(seed, int) else "")
        self._replace(self.stops, "\n".join(map(str, stops)) if isinstance(stops, list) else "")
        if _object(self.schema.toPlainText()) != schema:
            self._replace(self.schema, json.dumps(schema, indent=2) if isinstance(schema, dict) else "")
        budget = values.get("thinking_budget")
        self.reasoning.setValue(_BUDGETS.index(budget) if isinstance(budget, int) and budget in _BUDGETS else 0)
        self._on_reasoning()
        self.receipt.setChecked(values.get("receipt") is True)
        self._showing = False

    def _text(self, name: str, hint: str, height: int) -> QPlainTextEdit:
        field = QPlainTextEdit(placeholderText=hint, tabChangesFocus=True)
        field.setAccessibleName(name)
        field.setFixedHeight(height)
        return field

    @staticmethod
    def _replace(field: QPlainTextEdit, text: str) -> None:
        if field.toPlainText() != text:
            field.setPlainText(text)

    def _on_edited(self) -> None:
        text = self.schema.toPlainText().strip()
        wrong = bool(text) and _object(text) is None
        self._problem.setText(self.tr("This is not a JSON object yet, so it is not used.") if wrong else "")
        self._problem.setVisible(wrong)
        if not self._showing:
            self.changed.emit()


def _object(text: str) -> dict[str, object] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
