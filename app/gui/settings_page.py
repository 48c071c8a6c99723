"""The settings page, generated from the settings table."""

from functools import partial

from PySide6.QtCore import QLocale, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QSpinBox,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.close_guard import show_in_folder
from app.gui.reasons import error_message, known_text
from app.gui.shortcuts import SHORTCUTS, shown_keys, words_of
from app.gui.widgets.basics import Banner, Page, button, card, label, row, rule, search_field, set_kind, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, entries_of
from app.setting import Setting, SettingsError, Value
from app.settings import BY_NAME, SETTINGS, settings_file
from engine.core.paths import user_paths
from engine.core.version import __version__
from quantize.kv_cache_types import CACHE_TYPES

_DELAY_MS = 400
_NUMBER = 112  # pixels, of a number field; wider for words
_UNITS = {"_percent": " %", "_mib": " MiB", "keep_alive": " s"}  # keyed by the ending of a setting's name
_CODE = 2  # length of a language code
# What 0 means, for settings in which it is no number like the others.
_AT_ZERO = {
    "chat.max_tokens": "No limit",
    "models.context": "Automatic",
    "models.parallel": "Automatic",
    "models.keep_alive": "Never",
    "models.max_loaded": "As many as fit",
    "cache.prefix_mib": "None",
}
_CHOICES = {"mains": "When plugged in"}  # words of choices that do not explain themselves
_TEST_LANGUAGE = "pseudo"  # finds texts that do not fit; not a language for users


