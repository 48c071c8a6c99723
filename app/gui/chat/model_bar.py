"""The bar above a chat: model, second model for comparison, and buttons for the side panels."""

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.client import ApiError
from app.gui import formatted
from app.gui.app_context import AppContext, ModelChoice
from app.gui.reasons import error_message
from app.gui.widgets.basics import IconButton, row
from app.gui.widgets.popups import ComboBox
from app.gui.widgets.search_popup import Entry, SearchPopup
from engine.api.library import Model
from engine.api.machine import Placement


class _ModelBox(ComboBox):
    """A combo box that opens the searchable model list instead of its own popup."""

    wanted = Signal()

    def showPopup(self) -> None:
        """Request the model list."""
        self.wanted.emit()


class ModelBar(QWidget):
    """Emits the user's choices and shows the current models."""

    chosen = Signal(str)
    second_chosen = Signal(str)  # "" turns comparison off
    fold_pressed = Signal()
    tools_pressed = Signal()
    tune_pressed = Signal()
    temporary_pressed = Signal()

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        theme = services.theme
        unit = theme.tokens.unit
        fold = IconButton(theme, "sidebar", self.tr("Show or hide the list of chats"), self.fold_pressed.emit)
        tools = IconButton(theme, "tool", self.tr("Tools"), self.tools_pressed.emit)
        tune = IconButton(theme, "sliders", self.tr("System prompt and sampling"), self.tune_pressed.emit)
        words = self.tr("Temporary chat: it is not saved (Ctrl+Shift+N)")
        self.temporary = IconButton(theme, "temporary", words, self.temporary_pressed.emit)
        self.temporary.setCheckable(True)
        self.models = _ModelBox()
        _set_up(self.models, self.tr("Model"))
        self.models.activated.connect(lambda at: self.chosen.emit(str(self.models.itemData(at))))
        self.picker = ModelPicker(services, self)
        self.picker.chosen.connect(self._on_picked)
        self.models.wanted.connect(self.picker.open)
        self.compare = IconButton(theme, "split", self.tr("Compare with a second model"))
        self.compare.setCheckable(True)
        self.compare.toggled.connect(self._on_compare)
        self.second = ComboBox()
        _set_up(self.second, self.tr("Second model"))
        self.second.activated.connect(lambda at: self.second_chosen.emit(str(self.second.itemData(at))))
        self.second.hide()
        self.setLayout(
            row(
                *(fold, self.models, self.compare, self.second, 1, self.temporary, tools, tune),
                margins=(unit, unit, unit, unit),
            )
        )

    def show_models(self, current: str) -> None:
        """Show the available models with `current` selected. A missing model is marked as such."""
        choices = self._offered(current)
        self.models.clear()
        for choice in choices:
            self.models.addItem(choice.title, choice.id)
        position = self.models.findData(current)
        if position < 0 and current and choices:
            self.models.addItem(self.tr("{name} (missing)").format(name=current), current)
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
        """The models to list. Demos only if the current model is a demo."""
        models = self._services.models
        shown = models.get(current)
        return models.choices if shown is not None and shown.demo else models.partners

    def _show_second(self, current: str) -> None:
        others = [choice for choice in self._offered(current) if choice.id != current]
        previous = self.second.currentData()
        self.second.clear()
        for choice in others:
            self.second.addItem(choice.title, choice.id)
        self.second.setCurrentIndex(max(self.second.findData(previous), 0) if others else -1)
        self.compare.setEnabled(bool(others))
        compares, lacks = self.tr("Compare with a second model"), self.tr("A second model is needed to compare")
        self.compare.setToolTip(formatted.plain_tip(compares if others else lacks))
        if not others:
            self.compare.setChecked(False)
        elif self.compare.isChecked() and self.second.currentData() != previous:
            self.second_chosen.emit(str(self.second.currentData()))

    def _on_compare(self, checked: bool) -> None:
        self.second.setVisible(checked)
        self.second_chosen.emit(str(self.second.currentData() or "") if checked else "")


def _set_up(box: ComboBox, words: str) -> None:
    box.setAccessibleName(words)
    box.setMinimumWidth(160)
    box.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)


_MORE = "\x00more"
_CAN = ("vision", "tools", "reasoning")


