"""The load settings of a model. Shows the estimated memory live as settings change."""

import math
from collections.abc import Callable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QDialog, QGridLayout, QSlider, QSpinBox, QWidget

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.devices.facts import part_shares
from app.gui.reasons import error_message, translated
from app.gui.widgets.basics import Banner, button, framed, holding, label, row, rule, scrolled, stack
from app.gui.widgets.memory_bar import MemoryUse
from app.gui.widgets.popups import ComboBox, largest_dialog
from engine.api.machine import PlacementAnswer
from engine.api.models import LoadOptions, ModelLoadSettings
from quantize.kv_cache_types import CACHE_TYPES, EIGHT_BIT, K_DAMAGE

_DELAY_MS = 150
_SMALLEST = 512
_FIELD = 148  # width of a field in pixels
_WIDTH = 560  # width of the dialog at the normal text size
_UNKNOWN_TRAIN = 1 << 17  # the maximum context offered if the file does not state its training context
_MOST_LAYERS, _MOST_THREADS, _MOST_PARALLEL = 512, 256, 64


class LoadDialog(QDialog):
    """One row per setting, each automatic until changed. `loading` requests an immediate load."""

    saved = Signal(str)
    waiting = Signal(str)  # the settings take effect after the model's current response has ended
    loading = Signal(str)

    def __init__(self, services: AppContext, model: str, title: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Load settings: {name}").format(name=title))
        self._services, self._model = services, model
        self._showing = True
        self._context_train = 0
        self._exact = (-1, 0)  # a position of the slider, and the context length that it stands for exactly
        self.banner = Banner(services.theme)
        self.context = QSlider(Qt.Orientation.Horizontal)
        self.context.setAccessibleName(self.tr("Context length"))
        self._context_words = label("", "strong")
        self.layers = self._number(self.tr("Layers on the GPU"), _MOST_LAYERS)
        self.threads = self._number(self.tr("CPU threads"), _MOST_THREADS, 1)
        self.parallel = self._number(self.tr("Concurrent requests"), _MOST_PARALLEL, 1)
        self.cache = ComboBox(self.tr("KV cache type"))
        self.cache.addItem(self.tr("Automatic"), None)
        for name in K_DAMAGE:
            bits = formatted.decimal(float(CACHE_TYPES[name].bits))
            self.cache.addItem(self.tr("{name} ({n} bits)").format(name=name, n=bits), name)
        self.cache.setMinimumWidth(_FIELD)
        self.eight_bit = button(self.tr("Use an 8-bit cache"), self._use_eight_bit)
        self.eight_bit.hide()
        self.keep = QCheckBox(self.tr("Keep it loaded until it is ejected"))
        self.own_context = QCheckBox(self.tr("Automatic"))
        self.memory = MemoryUse(services.theme, self.tr("Memory needed"))
        self._verdict = label("", "small", wrap=True)
        self._verdict.setMinimumHeight(round(2.6 * services.theme.tokens.small))
        self._delay = QTimer(self, singleShot=True, interval=_DELAY_MS)
        self._delay.timeout.connect(self._predict)
        self._build(title)
        self._connect()
        for control in self._waiting:
            control.setEnabled(False)
        services.ask(self.banner, lambda: services.api.load_settings(model), self._show)

    def _number(self, name: str, most: int, least: int = 0) -> QSpinBox:
        """A number field whose lowest value means automatic."""
        field = QSpinBox()
        field.setRange(least - 1, most)
        field.setSpecialValueText(self.tr("Automatic"))
        field.setAccessibleName(name)
        field.setMinimumWidth(_FIELD)
        field.lineEdit().setTextMargins(6, 0, 6, 0)
        return field

    def _build(self, title: str) -> None:
        grid = QGridLayout()
        grid.setColumnStretch(0, 1)
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(12)
        for number, (name, hint, field) in enumerate(
            (
                (
                    self.tr("Layers on the GPU"),
                    self.tr("Layers that do not fit the GPU run on the CPU."),
                    self.layers,
                ),
                (
                    self.tr("CPU threads"),
                    self.tr("One thread per fast core is best for most models."),
                    self.threads,
                ),
                (
                    self.tr("KV cache type"),
                    self.tr("Fewer bits allow a longer context; below 8 bits, answers get worse."),
                    self.cache,
                ),
                (self.tr("Concurrent requests"), self.tr("Higher values use more memory."), self.parallel),
            )
        ):
            texts = holding(stack(label(name), label(hint, "small", wrap=True), spacing=2))
            grid.addWidget(texts, number, 0)
            grid.addWidget(field, number, 1, Qt.AlignmentFlag.AlignVCenter)
        head = row(label(self.tr("Context length")), 1, self._context_words, self.own_context, spacing=12)
        note = framed("note", stack(self.memory, self._verdict, row(self.eight_bit, 1), margins=(16, 12, 16, 12)))
        self.reset = button(self.tr("Reset to automatic"), self._reset)
        self.load = button(self.tr("Save and load"), lambda: self._save(self._load_now), "primary")
        save = button(self.tr("Save"), lambda: self._save(self.accept))
        self._waiting = (self.reset, save, self.load)  # disabled until the stored settings are loaded
        self._column = stack(
            label(title, "title", wrap=True),
            self.banner,
            head,
            self.context,
            rule(),
            grid,
            self.keep,
            row(self.reset, 1),
            note,
            row(1, save, self.load),
            spacing=12,
            margins=(24, 24, 24, 24),
        )
        self._whole = stack(scrolled(self._column, title), spacing=0)
        self.setLayout(self._whole)
        width = round(_WIDTH * max(1.0, self._services.theme.tokens.body / 14))  # wider for larger text
        self.setMinimumWidth(min(width, largest_dialog(self).width()))

    def _connect(self) -> None:
        self.context.valueChanged.connect(self._on_context)
        self.own_context.toggled.connect(self._on_changed)
        for field in (self.layers, self.threads, self.parallel):
            field.valueChanged.connect(self._on_changed)
        self.keep.toggled.connect(self._on_changed)
        self.cache.currentIndexChanged.connect(self._on_changed)

    @property
    def choices(self) -> LoadOptions:
        def of(field: QSpinBox) -> int | None:
            return None if field.value() == field.minimum() else field.value()

        return LoadOptions(
            n_ctx=None if self.own_context.isChecked() else self._context,
            n_gpu_layers=of(self.layers),
            n_threads=of(self.threads),
            n_parallel=of(self.parallel),
            type_k=self.cache.currentData(),
            keep_loaded=self.keep.isChecked(),
        )

    @property
    def _context(self) -> int:
        """Context length of the slider: logarithmic, in eighths of a doubling, rounded to 256.

        A stored length between two steps stays as it is until the slider is moved.
        """
        place, exact = self._exact
        if self.context.value() == place:
            return exact
        top = self._context_train or _UNKNOWN_TRAIN
        if self.context.value() == self.context.maximum():
            return top
        return min(top, round(_SMALLEST * 2 ** (self.context.value() / 8) / 256) * 256)

    def _place_context(self, n_ctx: int) -> None:
        """Move the slider to a context length."""
        self.context.setValue(round(8 * math.log2(max(n_ctx, _SMALLEST) / _SMALLEST)))
        self._exact = self.context.value(), n_ctx

    def _show_context(self, n_ctx: int) -> None:
        words = self.tr("{n} tokens").format(n=formatted.whole(n_ctx))
        self._context_words.setText(words)
        self.context.setAccessibleDescription(words)  # a screen reader says the slider's position otherwise

    def _show(self, settings: ModelLoadSettings) -> None:
        self._context_train = settings.context_train
        top = max(settings.context_train or _UNKNOWN_TRAIN, 2 * _SMALLEST)
        self.context.setRange(0, math.ceil(8 * math.log2(top / _SMALLEST)))
        self._showing = True
        user = settings.user
        self.own_context.setChecked(user.n_ctx is None)
        if user.n_ctx is not None:
            self._place_context(user.n_ctx)
        for field, value in (
            (self.layers, user.n_gpu_layers),
            (self.threads, user.n_threads),
            (self.parallel, user.n_parallel),
        ):
            field.setValue(field.minimum() if value is None else value)
        self.cache.setCurrentIndex(max(0, self.cache.findData(user.type_k)))
        self.keep.setChecked(user.keep_loaded)
        self._showing = False
        for control in self._waiting:
            control.setEnabled(True)
        self._on_changed()

    def _on_context(self) -> None:
        if not self._showing:
            self.own_context.setChecked(False)
            self._on_changed()

    def _on_changed(self) -> None:
        if self._showing:
            return
        self.reset.setEnabled(self.choices != LoadOptions())
        if not self.own_context.isChecked():
            self._show_context(self._context)
        self._delay.start()

    def _predict(self) -> None:
        chosen, api = self.choices, self._services.api

        def failed(error: Exception) -> None:
            self._verdict.setText(error_message(error))

        self._services.background.run(
            lambda: api.placement(self._model, chosen), self._show_prediction, failed, self, newest="prediction"
        )

    def _show_prediction(self, answer: PlacementAnswer) -> None:
        placed, fit = answer.placement, answer.fit
        self.layers.setEnabled(placed.device != "cpu" or self.layers.value() > 0)
        if self.own_context.isChecked():
            self._showing = True
            self._place_context(placed.settings.n_ctx)
            self._showing = False
            self._show_context(placed.settings.n_ctx)
        if placed.need is not None:
            free = sum((fit.available_bytes if fit else {}).values()) or placed.need.total_bytes
            shares = part_shares((part.name, part.num_bytes) for part in placed.need.parts)
            self.memory.show_shares(shares, max(free, placed.need.total_bytes))
        parts = [self.tr("Runs on {device}").format(device=placed.device_name or placed.device)]
        if fit is not None and not fit.fits:
            parts.append(self.tr("does not fit the memory that is free now"))
        elif placed.decode_tok_s:
            parts.append(self.tr("about {n} tokens/s").format(n=formatted.speed(placed.decode_tok_s)))
        offer = next((reason for reason in placed.reasons if reason.kind == "context_8_bit"), None)
        self.eight_bit.setVisible(offer is not None)
        if offer is not None:
            parts.append(translated(offer))
        self._verdict.setText(" · ".join(parts))
        QTimer.singleShot(0, self, self._fit)  # new widgets have no height before the next event loop iteration

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the height to this width."""
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Show everything, or scroll if the screen is too low for it."""
        self._column.activate()
        height = self._column.totalHeightForWidth(self.width())
        self.setMinimumHeight(min(height, largest_dialog(self).height()))
        self._whole.setGeometry(self.rect())  # in a resize event, Qt does not do this for the new height

    def _use_eight_bit(self) -> None:
        self.cache.setCurrentIndex(self.cache.findData(EIGHT_BIT))

    def _reset(self) -> None:
        self._show(ModelLoadSettings(id=self._model, context_train=self._context_train))

    def _save(self, then: Callable[[], object]) -> None:
        chosen, api = self.choices, self._services.api

        def done(stored: ModelLoadSettings) -> None:
            self.saved.emit(self._model)
            if stored.applies == "when_idle":
                self.waiting.emit(self._model)
            then()

        self._services.ask(self.banner, lambda: api.set_load_settings(self._model, chosen), done)

    def _load_now(self) -> None:
        self.loading.emit(self._model)
        self.accept()