class SettingsPage(Page):
    """One row per setting. A change applies immediately unless the row says otherwise."""

    restart_wanted = Signal()

    def __init__(self, services: AppContext, num_destinations: int = 6) -> None:
        """Create the page. `num_destinations`: entries of the window's bar, which have shortcuts."""
        super().__init__(self.tr("Settings"))
        self._services = services
        self._frames: dict[str, QWidget] = {}
        self._headings: dict[str, QWidget] = {}  # visible if several sections are
        self._rows: list[tuple[str, QWidget, str]] = []  # section, row, searchable text
        self.banner = Banner(services.theme, self)
        self._started = {setting.name: services.settings.now[setting.name] for setting in SETTINGS}
        self.search = search_field(self.tr("Search settings"))
        self.search.setFixedWidth(240)
        self.search.textChanged.connect(lambda _: self._show_sections())
        self.header.addWidget(self.search, 0, Qt.AlignmentFlag.AlignTop)
        self._buttons = QButtonGroup(self)
        self._names = Flow(spacing=0)
        self.content.addWidget(self._names)
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
                self._add_row(column, setting, name, first=not position)
            self._add_frame(name, self.tr(name), frame)
        self._add_shortcuts(num_destinations)
        self._add_folders()
        self._buttons.buttons()[0].setChecked(True)
        self._show_sections()
        services.settings.changed.connect(self._show_value)

    def _add_frame(self, name: str, title: str, frame: QWidget) -> None:
        """Add a section and its button in the row above."""
        holder = QWidget()
        heading = label(title, "strong")
        heading.hide()
        holder.setLayout(stack(heading, frame, spacing=8))
        self._frames[name], self._headings[name] = holder, heading
        self.content.addWidget(holder)
        section_button = QToolButton()
        section_button.setProperty("kind", "section")
        section_button.setCheckable(True)
        section_button.setText(title)
        section_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        section_button.clicked.connect(self._on_section)
        self._buttons.addButton(section_button)
        self._names.add(section_button)

    def _on_section(self) -> None:
        self.search.clear()
        self._show_sections()

    def show_section(self, name: str) -> None:
        """Show one section. `name` is the section's name in the settings table."""
        self._buttons.buttons()[list(self._frames).index(name)].setChecked(True)
        self._on_section()

    def _show_sections(self) -> None:
        """Show the selected section, or all rows that match the search text."""
        search = self.search.text().strip().casefold()
        chosen = next(n for n, section_button in enumerate(self._buttons.buttons()) if section_button.isChecked())
        matches = {section for section, _, words in self._rows if search and search in words}
        for number, (name, frame) in enumerate(self._frames.items()):
            frame.setVisible(name in matches if search else number == chosen)
            self._headings[name].setVisible(bool(search))  # otherwise the row above shows it
        for _, row_, words in self._rows:
            row_.setVisible(not search or search in words)
        for section_button in self._buttons.buttons():
            set_kind(section_button, "section" if not search else "section-off")

    def _add_row(self, column: QVBoxLayout, setting: Setting, section: str, *, first: bool) -> None:
        editor = self._editor(setting)
        editor.setAccessibleName(self.tr(setting.title))
        editor.setAccessibleDescription(formatted.without_ticks(self.tr(setting.description)))
        self.editors[setting.name] = editor
        words = formatted.without_ticks(self.tr(setting.description))
        if setting.restart:
            words += " " + self.tr("Takes effect after a restart.")
        fixed = setting.name in self._services.settings.now.fixed
        if fixed:
            words = self.tr("Set by the environment variable {name}.").format(name=setting.environment)
            editor.setEnabled(False)
        note = label("", "chip-bad", wrap=True)
        note.hide()
        self._notes[setting.name] = note
        texts = stack(label(self.tr(setting.title), wrap=True), label(words, "small", wrap=True), note, spacing=2)
        holder = QWidget()
        line = QVBoxLayout(holder)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(12)
        if not first:
            line.addWidget(rule())
        if isinstance(editor, QPlainTextEdit):
            line.addLayout(texts)
            line.addWidget(editor)
        else:
            beside = QHBoxLayout()
            beside.setSpacing(16)
            beside.addLayout(texts, 1)
            beside.addWidget(editor, 0, Qt.AlignmentFlag.AlignVCenter)
            line.addLayout(beside)
        column.addWidget(holder)
        self._rows.append((section, holder, f"{self.tr(setting.title)} {words}".casefold()))

    def _editor(self, setting: Setting) -> QWidget:
        value = self._services.settings.now[setting.name]
        save = partial(self._save, setting.name)
        if setting.kind is bool:
            box = QCheckBox()
            box.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # aligns the check mark with the other controls
            box.setChecked(bool(value))
            box.toggled.connect(save)
            return box
        if setting.choices:
            choice = ComboBox()
            for name in setting.choices:
                if name == _TEST_LANGUAGE and name != value:
                    continue
                choice.addItem(self._choice_label(setting, name), name)
            choice.setCurrentIndex(choice.findData(value))
            choice.setMinimumWidth(160)
            choice.activated.connect(lambda position: save(choice.itemData(position)))
            return choice
        if setting.name == "chat.model":
            return self._model_editor(str(value))
        if setting.kind is str:
            return self._text_editor(setting, str(value))
        return self._number_editor(setting, value)

    def _choice_label(self, setting: Setting, name: str) -> str:
        if setting.name.endswith(".language") and len(name) == _CODE:
            own_name = QLocale(name).nativeLanguageName().partition(" ")
            return own_name[-1] or own_name[0]
        return name if name in CACHE_TYPES else self.tr(_CHOICES.get(name, name.capitalize()))

    def _model_editor(self, value: str) -> QWidget:
        """Combo box of the available models. A chosen model that is missing stays selected."""
        choice = ComboBox()
        choice.setMinimumWidth(240)

        def fill() -> None:
            now = self._services.settings.now.text("chat.model")
            offered = [(self.tr("The most recently used one"), "")]
            offered += [(model.title, model.id) for model in self._services.models.choices]
            if now not in {model for _, model in offered}:
                offered.append((now, now))
            if offered != entries_of(choice):  # otherwise do not refresh, the combo box may be open
                choice.clear()
                for title, model in offered:
                    choice.addItem(title, model)
            choice.setCurrentIndex(choice.findData(now))

        fill()
        self._services.models.changed.connect(fill)
        choice.activated.connect(lambda position: self._save("chat.model", choice.itemData(position)))
        choice.setCurrentIndex(choice.findData(value))
        return choice

    def _number_editor(self, setting: Setting, value: Value) -> QWidget:
        field: QSpinBox | QDoubleSpinBox = QSpinBox() if setting.kind is int else QDoubleSpinBox()
        field.setRange(int(setting.minimum or 0), int(setting.maximum or 0))
        if isinstance(field, QDoubleSpinBox):
            field.setRange(setting.minimum or 0, setting.maximum or 0)
            field.setSingleStep(0.05)
        if setting.name in _AT_ZERO:
            field.setSpecialValueText(self.tr(_AT_ZERO[setting.name]))
        field.setSuffix(next((unit for end, unit in _UNITS.items() if setting.name.endswith(end)), ""))
        field.setValue(value)  # type: ignore[arg-type]  # the table's type
        field.setKeyboardTracking(False)
        field.setMinimumWidth(_NUMBER)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        field.valueChanged.connect(partial(self._save, setting.name))
        return field

    def _text_editor(self, setting: Setting, value: str) -> QWidget:
        if setting.name.endswith("_prompt"):
            area = QPlainTextEdit(value, tabChangesFocus=True)
            area.setFixedHeight(96)
            delay = QTimer(area, singleShot=True, interval=_DELAY_MS)
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
            note.setText(known_text(error.reason))  # type: ignore[attr-defined]  # a label
            note.show()
        else:
            note.hide()
            self._offer_restart(name)

    def _offer_restart(self, name: str) -> None:
        """Offer to restart after a change that needs it. A change that was reverted needs no restart."""
        if not BY_NAME[name].restart:
            return
        if self._services.settings.now[name] == self._started[name]:
            self.banner.hide()
            return
        words = self.tr("{name} changes when Tessera starts again.").format(name=self.tr(BY_NAME[name].title))
        self.banner.notify(words, "info", (self.tr("Restart now"), self.restart_wanted.emit))

    def _show_value(self, name: str) -> None:
        """Update an editor after its setting was changed elsewhere."""
        editor, value = self.editors.get(name), self._services.settings.now[name]
        if isinstance(editor, QCheckBox):
            editor.setChecked(bool(value))
        elif isinstance(editor, QComboBox):
            editor.setCurrentIndex(editor.findData(value))
        elif isinstance(editor, QSpinBox | QDoubleSpinBox):
            with QSignalBlocker(editor):  # it is stored already
                editor.setValue(value)  # type: ignore[arg-type]  # the table's type
        elif isinstance(editor, QLineEdit):
            editor.setText(str(value))

    def _add_shortcuts(self, num_destinations: int) -> None:
        lines = []
        for shown in SHORTCUTS:
            keys = label(shown_keys(shown, num_destinations), "chip")
            line = row(label(words_of(shown), wrap=True), keys, grow=0)
            lines.append(line)
        self._add_frame("shortcuts", self.tr("Shortcuts"), card(*lines))

    def _add_folders(self) -> None:
        paths = user_paths()
        folders = (
            (self.tr("Settings"), settings_file()),
            (self.tr("Chats and backups"), paths.state),
            (self.tr("Models"), paths.models),
            (self.tr("Logs and crash reports"), paths.logs),
        )
        lines = QGridLayout()
        lines.setHorizontalSpacing(16)
        lines.setColumnStretch(1, 1)
        for number, (words, path) in enumerate(folders):
            for column, widget in enumerate(self._folder_line(words, str(path))):
                lines.addWidget(widget, number, column)
        empty = button(self.tr("Empty the trash of chats…"), self._confirm_empty_trash, "danger")
        self._add_frame("places", self.tr("Locations"), card(lines, row(empty, 1)))
        about = button(self.tr("About Tessera and its licences…"), self._show_about, "link")
        version = row(label(f"Tessera {__version__}", selectable=True), 1, about)
        self._add_frame("about", self.tr("About"), card(version))

    def _show_about(self) -> None:
        from app.gui.about import About

        About(self._services, self.window()).open()

    def _folder_line(self, words: str, path: str) -> tuple[QWidget, ...]:
        """A long path that can be scrolled, selected, copied and opened."""
        shown = QLineEdit(path, readOnly=True)
        shown.setAccessibleName(words)
        shown.setCursorPosition(0)
        opens = button(self.tr("Open"), lambda: show_in_folder(path))
        opens.setAccessibleName(self.tr("Open {name}").format(name=words))
        return label(words, wrap=True), shown, opens

    def _confirm_empty_trash(self) -> None:
        from PySide6.QtWidgets import QMessageBox

        from app.db import conversations

        box = QMessageBox(self, textFormat=Qt.TextFormat.PlainText)
        box.setText(self.tr("Delete all chats in the trash permanently?"))
        box.setStandardButtons(QMessageBox.StandardButton.Discard | QMessageBox.StandardButton.Cancel)
        box.setDefaultButton(QMessageBox.StandardButton.Cancel)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        discard = box.button(QMessageBox.StandardButton.Discard)

        def empty() -> None:
            done = self._services.store.submit(conversations.empty_trash)
            self._services.background.watch(
                done,
                lambda _: self.banner.notify(self.tr("The trash of chats is empty."), "ok"),
                lambda error: self.banner.notify(error_message(error), "bad"),
                self,
            )

        discard.clicked.connect(empty)
        box.open()
