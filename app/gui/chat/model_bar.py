"""The line above a chat: which model answers, a second one to compare with, and the panels beside it."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.gui.app_context import ModelChoice, Services
from app.gui.chat.model_picker import ModelPicker
from app.gui.widgets.basics import IconButton, row
from app.gui.widgets.popups import Choice


class _ModelBox(Choice):
    """Looks like a drop-down and opens the list of models that can be searched."""

    wanted = Signal()

    def showPopup(self) -> None:
        """Ask for the list."""
        self.wanted.emit()


class ModelBar(QWidget):
    """Emits what was chosen; shows what it is told."""

    chosen = Signal(str)
    second_chosen = Signal(str)  # empty: no comparison
    fold_pressed = Signal()
    tools_pressed = Signal()
    tune_pressed = Signal()

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        theme = services.theme
        unit = theme.tokens.unit
        fold = IconButton(theme, "sidebar", self.tr("Show or hide the list of chats"), self.fold_pressed.emit)
        tools = IconButton(theme, "tool", self.tr("Tools"), self.tools_pressed.emit)
        tune = IconButton(theme, "sliders", self.tr("System prompt and sampling"), self.tune_pressed.emit)
        self.models = _ModelBox()
        _set_up(self.models, self.tr("Model"))
        self.models.activated.connect(lambda at: self.chosen.emit(str(self.models.itemData(at))))
        self.picker = ModelPicker(services, self)
        self.picker.chosen.connect(self._on_picked)
        self.models.wanted.connect(self.picker.open)
        self.compare = IconButton(theme, "split", self.tr("Compare with a second model"))
        self.compare.setCheckable(True)
        self.compare.toggled.connect(self._on_compare)
        self.second = Choice()
        _set_up(self.second, self.tr("Second model"))
        self.second.activated.connect(lambda at: self.second_chosen.emit(str(self.second.itemData(at))))
        self.second.hide()
        self.setLayout(
            row(fold, self.models, self.compare, self.second, 1, tools, tune, margins=(unit, unit, unit, unit))
        )

    def show_models(self, current: str) -> None:
        """Show the models there are, with `current` chosen; one that is gone is named as such."""
        choices = self._offered(current)
        self.models.clear()
        for choice in choices:
            self.models.addItem(choice.title, choice.id)
        position = self.models.findData(current)
        if position < 0 and current and choices:
            self.models.addItem(self.tr("{name} (not here)").format(name=current), current)
            position = self.models.count() - 1
        if not choices:
            reachable = self._services.models.reachable
            self.models.addItem(self.tr("No model") if reachable else self.tr("Starting…"))
            position = 0
        self.models.setCurrentIndex(position)
        self.models.setEnabled(bool(choices))
        self._show_second(current)

    def _on_picked(self, model: str) -> None:
        position = self.models.findData(model)
        if position >= 0:
            self.models.setCurrentIndex(position)
        self.chosen.emit(model)

    def _offered(self, current: str) -> tuple[ModelChoice, ...]:
        """Demos are offered only beside a demo."""
        models = self._services.models
        shown = models.get(current)
        return models.choices if shown is not None and shown.demo else models.partners

    def _show_second(self, current: str) -> None:
        others = [choice for choice in self._offered(current) if choice.id != current]
        wanted = self.second.currentData()
        self.second.clear()
        for choice in others:
            self.second.addItem(choice.title, choice.id)
        self.second.setCurrentIndex(max(self.second.findData(wanted), 0) if others else -1)
        self.compare.setEnabled(bool(others))
        words = self.tr("Compare with a second model")
        self.compare.setToolTip(words if others else self.tr("A second model is needed to compare"))
        if not others:
            self.compare.setChecked(False)
        elif self.compare.isChecked() and self.second.currentData() != wanted:
            self.second_chosen.emit(str(self.second.currentData()))

    def _on_compare(self, checked: bool) -> None:
        self.second.setVisible(checked)
        self.second_chosen.emit(str(self.second.currentData() or "") if checked else "")


def _set_up(box: Choice, words: str) -> None:
    box.setAccessibleName(words)
    box.setMinimumWidth(160)
    box.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
