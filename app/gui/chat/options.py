"""The panel beside a chat: system prompt, presets, and sampling with plain explanations."""

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QInputDialog, QPlainTextEdit, QSpinBox, QWidget

from app.db import conversations
from app.db.records import Conversation, Preset
from app.gui.app_context import Services
from app.gui.chat.output_options import OutputOptions
from app.gui.chat.sampling_fields import SamplingFields
from app.gui.widgets.basics import IconButton, button, label, row, scrolled, stack
from app.gui.widgets.popups import Choice
from app.prompt_variables import asked_for, filled
from app.settings import BY_NAME, Settings
from engine.api.collections import Collection

_LIMIT = BY_NAME["chat.max_tokens"]
_DELAY_MS = 500


def default_sampling(now: Settings) -> dict[str, object]:
    """What a new chat has of its own: the length of answers; all else is the model's recommendation."""
    return {"max_tokens": now["chat.max_tokens"]}


class ChatOptions(QFrame):
    """Emits the fields of the conversation that the user changed."""

    changed = Signal(dict)

    def __init__(self, services: Services) -> None:
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
        self.preset = Choice()
        self.preset.setAccessibleName(self.tr("Preset"))
        self.preset.activated.connect(self._on_preset)
        remove = IconButton(services.theme, "trash", self.tr("Remove this preset"), self._remove_preset)
        save = button(self.tr("Save as preset…"), self._save_preset)
        self.sampling = SamplingFields(services.theme)
        self.sampling.changed.connect(self._on_edited)
        self.sampling.keep_pressed.connect(self._keep)
        self._model = ""
        self.limit = QSpinBox()
        self.limit.setRange(int(_LIMIT.minimum or 0), int(_LIMIT.maximum or 0))
        self.limit.setFixedWidth(96)
        self.limit.lineEdit().setTextMargins(6, 0, 6, 0)
        self.limit.setAccessibleName(self.tr(_LIMIT.title))
        self.limit.valueChanged.connect(self._on_edited)
        self.documents = Choice()
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
        if self.limit.value() != limit:  # setting it writes its text again, also while somebody types there
            self.limit.setValue(limit)
        self._model = conversation.model
        self._own = conversation.sampling
        self.output.show_values(conversation.sampling)
        self._show_collection()
        self.refresh_collections()
        self.refresh_recommendation()
        self._showing = False

    def refresh_collections(self) -> None:
        """Offer the collections there are; what this chat asks stays chosen."""

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
        """Have the list stand at what this chat asks, as far as that is known."""
        chosen = str(self._own.get("collection") or "")
        self.documents.setCurrentIndex(self._collections.index(chosen) if chosen in self._collections else 0)

    def _on_collection(self) -> None:
        self._own = {name: value for name, value in self._own.items() if name != "collection"}
        self._on_edited()

    def _collection(self) -> str:
        """What is in the list; one that has not come into it yet stays what it was."""
        own = str(self._own.get("collection") or "")
        chosen = self._collections[max(self.documents.currentIndex(), 0)]
        return chosen or (own if own not in self._collections else "")

    def refresh_presets(self) -> None:
        """Read the presets again."""
        self._watch(self._services.store.submit(conversations.presets), self._show_presets)

    def refresh_recommendation(self) -> None:
        """Show what the model's makers recommend now."""
        chosen = self._services.models.get(self._model)
        self.sampling.show_values(self._own, chosen.sampling if chosen is not None else {})
        self.output.offer_reasoning(reasons=chosen is not None and chosen.reasons)

    def _keep(self) -> None:
        """What this chat has of its own becomes the user's setting for the model."""
        model, own, api = self._model, dict(self.sampling.own), self._services.api

        def work() -> None:
            api.set_sampling(model, {**api.sampling(model).user, **own})

        def done(_: object) -> None:
            self.sampling.follow(*own)
            self._services.models.refresh()

        self._services.background.run(work, done, parent=self)

    def _on_edited(self) -> None:
        if not self._showing:
            self._own = self._sampling()  # what is shown again meanwhile is what stands here now
            self._delay.start()

    def flush(self) -> None:
        """What was changed a moment ago holds from now on, not when the pause after typing is over."""
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
        """Take over a preset; its {{places}} are asked for first."""

        def take(values: dict[str, str]) -> None:
            prompt = filled(chosen.system_prompt, values, self._model)
            self.changed.emit({"system_prompt": prompt, "sampling": chosen.sampling})

        names = asked_for(chosen.system_prompt)
        if not names:
            take({})
            return
        from app.gui.chat.variables_dialog import VariablesDialog  # noqa: PLC0415 - not before it is wanted

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
