"""The panel next to a chat: system prompt, documents and creativity; everything else under "Advanced".

Every advanced option shows its range and its default.
"""

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QInputDialog,
    QPlainTextEdit,
    QSpinBox,
    QWidget,
)

from app.db import conversations
from app.db.records import Conversation, Preset
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.option_fields import FIELD_WIDTH, Creativity, OutputOptions, SamplingFields
from app.gui.widgets.basics import IconButton, button, holding, label, row, rule, scrolled, stack
from app.gui.widgets.popups import ComboBox
from app.gui.widgets.splitter import Disclosure, SidePanel
from app.settings import BY_NAME, Settings
from app.suggestions import asked_for, filled
from engine.api.collections import Collection

_LIMIT = BY_NAME["chat.max_tokens"]
_DELAY_MS = 500


def default_sampling(now: Settings) -> dict[str, object]:
    """Sampling of a new chat: the token limit only. All else is the model's recommendation."""
    return {"max_tokens": now["chat.max_tokens"]}


class ChatOptions(SidePanel):
    """Emits the conversation fields that the user changed."""

    changed = Signal(dict)

    def __init__(self, services: AppContext) -> None:
        super().__init__(services.theme)
        self._services = services
        self._showing = False
        self._own: Mapping[str, object] = {}
        self._presets: list[Preset] = []
        self.prompt = QPlainTextEdit(tabChangesFocus=True)
        self.prompt.setAccessibleName(self.tr("System prompt"))
        self.prompt.setPlaceholderText(self.tr("How the model should behave in this chat"))
        self.prompt.setFixedHeight(128)
        self._delay = QTimer(self, singleShot=True, interval=_DELAY_MS)
        self._delay.timeout.connect(self._emit)
        self.prompt.textChanged.connect(self._on_edited)
        self.preset = ComboBox(self.tr("Preset"))
        self.preset.activated.connect(self._on_preset)
        remove = IconButton(services.theme, "trash", self.tr("Remove this preset"), self._remove_preset)
        save = button(self.tr("Save as preset…"), self._save_preset)
        self.sampling = SamplingFields(services.theme)
        self.sampling.changed.connect(self._on_sampling)
        self.sampling.keep_pressed.connect(self._save_for_model)
        self.creativity = Creativity()
        self.creativity.chosen.connect(self._on_creativity)
        self._chat, self._model = 0, ""
        self.limit = QSpinBox()
        self.limit.setSpecialValueText(self.tr("No limit"))  # shown for 0
        self.limit.setRange(int(_LIMIT.minimum or 0), int(_LIMIT.maximum or 0))
        self.limit.setMinimumWidth(FIELD_WIDTH)
        self.limit.lineEdit().setTextMargins(6, 0, 6, 0)
        self.limit.setAccessibleName(self.tr(_LIMIT.title))
        self.limit.setToolTip(self.tr(_LIMIT.description))
        self.limit.valueChanged.connect(self._on_edited)
        self.documents = ComboBox(self.tr("Documents"))
        self.documents.addItem(self.tr("None"))
        self.documents.activated.connect(lambda _: self._on_collection())
        self._collections: tuple[str, ...] = ("",)
        self.output = OutputOptions()
        self.output.changed.connect(self._on_edited)
        self.reset = button(self.tr("Reset advanced options"), self._reset)
        self._remove = remove
        self._build(save)
        services.models.changed.connect(self.refresh_recommendation)
        self.refresh_presets()

    def _build(self, save: QWidget) -> None:
        least, most = (formatted.whole(bound or 0) for bound in (_LIMIT.minimum, _LIMIT.maximum))
        usual = formatted.whole(self._usual_limit) if self._usual_limit else self.tr("No limit")
        form = self.tr("{low} to {high} tokens · Default: {value}")
        limit = label(form.format(low=least, high=most, value=usual), "small", wrap=True)
        inside = holding(
            stack(
                self.sampling,
                rule(),
                label(self.tr("Length and form"), "muted"),
                row(label(self.tr(_LIMIT.title), "strong"), 1, self.limit),
                limit,
                self.output,
                rule(),
                self.reset,
                spacing=8,
                margins=(0, 4, 0, 0),
            )
        )
        self.advanced = Disclosure(self._services.theme, "chat-options", self.tr("Advanced"), inside)
        column = stack(
            label(self.tr("System prompt"), "strong"),
            self.prompt,
            row(self.preset, self._remove, spacing=4),
            save,
            label(self.tr("Answer from documents"), "strong"),
            self.documents,
            self.creativity,
            rule(),
            self.advanced,
            spacing=8,
            margins=(16, 16, 16, 16),
        )
        column.addStretch(1)
        self.setLayout(stack(scrolled(column, self.tr("Options"))))

    @property
    def _usual_limit(self) -> int:
        """The token limit of new chats."""
        return int(self._services.settings.now[_LIMIT.name])

    def show_conversation(self, conversation: Conversation) -> None:
        self._showing = True
        if self.prompt.toPlainText() != conversation.system_prompt:
            self.prompt.setPlainText(conversation.system_prompt)
        limit = int(conversation.sampling.get("max_tokens", _LIMIT.default))  # type: ignore[call-overload]
        if self.limit.value() != limit:  # setValue rewrites the text, even while the user types
            self.limit.setValue(limit)
        self._chat, self._model = conversation.id, conversation.model
        self._own = conversation.sampling
        self.output.show_values(conversation.sampling)
        self._show_collection()
        self.refresh_collections()
        self.refresh_recommendation()
        self._show_set()
        self._showing = False

    def refresh_collections(self) -> None:
        """Update the list of collections. The chat's collection stays selected."""

        def show(collections: tuple[Collection, ...]) -> None:
            self._collections = ("", *(each.id for each in collections))
            self.documents.clear()
            self.documents.addItem(self.tr("None"))
            for each in collections:
                self.documents.addItem(each.name)
            self._show_collection()

        api = self._services.api
        self._services.background.run(api.collections, show, lambda _: None, self, newest="collections")

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
        self._watch(self._services.store.submit(conversations.presets), self._show_presets)

    def refresh_recommendation(self) -> None:
        """Show the current recommendation of the model's publisher."""
        chosen = self._services.models.get(self._model)
        self.sampling.show_values(self._own, chosen.sampling if chosen is not None else {})
        self._show_creativity()
        self.output.offer_reasoning(reasons=chosen is not None and chosen.reasons)

    def _save_for_model(self) -> None:
        """Save this chat's sampling values as the user's settings for the model."""
        chat, model, own, api = self._chat, self._model, dict(self.sampling.own), self._services.api

        def work() -> None:
            api.set_sampling(model, {**api.sampling(model).user, **own})

        def done(_: object) -> None:
            if chat == self._chat:  # otherwise the fields are those of another chat, which keeps its own values
                self.sampling.follow(*own)
            self._services.models.refresh()

        self._services.background.run(work, done, parent=self)

    def _on_creativity(self, temperature: float | None) -> None:
        if temperature is None:
            self.sampling.follow("temperature")
        else:
            self.sampling.set_own("temperature", temperature)

    def _on_sampling(self) -> None:
        self._show_creativity()
        self._on_edited()

    def _show_creativity(self) -> None:
        self.creativity.show_value(self.sampling.own.get("temperature"), self.sampling.usual("temperature"))

    def _reset(self) -> None:
        """Set all advanced options to their defaults. System prompt and documents stay."""
        self.limit.setValue(self._usual_limit)
        self.output.show_values({})
        self.sampling.follow(*self.sampling.fields)

    def _show_set(self) -> None:
        """Show how many advanced options are not at their defaults, as they may be folded away."""
        shown_above = not self.creativity.is_custom and "temperature" in self.sampling.own
        count = len(self.sampling.own) - shown_above + len(self.output.own)
        count += self.limit.value() != self._usual_limit
        self.advanced.set_note(self.tr("{n} set").format(n=count) if count else "")
        self.reset.setEnabled(bool(count or shown_above))

    def _on_edited(self) -> None:
        if not self._showing:
            self._own = self._sampling()  # a refresh before the timer fires must show the edited values
            self._show_set()
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
        source = {"collection": chosen} if chosen else {}
        return {**self.sampling.own, **self.output.own, **source, "max_tokens": self.limit.value()}

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