class ModelPicker(QObject):
    """The searchable model list. Caches speed estimates until the window closes."""

    chosen = Signal(str)
    more_wanted = Signal()
    failed = Signal(str)

    def __init__(self, services: AppContext, parent: QWidget) -> None:
        super().__init__(parent)
        self._services, self._parent = services, parent
        self._files: dict[str, Model] = {}
        self._placements: dict[str, Placement] = {}
        self._busy: set[str] = set()
        self._palette: SearchPopup | None = None

    def open(self) -> None:
        window = self._parent.window()
        palette = SearchPopup(self._services.theme, self.tr("Models"), self.tr("Search models"), window)
        self._palette = palette
        palette.chosen.connect(self._on_chosen)
        palette.acted.connect(self._on_acted)
        palette.tool_used.connect(self.open_settings)
        palette.destroyed.connect(lambda: self._forget(palette))
        self._services.models.changed.connect(self._show)
        self._show()
        palette.open_over(window)
        self._request_files()
        for choice in self._services.models.choices:
            if choice.id not in self._placements:
                self._request_placement(choice.id)

    def _request_files(self) -> None:
        """Show the known files, then also those that a new scan of the folders finds."""
        run, api = self._services.background.run, self._services.api

        def look_again(models: tuple[Model, ...]) -> None:
            self._on_files(models)
            run(lambda: api.library(refresh=True), self._on_files, lambda _: None, self, newest="files")

        run(api.library, look_again, lambda _: None, self, newest="files")

    def _forget(self, palette: SearchPopup) -> None:
        if self._palette is palette:
            self._palette = None
            self._services.models.changed.disconnect(self._show)

    def _request_placement(self, model: str) -> None:
        api = self._services.api

        def ask() -> Placement | None:
            try:
                answer = api.placement(model)
            except ApiError:  # too large for this computer: listed without a speed
                return None
            return answer.loaded or answer.placement

        def show(placement: Placement | None) -> None:
            if placement is not None:
                self._placements[model] = placement
                self._show()

        self._services.background.run(ask, show, lambda _: None, self, newest=f"placement of {model}")

    def _on_files(self, models: tuple[Model, ...]) -> None:
        self._files = {model.id: model for model in models}
        self._show()

    def _show(self) -> None:
        if self._palette is None:
            return
        entries = [self._entry(choice) for choice in self._services.models.choices]
        more = Entry(_MORE, self.tr("Get more models…"), always=True)
        self._palette.show_entries([*entries, more])

    def _entry(self, choice: ModelChoice) -> Entry:
        mark = self.tr("Loaded") if choice.loaded else self.tr("Starting…") if choice.id in self._busy else ""
        action = "" if choice.id in self._busy else self.tr("Eject") if choice.loaded else self.tr("Load")
        return Entry(choice.id, choice.title, self._summary(choice), mark, action, self.tr("Load settings"))

    def open_settings(self, model: str) -> None:
        from app.gui.library.load_dialog import LoadDialog

        choice = self._services.models.get(model)
        dialog = LoadDialog(self._services, model, choice.title if choice else model, self._parent.window())
        dialog.saved.connect(lambda _: self._forget_placement(model))
        dialog.loading.connect(lambda _: self._act(model, load=True))
        dialog.open()

    def _forget_placement(self, model: str) -> None:
        self._placements.pop(model, None)
        self._services.models.refresh()

    def _summary(self, choice: ModelChoice) -> str:
        """Size, speed on this computer, device and capabilities, as far as known."""
        parts: list[str] = []
        file, placement = self._files.get(choice.id), self._placements.get(choice.id)
        if file is not None:
            parts += [formatted.size(file.size_bytes)] if file.size_bytes else []
            parts += [file.details.quantization] if file.details.quantization else []
            if file.bits_per_weight:
                parts.append(self.tr("{n} bits per weight").format(n=formatted.decimal(file.bits_per_weight, 2)))
            parts += [name for name in _CAN if name in file.capabilities]
        if placement is not None:
            if placement.decode_tok_s:
                parts.append(self.tr("about {n} tokens/s here").format(n=formatted.speed(placement.decode_tok_s)))
            parts.append(self.tr("on {device}").format(device=placement.device_name or placement.device))
        return " · ".join(parts)

    def _on_chosen(self, key: str) -> None:
        if key == _MORE:
            self.more_wanted.emit()
        else:
            self.chosen.emit(key)

    def _on_acted(self, model: str) -> None:
        choice = self._services.models.get(model)
        if choice is not None:
            self._act(model, load=not choice.loaded)

    def _act(self, model: str, *, load: bool) -> None:
        if model in self._busy:
            return
        self._busy.add(model)
        self._show()
        api = self._services.api

        def ended() -> None:
            self._busy.discard(model)
            self._services.models.refresh()
            self._show()

        def done(_: object) -> None:
            self._placements.pop(model, None)
            ended()
            self._request_placement(model)

        def failed(error: Exception) -> None:
            ended()
            self.failed.emit(error_message(error))

        work = (lambda: api.load(model)) if load else (lambda: api.unload(model))
        self._services.background.run(work, done, failed, self)
