"""The panel next to a chat: system prompt, presets, and sampling with explanations."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from PySide6.QtCore import QRegularExpression, Qt, QTimer, Signal
from PySide6.QtGui import QRegularExpressionValidator
from PySide6.QtWidgets import (
    QCheckBox,
    QDoubleSpinBox,
    QFrame,
    QInputDialog,
    QLabel,
    QPlainTextEdit,
    QSlider,
    QSpinBox,
    QWidget,
)

from app.db import conversations
from app.db.records import Conversation, Preset
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, line_field, row, scrolled, stack
from app.gui.widgets.popups import ComboBox
from app.settings import BY_NAME, Settings
from app.suggestions import asked_for, filled
from engine.api.collections import Collection
from engine.api.models import EffectiveValue
from quantize.files.sampling_keys import SAMPLING, SamplingField

_LIMIT = BY_NAME["chat.max_tokens"]
_DELAY_MS = 500


def default_sampling(now: Settings) -> dict[str, object]:
    """Sampling of a new chat: the token limit only. All else is the model's recommendation."""
    return {"max_tokens": now["chat.max_tokens"]}


class ChatOptions(QFrame):
    """Emits the conversation fields that the user changed."""

    changed = Signal(dict)

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        self.setFixedWidth(304)
        self._showing = False
        self._own: Mapping[str, object] = {}
        self._presets: list[Preset] = []
        self.prompt = QPlainTextEdit()
        self.prompt.setTabChangesFocus(True)
        self.prompt.setAccessibleName(self.tr("System prompt"))
        self.prompt.setPlaceholderText(self.tr("How the model should behave in this chat"))
        self.prompt.setFixedHeight(128)
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(_DELAY_MS)
        self._delay.timeout.connect(self._emit)
        self.prompt.textChanged.connect(self._on_edited)
        self.preset = ComboBox()
        self.preset.setAccessibleName(self.tr("Preset"))
        self.preset.activated.connect(self._on_preset)
        remove = IconButton(services.theme, "trash", self.tr("Remove this preset"), self._remove_preset)
        save = button(self.tr("Save as preset…"), self._save_preset)
        self.sampling = SamplingFields(services.theme)
        self.sampling.changed.connect(self._on_edited)
        self.sampling.keep_pressed.connect(self._save_for_model)
        self._model = ""
        self.limit = QSpinBox()
        self.limit.setRange(int(_LIMIT.minimum or 0), int(_LIMIT.maximum or 0))
        self.limit.setFixedWidth(96)
        self.limit.lineEdit().setTextMargins(6, 0, 6, 0)
        self.limit.setAccessibleName(self.tr(_LIMIT.title))
        self.limit.valueChanged.connect(self._on_edited)
        self.documents = ComboBox()
        self.documents.setAccessibleName(self.tr("Documents"))
        self.documents.activated.connect(lambda _: self._on_collection())
        self._collections: tuple[str, ...] = ("",)
        self.output = OutputOptions()
        self.output.changed.connect(self._on_edited)
        self._remove = remove
        self._build(save)
        services.models.changed.connect(self.refresh_recommendation)
        self.refresh_presets()

    def _build(self, save: QWidget) -> None:
        column = stack(
            label(self.tr("Preset"), "strong"),
            row(self.preset, self._remove, spacing=4),
            label(self.tr("Answer from documents"), "strong"),
            self.documents,
            label(self.tr("System prompt"), "strong"),
            self.prompt,
            save,
            spacing=8,
            margins=(16, 16, 16, 16),
        )
        column.addSpacing(4)
        column.addWidget(self.sampling)
        column.addLayout(row(label(self.tr(_LIMIT.title), "strong"), 1, self.limit))
        column.addWidget(label(self.tr(_LIMIT.description), "small", wrap=True))
        column.addSpacing(4)
        column.addWidget(self.output)
        column.addStretch(1)
        self.setLayout(stack(scrolled(column)))

    def show_conversation(self, conversation: Conversation) -> None:
        """Show the settings of a conversation."""
        self._showing = True
        if self.prompt.toPlainText() != conversation.system_prompt:
            self.prompt.setPlainText(conversation.system_prompt)
        limit = int(conversation.sampling.get("max_tokens", _LIMIT.default))  # type: ignore[call-overload]
        if self.limit.value() != limit:  # setValue rewrites the text, even while the user types
            self.limit.setValue(limit)
        self._model = conversation.model
        self._own = conversation.sampling
        self.output.show_values(conversation.sampling)
        self._show_collection()
        self.refresh_collections()
        self.refresh_recommendation()
        self._showing = False

    def refresh_collections(self) -> None:
        """Update the list of collections. The chat's collection stays selected."""

        def show(found: tuple[Collection, ...]) -> None:
            self._collections = ("", *(each.id for each in found))
            self.documents.clear()
            self.documents.addItem(self.tr("None"))
            for each in found:
                self.documents.addItem(each.name)
            self._show_collection()

        api = self._services.api
        self._services.background.run(api.collections, show, lambda _: None, parent=self)

    def _show_collection(self) -> None:
        """Select the chat's collection, if it is listed."""
        chosen = str(self._own.get("collection") or "")
        self.documents.setCurrentIndex(self._collections.index(chosen) if chosen in self._collections else 0)

    def _on_collection(self) -> None:
        self._own = {name: value for name, value in self._own.items() if name != "collection"}
        self._on_edited()

    def _collection(self) -> str:
        """The selected collection, or the chat's own if it is not listed yet."""
        own = str(self._own.get("collection") or "")
        chosen = self._collections[max(self.documents.currentIndex(), 0)]
        return chosen or (own if own not in self._collections else "")

    def refresh_presets(self) -> None:
        """Reload the presets."""
        self._watch(self._services.store.submit(conversations.presets), self._show_presets)

    def refresh_recommendation(self) -> None:
        """Show the current recommendation of the model's publisher."""
        chosen = self._services.models.get(self._model)
        self.sampling.show_values(self._own, chosen.sampling if chosen is not None else {})
        self.output.offer_reasoning(reasons=chosen is not None and chosen.reasons)

    def _save_for_model(self) -> None:
        """Save this chat's sampling values as the user's settings for the model."""
        model, own, api = self._model, dict(self.sampling.own), self._services.api

        def work() -> None:
            api.set_sampling(model, {**api.sampling(model).user, **own})

        def done(_: object) -> None:
            self.sampling.follow(*own)
            self._services.models.refresh()

        self._services.background.run(work, done, parent=self)

    def _on_edited(self) -> None:
        if not self._showing:
            self._own = self._sampling()  # a refresh before the timer fires must show the edited values
            self._delay.start()

    def flush(self) -> None:
        """Apply pending changes now instead of after the typing delay."""
        if self._delay.isActive():
            self._delay.stop()
            self._emit()

    def _emit(self) -> None:
        self.changed.emit({"system_prompt": self.prompt.toPlainText(), "sampling": self._sampling()})

    def _sampling(self) -> dict[str, object]:
        chosen = self._collection()
        asked = {"collection": chosen} if chosen else {}
        return {**self.sampling.own, **self.output.own, **asked, "max_tokens": self.limit.value()}

    def _show_presets(self, presets: list[Preset]) -> None:
        self._presets = presets
        self.preset.clear()
        self.preset.addItem(self.tr("Choose…") if presets else self.tr("None saved yet"))
        for item in presets:
            self.preset.addItem(item.name)
        self.preset.setEnabled(bool(presets))
        self._remove.setEnabled(bool(presets))

    def _on_preset(self, position: int) -> None:
        if position > 0:
            self._use(self._presets[position - 1])

    def _use(self, chosen: Preset) -> None:
        """Apply a preset, after the user has filled in its {{variables}}."""

        def take(values: dict[str, str]) -> None:
            prompt = filled(chosen.system_prompt, values, self._model)
            self.changed.emit({"system_prompt": prompt, "sampling": chosen.sampling})

        names = asked_for(chosen.system_prompt)
        if not names:
            take({})
            return
        from app.gui.chat.message_editor import VariablesDialog

        dialog = VariablesDialog(chosen.name, names, self.tr("Use"), self.window())
        dialog.accepted.connect(lambda: take(dialog.values))
        dialog.open()

    def _save_preset(self) -> None:
        dialog = QInputDialog(self)
        dialog.setWindowTitle(self.tr("Save as preset"))
        dialog.setLabelText(self.tr("Name:"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)

        def save(name: str) -> None:
            if name.strip():
                future = self._services.store.submit(
                    conversations.save_preset, name.strip(), self.prompt.toPlainText(), self._sampling()
                )
                self._watch(future, lambda _: self.refresh_presets())

        dialog.textValueSelected.connect(save)
        dialog.open()

    def _remove_preset(self) -> None:
        position = self.preset.currentIndex()
        if position > 0:
            future = self._services.store.submit(conversations.remove_preset, self._presets[position - 1].id)
            self._watch(future, lambda _: self.refresh_presets())

    def _watch(self, future: Any, on_done: Any) -> None:
        self._services.background.watch(future, on_done, None, self)


# Sampling of one chat: the publisher's recommendations and the chat's own values.


@dataclass(frozen=True)
class SamplingControl:
    """A sampling field in the window. Its bounds may be narrower than the API's."""

    name: str
    title: str
    description: str
    maximum: float = 1
    minimum: float = 0

    @property
    def row(self) -> SamplingField:
        """The field's row in the sampling table."""
        return SAMPLING[self.name]


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
        "repeat_penalty", "Repeat penalty", "Values above 1 discourage repeating recent words.", 2, 0.5
    ),
)


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
        self.keep = button(self.tr("Save for this model"), self.keep_pressed.emit)
        self.keep.setToolTip(self.tr("Every chat with this model starts with these values"))
        column.addWidget(self.all)
        column.addWidget(self.keep)
        self.setLayout(column)

    def show_values(self, own: Mapping[str, object], recommended: Mapping[str, EffectiveValue]) -> None:
        """Show a chat's own values; `recommended` applies to the other fields."""
        self.own = {k.name: float(v) for k in KNOBS if isinstance(v := own.get(k.name), int | float)}
        self._recommended = recommended
        self._show()

    def follow(self, *names: str) -> None:
        """Reset fields to the recommendation."""
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
            if field.value() != value:  # setValue rewrites the text, even while the user types
                field.setValue(int(value) if knob.row.whole else value)  # type: ignore[arg-type]
            source = formatted.source(recommended.source if recommended is not None else "")
            form = self.tr("Set for this chat; otherwise {value} ({source})") if is_own else "{source}"
            self.states[knob.name].setText(form.format(value=f"{usual:g}", source=source))
            self.resets[knob.name].setEnabled(is_own)
        self.all.setEnabled(bool(self.own))
        self.keep.setEnabled(bool(self.own))
        self._showing = False

    def _field(self, knob: SamplingControl) -> QSpinBox | QDoubleSpinBox:
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


# Steps of the reasoning slider: None is the model's default, 0 is off, then token budgets.
_BUDGETS: tuple[int | None, ...] = (None, 0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_MOST_STOPS = 16  # the server's limit


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
                label(self.tr("Stop sequences"), "strong"),
                self.stops,
                label(self.tr("JSON schema"), "strong"),
                self.schema,
                self._problem,
                label(self.tr("Answers contain only JSON that matches this schema."), "small", wrap=True),
                self.receipt,
                label(
                    self.tr(
                        "The same request then gives the same answer, even when other requests run "
                        "at the same time."
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

    def show_values(self, given: Mapping[str, object]) -> None:
        """Show the values of a conversation."""
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
