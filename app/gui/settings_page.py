"""The settings page, made from the table of settings."""

from functools import partial

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.gui.services import Services
from app.gui.shortcuts import SHORTCUTS, shown_keys, words_of
from app.gui.widgets.basics import Page, button, card, label, row, rule, stack
from app.gui.widgets.popups import Choice
from app.settings import SETTINGS, Setting, SettingsError, Value, settings_file
from engine.paths import user_paths

_DELAY_MS = 400


class SettingsPage(Page):
    """One row a setting; a change applies at once unless the row says otherwise."""

    def __init__(self, services: Services) -> None:
        super().__init__(self.tr("Settings"), width=760)
        self._services = services
        self.editors: dict[str, QWidget] = {}
        self._notes: dict[str, QWidget] = {}
        groups: dict[str, list[Setting]] = {}
        for setting in SETTINGS:
            groups.setdefault(setting.group, []).append(setting)
        for name, rows in groups.items():
            frame = card(spacing=12)
            column = frame.layout()
            assert isinstance(column, QVBoxLayout)
            for position, setting in enumerate(rows):
                if position:
                    column.addWidget(rule())
                self._add_row(column, setting)
            self.add_section(self.tr(name), frame)
        self._add_shortcuts()
        self._add_places()
        services.settings.changed.connect(self._show_value)

    def _add_row(self, column: QVBoxLayout, setting: Setting) -> None:
        editor = self._editor(setting)
        editor.setAccessibleName(self.tr(setting.title))
        editor.setAccessibleDescription(self.tr(setting.description))
        self.editors[setting.name] = editor
        words = self.tr(setting.description)
        if setting.restart:
            words += " " + self.tr("Takes effect after a restart.")
        fixed = setting.name in self._services.settings.now.fixed
        if fixed:
            words = self.tr("Set by the environment variable {name}.").format(name=setting.environment)
            editor.setEnabled(False)
        note = label("", "chip-bad", wrap=True)
        note.hide()
        self._notes[setting.name] = note
        texts = stack(label(self.tr(setting.title)), label(words, "small", wrap=True), note, spacing=2)
        if isinstance(editor, QPlainTextEdit):
            column.addLayout(texts)
            column.addWidget(editor)
            return
        line = QHBoxLayout()
        line.setSpacing(16)
        line.addLayout(texts, 1)
        line.addWidget(editor, 0, Qt.AlignmentFlag.AlignVCenter)
        column.addLayout(line)

    def _editor(self, setting: Setting) -> QWidget:
        value = self._services.settings.now[setting.name]
        save = partial(self._save, setting.name)
        if setting.kind is bool:
            box = QCheckBox()
            box.setChecked(bool(value))
            box.toggled.connect(save)
            return box
        if setting.choices:
            choice = Choice()
            for name in setting.choices:
                choice.addItem(self.tr(name.capitalize()), name)
            choice.setCurrentIndex(choice.findData(value))
            choice.setMinimumWidth(160)
            choice.activated.connect(lambda position: save(choice.itemData(position)))
            return choice
        if setting.kind is str:
            return self._text_editor(setting, str(value))
        return self._number_editor(setting, value)

    def _number_editor(self, setting: Setting, value: Value) -> QWidget:
        field: QSpinBox | QDoubleSpinBox = QSpinBox() if setting.kind is int else QDoubleSpinBox()
        field.setRange(int(setting.minimum or 0), int(setting.maximum or 0))
        if isinstance(field, QDoubleSpinBox):
            field.setRange(setting.minimum or 0, setting.maximum or 0)
            field.setSingleStep(0.05)
        field.setValue(value)  # type: ignore[arg-type]  # the table's type
        field.setKeyboardTracking(False)
        field.setFixedWidth(112)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        field.valueChanged.connect(partial(self._save, setting.name))
        return field

    def _text_editor(self, setting: Setting, value: str) -> QWidget:
        if setting.name.endswith("_prompt"):
            area = QPlainTextEdit(value)
            area.setTabChangesFocus(True)
            area.setFixedHeight(96)
            delay = QTimer(area)
            delay.setSingleShot(True)
            delay.setInterval(_DELAY_MS)
            delay.timeout.connect(lambda: self._save(setting.name, area.toPlainText()))
            area.textChanged.connect(delay.start)
            return area
        line = QLineEdit(value)
        line.setMinimumWidth(240)
        line.editingFinished.connect(lambda: self._save(setting.name, line.text()))
        return line

    def _save(self, name: str, value: Value) -> None:
        note = self._notes[name]
        try:
            self._services.settings.set(name, value)
        except SettingsError as error:
            note.setText(error.reason)  # type: ignore[attr-defined]  # a label
            note.show()
        else:
            note.hide()

    def _show_value(self, name: str) -> None:
        """Another place changed a setting."""
        editor, value = self.editors.get(name), self._services.settings.now[name]
        if isinstance(editor, QCheckBox):
            editor.setChecked(bool(value))
        elif isinstance(editor, QComboBox):
            editor.setCurrentIndex(editor.findData(value))
        elif isinstance(editor, QLineEdit):
            editor.setText(str(value))

    def _add_shortcuts(self) -> None:
        lines = []
        for shown in SHORTCUTS:
            line = row(label(words_of(shown), wrap=True), label(shown_keys(shown), "chip"))
            line.setStretch(0, 1)
            lines.append(line)
        self.add_section(self.tr("Shortcuts"), card(*lines))

    def _add_places(self) -> None:
        paths = user_paths()
        places = (
            (self.tr("Settings"), settings_file()),
            (self.tr("Chats and backups"), paths.state),
            (self.tr("Models"), paths.models),
            (self.tr("Logs and crash reports"), paths.logs),
        )
        lines = [self._place(words, str(path)) for words, path in places]
        empty = button(self.tr("Empty the trash of chats…"), self._ask_empty_trash, "danger")
        self.add_section(self.tr("Where things are"), card(*lines, row(empty, 1)))

    @staticmethod
    def _place(words: str, path: str) -> QHBoxLayout:
        """A path that can be read to its end and copied, however long it is."""
        shown = QLineEdit(path)
        shown.setReadOnly(True)
        shown.setAccessibleName(words)
        shown.setCursorPosition(0)
        line = row(label(words), shown, spacing=16)
        line.setStretch(0, 1)
        line.setStretch(1, 2)
        return line

    def _ask_empty_trash(self) -> None:
        from PySide6.QtWidgets import QMessageBox  # noqa: PLC0415 - rarely used

        from app.db import conversations  # noqa: PLC0415 - rarely used

        box = QMessageBox(self)
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setText(self.tr("Delete all chats in the trash for good?"))
        box.setStandardButtons(QMessageBox.StandardButton.Discard | QMessageBox.StandardButton.Cancel)
        box.setDefaultButton(QMessageBox.StandardButton.Cancel)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.button(QMessageBox.StandardButton.Discard).clicked.connect(
            lambda: self._services.store.submit(conversations.empty_trash)
        )
        box.open()
