"""What an answer must be like: its seed, where it stops, and the JSON schema it follows."""

import json
from collections.abc import Mapping

from PySide6.QtCore import QRegularExpression, Qt, Signal
from PySide6.QtGui import QRegularExpressionValidator
from PySide6.QtWidgets import QCheckBox, QPlainTextEdit, QSlider, QWidget

from app.gui import formatted
from app.gui.widgets.basics import label, row, stack
from app.gui.widgets.fields import line_field

# Steps of the slider: what the model does by itself, no reasoning, then tokens of it.
_BUDGETS: tuple[int | None, ...] = (None, 0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_MOST_STOPS = 16  # the server takes no more


class OutputOptions(QWidget):
    """`own` has only what was given; empty fields leave the choice to the model and its server."""

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
        self._reasons = QWidget()
        self._reasons.setLayout(
            stack(
                row(label(self.tr("Reasoning budget"), "strong"), 1, self._budget),
                self.reasoning,
                label(self.tr("Tokens the model may think before it answers."), "small", wrap=True),
                spacing=6,
            )
        )
        self._reasons.hide()
        self._problem = label("", "chip-bad", wrap=True)
        self._problem.hide()
        self.receipt = QCheckBox(self.tr("Answers carry a receipt"))
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
                    self.tr("The same seed usually gives the same answer again; a receipt makes sure of it."),
                    "small",
                    wrap=True,
                ),
                label(self.tr("Stop sequences"), "strong"),
                self.stops,
                label(self.tr("JSON schema"), "strong"),
                self.schema,
                self._problem,
                label(self.tr("Answers are JSON of this shape and nothing else."), "small", wrap=True),
                self.receipt,
                label(
                    self.tr("The same question then gives the same answer, whatever else runs."),
                    "small",
                    wrap=True,
                ),
                spacing=6,
            )
        )

    @property
    def own(self) -> dict[str, object]:
        """What was given, as the request has it; a schema that is no JSON object is left out."""
        found: dict[str, object] = {}
        if self.seed.text():
            found["seed"] = int(self.seed.text())
        stops = [line for line in self.stops.toPlainText().split("\n") if line][:_MOST_STOPS]
        if stops:
            found["stop"] = stops
        schema = _object(self.schema.toPlainText())
        if schema is not None:
            found["json_schema"] = schema
        budget = _BUDGETS[self.reasoning.value()]
        if budget is not None:
            found["thinking_budget"] = budget
        if self.receipt.isChecked():
            found["receipt"] = True
        return found

    def offer_reasoning(self, *, reasons: bool) -> None:
        """Whether the model of this chat reasons at all."""
        self._reasons.setVisible(reasons)

    def _on_reasoning(self) -> None:
        budget = _BUDGETS[self.reasoning.value()]
        if budget is None:
            words_ = self.tr("The model's own")
        else:
            words_ = self.tr("{n} tokens").format(n=formatted.whole(budget)) if budget else self.tr("Off")
        self._budget.setText(words_)
        self._on_edited()

    def show_values(self, given: Mapping[str, object]) -> None:
        """Show what a conversation has."""
        if self._budget.text() and (given == self.own or self.hasFocus()):
            return
        self._showing = True
        seed, stops, schema = given.get("seed"), given.get("stop"), given.get("json_schema")
        self.seed.setText(str(seed) if isinstance(seed, int) else "")
        self._replace(self.stops, "\n".join(map(str, stops)) if isinstance(stops, list) else "")
        if _object(self.schema.toPlainText()) != schema:
            self._replace(self.schema, json.dumps(schema, indent=2) if isinstance(schema, dict) else "")
        budget = given.get("thinking_budget")
        self.reasoning.setValue(_BUDGETS.index(budget) if isinstance(budget, int) and budget in _BUDGETS else 0)
        self._on_reasoning()
        self.receipt.setChecked(given.get("receipt") is True)
        self._showing = False

    def _text(self, name: str, hint: str, height: int) -> QPlainTextEdit:
        made = QPlainTextEdit()
        made.setAccessibleName(name)
        made.setPlaceholderText(hint)
        made.setTabChangesFocus(True)
        made.setFixedHeight(height)
        return made

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
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
