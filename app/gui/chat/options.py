"""The panel beside a chat: system prompt, presets, and sampling with plain explanations."""

from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QFrame, QInputDialog, QPlainTextEdit, QScrollArea, QSpinBox

from app.db import conversations
from app.db.records import Conversation, Preset
from app.gui.services import Services
from app.gui.widgets.basics import IconButton, button, label, row, stack
from app.settings import BY_NAME, Settings

_NAMES = ("temperature", "top_p", "min_p", "top_k", "repeat_penalty", "max_tokens")
_DELAY_MS = 500


def default_sampling(now: Settings) -> dict[str, object]:
    """The sampling of a new chat, from the settings."""
    return {name: now[f"chat.{name}"] for name in _NAMES}


class ChatOptions(QFrame):
    """Emits the fields of the conversation that the user changed."""

    changed = Signal(dict)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.setProperty("kind", "side")
        self.setFixedWidth(304)
        self._showing = False
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
        self.preset = QComboBox()
        self.preset.setAccessibleName(self.tr("Preset"))
        self.preset.activated.connect(self._on_preset)
        remove = IconButton(services.look, "trash", self.tr("Remove this preset"), self._remove_preset)
        save = button(self.tr("Save as preset…"), self._save_preset)
        self.fields: dict[str, QSpinBox | QDoubleSpinBox] = {}
        column = stack(
            label(self.tr("Preset"), "strong"),
            row(self.preset, remove, spacing=4),
            label(self.tr("System prompt"), "strong"),
            self.prompt,
            save,
            spacing=8,
            margins=(16, 16, 16, 16),
        )
        self._remove = remove
        for name in _NAMES:
            field = self._field(name)
            self.fields[name] = field
            column.addSpacing(4)
            column.addLayout(row(label(self.tr(BY_NAME[f"chat.{name}"].title), "strong"), 1, field))
            column.addWidget(label(self.tr(BY_NAME[f"chat.{name}"].description), "small", wrap=True))
        column.addStretch(1)
        inner = QFrame()
        inner.setLayout(column)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidget(inner)
        scroll.viewport().setAutoFillBackground(False)
        inner.setAutoFillBackground(False)
        self.setLayout(stack(scroll))
        self.refresh_presets()

    def show_conversation(self, conversation: Conversation) -> None:
        """Show the settings of a conversation."""
        self._showing = True
        if self.prompt.toPlainText() != conversation.system_prompt:
            self.prompt.setPlainText(conversation.system_prompt)
        for name, field in self.fields.items():
            value = conversation.sampling.get(name, BY_NAME[f"chat.{name}"].default)
            field.setValue(value)  # type: ignore[arg-type]  # the box converts
        self._showing = False

    def refresh_presets(self) -> None:
        """Read the presets anew."""
        self._watch(self._services.store.submit(conversations.presets), self._show_presets)

    def _field(self, name: str) -> QSpinBox | QDoubleSpinBox:
        setting = BY_NAME[f"chat.{name}"]
        field: QSpinBox | QDoubleSpinBox
        if setting.kind is int:
            field = QSpinBox()
            field.setRange(int(setting.minimum or 0), int(setting.maximum or 0))
        else:
            field = QDoubleSpinBox()
            field.setSingleStep(0.05)
            field.setRange(setting.minimum or 0, setting.maximum or 0)
        field.setFixedWidth(96)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        field.setAccessibleName(setting.title)
        field.setToolTip(setting.description)
        field.valueChanged.connect(self._on_edited)
        return field

    def _on_edited(self) -> None:
        if not self._showing:
            self._delay.start()

    def _emit(self) -> None:
        self.changed.emit({"system_prompt": self.prompt.toPlainText(), "sampling": self._sampling()})

    def _sampling(self) -> dict[str, object]:
        return {
            name: round(field.value(), 4) if isinstance(field, QDoubleSpinBox) else field.value()
            for name, field in self.fields.items()
        }

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
            chosen = self._presets[position - 1]
            self.changed.emit({"system_prompt": chosen.system_prompt, "sampling": chosen.sampling})

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
