"""The "Make it fit" page: choose a size, see the loss, quantize, and chat with the result."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QSlider, QVBoxLayout, QWidget

from app.client import ApiError
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.job_card import JobList
from app.gui.jobs import Jobs
from app.gui.library.sources import repository_of_original, unfit
from app.gui.quantize.converter_prompt import NEEDED, ForeignFamily
from app.gui.quantize.loss_chips import LossChips
from app.gui.quantize.report import PlanView, grid_texts, report_card
from app.gui.quantize.size_loss_plot import size_text
from app.gui.reasons import answer_awaited, error_message, failure_of
from app.gui.widgets.basics import Banner, EmptyState, Page, button, card, clear, label, row
from app.gui.widgets.flow import Flow, FlowLayout
from app.gui.widgets.popups import ComboBox
from engine.api.jobs import Job, JobKind, Quantized, result_of
from engine.api.library import Model
from engine.api.quantizing import (
    DEFAULT_CONTEXT,
    PlanForecast,
    PresetPlan,
    QuantizeOptions,
    QuantizeSketch,
    QuantPlan,
)
from quantize.kv_cache_types import K_DAMAGE

PATH = "place"


class PathChoice(QWidget):
    """A combo box with fixed rows and one row for a path. `value` is the chosen row's value or the path.

    A row is (value, name, tooltip). Subclasses provide the file dialog and the name of the path's row.
    """

    changed = Signal()

    def __init__(self, name: str, rows: Sequence[tuple[str | None, str, str]]) -> None:
        super().__init__()
        self._path = ""
        self._before = 0
        self.box = ComboBox(name)
        for value, text, tip in rows:
            self.box.addItem(self.tr(text), value)
            self.box.setItemData(self.box.count() - 1, self.tr(tip), Qt.ItemDataRole.ToolTipRole)
        self.box.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)  # a path's name comes later
        self.box.activated.connect(lambda _: self._on_chosen())
        self.setLayout(row(self.box))

    @property
    def value(self) -> str | None:
        """The chosen row's value, or the path."""
        chosen = self.box.currentData()
        return self._path if chosen == PATH else chosen

    def dialog(self) -> QFileDialog:
        raise NotImplementedError

    def words(self, name: str) -> str:
        """The row text for a path with this name."""
        raise NotImplementedError

    def _on_chosen(self) -> None:
        if self.box.currentData() != PATH:
            self._before = self.box.currentIndex()
            self.changed.emit()
            return
        dialog = self.dialog()
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._on_path)
        dialog.rejected.connect(lambda: self.box.setCurrentIndex(self._before))
        dialog.open()

    def _on_path(self, path: str) -> None:
        self._path = path
        self._before = self.box.currentIndex()
        self.box.setItemText(self._before, self.words(Path(path).name or path))
        self.changed.emit()


_DELAY_MS = 250
_STEPS = 1000
_START_FRACTION = 0.35  # the slider starts near 4 to 5 bits
_SWEEP = 9
_SAME_SIZE = 0.01  # a plan whose size differs by less counts as the measured file
_TIERS = (
    ("instant", "Instant", "Estimates the loss from similar models. Takes seconds."),
    ("balanced", "Balanced", "Measures this model in groups of tensors."),
    ("max", "Best", "Measures every tensor. Takes longest."),
)


class FitPage(Page):
    """Quantizes one model at a time."""

    chat_wanted = Signal(str)
    original_wanted = Signal(str)  # the repository of a model that is quantized already, or ""

    def __init__(self, services: AppContext, jobs: Jobs) -> None:
        super().__init__(
            self.tr("Make it fit"),
            self.tr(
                "Tessera chooses a precision for every tensor, so that the model loses least at the size you want."
            ),
        )
        self._services, self._jobs = services, jobs
        self._models: list[Model] = []
        self._range = (0, 0)
        self._ours: dict[int, float] = {}  # drawn points: file bytes to loss
        self._current: dict[int, float] = {}  # the drawn points that use the latest measurements
        self._stock: tuple[PresetPlan, ...] = ()
        self._measured: dict[int, float] = {}  # measured loss of this model by file size in bytes
        self.banner = Banner(services.theme, self)
        self._foreign = ForeignFamily(services, jobs, self.banner, self)
        self._foreign.converted.connect(self.choose)
        self._loss = LossChips(services, jobs, self.banner, self._request_curve, self)
        self.model = ComboBox(self.tr("Model"))
        self.model.setMinimumWidth(220)
        self.model.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)  # the models are loaded later
        self.model.activated.connect(lambda _: self._on_model())
        self.tier = ComboBox(self.tr("How thorough"))
        for value, name, words_ in _TIERS:
            self.tier.addItem(self.tr(name), value)
            self.tier.setItemData(self.tier.count() - 1, self.tr(words_), Qt.ItemDataRole.ToolTipRole)
        self.tier.setCurrentIndex(1)
        self.tier.activated.connect(lambda _: self._request_curve())
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, _STEPS)
        self.slider.setMinimumHeight(24)
        self.slider.setAccessibleName(self.tr("Size of the file"))
        self.slider.valueChanged.connect(self._on_slider)
        self._delay = QTimer(self, singleShot=True, interval=_DELAY_MS)
        self._delay.timeout.connect(self._forecast)
        self.size_text = label("", "title")
        self._smallest, self._largest = label("", "small"), label("", "small")
        self.chips = Flow()
        self.chips.add(label(answer_awaited(), "muted", wrap=True))  # the first forecast takes its place
        self._chips_look: list[object] = []  # what the chips show, and for which model
        self.start = button(self.tr("Make it fit"), self._start, "primary")
        self.start.setEnabled(False)
        self.plan_view = PlanView(services.theme)
        self._report = QVBoxLayout()
        self.aim = Aim()
        self.aim.changed.connect(self._on_aim)
        self.text = OwnTextChoice()
        self.gate = GateChoice()
        self.text.changed.connect(self._request_curve)
        self.gate.changed.connect(self._forecast)
        self._build()
        jobs.finished.connect(self._on_finished)
        services.models.reachable_changed.connect(lambda reachable: self._refresh() if reachable else None)

    def _build(self) -> None:
        theme = self._services.theme
        choose = Flow()
        rows = {"Model": self.model, "Target": self.aim, "How thorough": self.tier, "Calibration text": self.text}
        for words, control in (rows | {"Check afterwards": self.gate}).items():
            choose.add_named(self.tr(words), control)
        size = row(self._smallest, self.slider, self._largest, spacing=12, grow=1)
        go = row(self.size_text, 1, self.start)
        self.content.addWidget(JobList(theme, self._jobs, frozenset({JobKind.QUANTIZE, JobKind.CONVERT})))
        self.content.addLayout(self._report)
        self._none = EmptyState(
            self.tr("No model to make smaller yet"),
            self.tr(
                "A smaller file is made from the original (F16, BF16 or safetensors). Choose a model: Tessera "
                "downloads its original and makes it fit."
            ),
            self.tr("Get an original"),
        )
        self._none.pressed.connect(lambda: self.original_wanted.emit(""))
        self._none.hide()
        self._choices = card(choose, go, size, self.chips, spacing=8)
        for widget in (self._none, self._choices, self.plan_view):
            self.content.addWidget(widget)
        self.plan_view.hide()  # until there is something to draw

    def showEvent(self, event: QShowEvent) -> None:
        """Refresh the models when the page is opened."""
        super().showEvent(event)
        self._refresh()

    def choose(self, model: str) -> None:
        self._next_model = model
        self._refresh()

    _next_model = ""
    _refused = False

    @property
    def budget_bytes(self) -> int:
        """The size selected by the slider, in bytes."""
        low, high = self._range
        return round(low + (high - low) * self.slider.value() / _STEPS)

    def _refresh(self) -> None:
        """Show the known models, then also those that a new scan of the folders finds."""
        api = self._services.api

        def look_again(models: tuple[Model, ...]) -> None:
            self._show_models(models, is_last=False)
            self._services.ask(self.banner, lambda: api.library(refresh=True), self._show_models, newest="models")

        self._services.ask(self.banner, api.library, look_again, newest="models")

    def _show_models(self, models: tuple[Model, ...], *, is_last: bool = True) -> None:
        online = [model for model in models if model.state == "online"]
        if online == self._models and self._range[1] and not self._next_model:
            return  # do not refresh the combo box, it may be open
        self._models = online
        before = self.model.currentData()
        self.model.clear()
        usable = [item for item in self._models if not unfit(item)]
        quantized = [item for item in self._models if repository_of_original(item)]
        choosable = [*usable, *quantized]
        is_listed = self._next_model in {item.id for item in choosable}
        for item in [*choosable, *(item for item in self._models if item not in choosable)]:
            self.model.addItem(f"{item.name} · {formatted.size(item.size_bytes)}", item.id)
            if item not in choosable:
                index = self.model.count() - 1
                self.model.setItemData(index, formatted.plain_tip(unfit(item)), Qt.ItemDataRole.ToolTipRole)
                self.model.setItemData(index, 0, Qt.ItemDataRole.UserRole - 1)  # Qt's internal role for item flags
        self._none.setVisible(not choosable)
        self._choices.setVisible(bool(choosable))
        at = self.model.findData(self._next_model if is_listed else before)
        self.model.setCurrentIndex(at if 0 <= at < len(choosable) else 0 if choosable else -1)
        if is_listed or is_last:
            self._next_model = ""
        # A message that is shown stays: the same one again would replace the button under the pointer.
        chosen = self._chosen
        shows_refusal = chosen is not None and self.banner.isVisible() and bool(repository_of_original(chosen))
        if self.model.currentData() != before or not (self._range[1] or shows_refusal):
            self._on_model()

    @property
    def _chosen(self) -> Model | None:
        return next((model for model in self._models if model.id == self.model.currentData()), None)

    def _on_model(self) -> None:
        self._delay.stop()
        self._services.background.drop(self, "forecast")  # of the previous model
        self._foreign.withdraw()
        self._range = (0, 0)
        self._ours, self._current, self._stock, self._measured = {}, {}, (), {}
        self.start.setEnabled(False)
        self.plan_view.show_points({}, [])
        self.plan_view.hide()
        clear(self._report)
        original = repository_of_original(self._chosen) if self._chosen else ""
        if self._chosen and original:
            self.size_text.setText("")
            self.chips.clear()
            self._chips_look = []
            self._refused = True  # the next forecast hides the message
            get = (self.tr("Get the original"), lambda: self.original_wanted.emit(original))
            self.banner.notify(unfit(self._chosen), "info", get)
        elif self.model.currentData():
            self.size_text.setText(self.tr("Calculating the sizes…"))
            self._forecast()

    def _on_aim(self) -> None:
        is_size = not self.aim.is_context
        for widget in (self.slider, self._smallest, self._largest):
            widget.setVisible(is_size)
        if self._range[1]:
            self.start.setEnabled(False)
            self._forecast()

    def _on_slider(self) -> None:
        if self._range[1] and not self.aim.is_context:
            words = formatted.size(self.budget_bytes)
            self.size_text.setText(words)
            self.slider.setAccessibleDescription(words)  # a screen reader says the slider's position otherwise
            self.plan_view.plot.show_here(self.budget_bytes)
            self._delay.start()

    def _request(self) -> QuantizeOptions:
        options = QuantizeOptions(
            model=self.model.currentData() or "",
            tier=self.tier.currentData(),
            budget_bytes=self.budget_bytes or None,
            calibration=self.text.value,
            gate=self.gate.value,
        )
        return self.aim.on(options) if self.aim.is_context and self._range[1] else options

    def _request_curve(self) -> None:
        """Request every point of the curve again, because the measurements changed."""
        if self._range[1]:
            self._sweep(self.model.currentData())
        self._forecast()

    def _forecast(self) -> None:
        request = self._request()
        if not request.model:
            return

        def ask() -> QuantizeSketch:
            return self._services.api.quantize_plan(request)

        def show(sketch: QuantizeSketch) -> None:
            self._show_forecast(sketch, request.model)

        self._services.background.run(ask, show, self._show_refusal, self, newest="forecast")

    def _show_refusal(self, error: Exception) -> None:
        self._refused = True
        self.start.setEnabled(False)
        if not self._range[1]:
            self.size_text.setText("")
        chosen = self._chosen
        if isinstance(error, ApiError) and error.code == NEEDED and chosen is not None:
            self._foreign.offer(chosen)
        elif isinstance(error, ApiError) and error.status == 404 and error.code != "model_not_found":  # noqa: PLR2004
            self.banner.notify(self.tr("This server cannot make models fit yet."), "warn")
        else:
            self.banner.notify(error_message(error), "warn", (self.tr("Try again"), self._request_curve))

    def _show_forecast(self, sketch: QuantizeSketch, model: str) -> None:
        if self._refused:  # keep the message of a finished job
            self._refused = False
            self.banner.hide()
        plan = sketch.plan
        if not self._range[1]:
            self._set_range(plan.smallest_bytes, sketch.source_bytes or plan.file_bytes)
            self._sweep(model)
            return
        self.start.setEnabled(True)
        self.plan_view.show()
        self.size_text.setText(size_text(plan.file_bytes, plan.bpw))
        self.plan_view.show_plan(plan)
        self._ours[plan.file_bytes] = self._current[plan.file_bytes] = plan.damage
        self._stock = plan.stock or self._stock
        self._show_points()
        self._show_chips(plan, sketch.forecast, sketch.gpu_layers)

    def _show_chips(self, plan: QuantPlan, forecast: PlanForecast, gpu_layers: int) -> None:
        model, loss = self._chosen, self._measured_loss(plan.file_bytes)
        model_id, is_gguf = (model.id, model.format == "gguf") if model is not None else ("", False)
        measured = [self.tr("Measures with {n} layers on the GPU").format(n=gpu_layers)] if gpu_layers else []
        texts = [*grid_texts(plan), *self._consequences(plan, forecast), *measured]
        chips = self._loss.chips(plan, forecast, loss, model_id, is_gguf=is_gguf)
        chips += [label(text, "chip") for text in texts]
        looks: list[object] = [model_id, *((chip.text(), chip.toolTip(), chip.isEnabled()) for chip in chips)]
        if looks == self._chips_look:
            return  # the same chips again would replace the button under the pointer
        self._chips_look = looks
        self.chips.clear()
        for chip in chips:
            self.chips.add(chip)

    def _measured_loss(self, file_bytes: int) -> float | None:
        """The measured loss of a file of this size, if one was created from this model since it was chosen."""
        near = [size for size in self._measured if abs(size - file_bytes) <= _SAME_SIZE * file_bytes]
        return self._measured[near[-1]] if near else None

    def _show_points(self) -> None:
        """Draw the plans. A measured loss replaces the prediction for its size."""
        drawn = {size: self._measured_loss(size) or loss for size, loss in self._ours.items()}
        self.plan_view.show_points({**drawn, **self._measured}, self._stock)

    def _consequences(self, plan: QuantPlan, forecast: PlanForecast) -> list[str]:
        """The plan's consequences on this computer, as far as known."""
        lines: list[str] = []
        if self.aim.is_context:
            lines.append(self.tr("For a context length of {n}").format(n=formatted.whole(self.aim.n_ctx)))
        elif forecast.largest_context:
            context = formatted.whole(forecast.largest_context)
            lines.append(self.tr("Context up to {n} fits").format(n=context))
        elif forecast.largest_context == 0:
            lines.append(self.tr("Does not fit the memory that is free now"))
        if plan.kv:
            types = " / ".join(dict.fromkeys((plan.kv.type_k, plan.kv.type_v)))
            lines.append(self.tr("KV cache type {k}").format(k=types))
        if plan.decode_cost:
            speed = formatted.decimal(1 / plan.decode_cost, 2)
            lines.append(self.tr("{n} times the speed of a 4-bit file").format(n=speed))
        if forecast.seconds:
            is_timed = not forecast.gpu_untimed
            text = self.tr("Takes about {time}") if is_timed else self.tr("Takes about {time} without the GPU")
            lines.append(text.format(time=formatted.duration(forecast.seconds)))
        if forecast.disk_bytes:
            lines.append(self.tr("Needs {size} of free disk").format(size=formatted.size(forecast.disk_bytes)))
        return lines

    def _set_range(self, smallest: int, largest: int) -> None:
        self._range = (smallest, max(largest, smallest + 1))
        self._smallest.setText(self.tr("smallest {size}").format(size=formatted.size(smallest)))
        self._largest.setText(self.tr("original {size}").format(size=formatted.size(largest)))
        self.slider.setValue(round(_STEPS * _START_FRACTION / 2))
        self._on_slider()
        self._forecast()

    def _sweep(self, model: str) -> None:
        """Request plans over the size range, one after another, for the curve."""
        low, high = self._range
        budgets = [round(low + (high - low) * (0.02 + 0.6 * (n / _SWEEP) ** 1.5)) for n in range(_SWEEP)]
        tier, text = self.tier.currentData(), self.text.value
        requests = [QuantizeOptions(model=model, budget_bytes=b, tier=tier, calibration=text) for b in budgets]
        self._current = {}

        def plans() -> list[QuantPlan]:
            curve = []
            for request in requests:
                try:
                    curve.append(self._services.api.quantize_plan(request).plan)
                except ApiError:
                    continue
            return curve

        def show(curve: list[QuantPlan]) -> None:
            if self.model.currentData() == model:
                self._current.update({plan.file_bytes: plan.damage for plan in curve})
                self._ours = self._current
                if curve:
                    self._stock = curve[-1].stock or self._stock
                self._show_points()

        self._services.background.run(plans, show, lambda _: None, self, newest="curve")

    def _start(self) -> None:
        request = self._request()

        def started(job: Job) -> None:
            clear(self._report)
            self._jobs.started(job)
            self.verticalScrollBar().setValue(0)

        self._services.ask(self.banner, lambda: self._services.api.quantize(request), started)

    def _on_finished(self, job: Job) -> None:
        if job.kind is not JobKind.QUANTIZE:
            return
        if job.state == "failed" and job.error is not None:
            self.banner.notify(failure_of(job), "bad")
        quantized = result_of(job, Quantized) if job.state == "done" else None
        if quantized is None:
            return
        chosen = self.model.currentData()
        if quantized.report.ours is not None and job.params.get("model", chosen) == chosen:
            self._measured[quantized.report.plan.file_bytes] = quantized.report.ours.kld_mean.value
        self._request_curve()  # the source has been measured now
        clear(self._report)
        self._report.addWidget(report_card(self._services.theme, quantized.report))
        if quantized.report.out is None:
            self.banner.notify(
                self.tr("The new file was discarded: it did the task clearly worse than the original."), "warn"
            )
            return
        chat = (self.tr("Chat with it"), lambda: self.chat_wanted.emit(quantized.model))
        self.banner.notify(self.tr("Done: {name} is in your library.").format(name=quantized.model), "ok", chat)


_TEXTS: tuple[tuple[str | None, str, str], ...] = (
    (None, "General text", "Books, code and conversations in many languages, included with Tessera."),
    (
        PATH,
        "My own text too…",
        (
            "Half of the calibration text comes from your folder, which is read on this computer only. "
            "Afterwards you see the gain on your text."
        ),
    ),
)


class OwnTextChoice(PathChoice):
    """Chooses the calibration text. `value` is a folder, or None for the bundled text."""

    def __init__(self) -> None:
        super().__init__(self.tr("Calibration text"), _TEXTS)

    def dialog(self) -> QFileDialog:
        return QFileDialog(self, self.tr("A folder with your own text"), fileMode=QFileDialog.FileMode.Directory)

    def words(self, name: str) -> str:
        """The row text, with the folder's name."""
        return self.tr("{name} too").format(name=name)


_GATES: tuple[tuple[str | None, str, str], ...] = (
    (None, "Nothing", "The file is compared with the original only on text."),
    (
        "certify",
        "Tool calls",
        "Runs about 30 tool calls on both files and discards the new one if it is clearly worse.",
    ),
    (
        "evaluate",
        "Programs",
        (
            "Both models write fifty programs, which run here in a sandbox without network and without access to "
            "your files."
        ),
    ),
    (
        PATH,
        "My own tasks…",
        "A text file with one task per line, as JSON: prompt, and answer or regex.",
    ),
)


class GateChoice(PathChoice):
    """Chooses the quality gate. `value` is a task name or a file path, or None for no gate."""

    def __init__(self) -> None:
        super().__init__(self.tr("Check afterwards"), _GATES)

    def dialog(self) -> QFileDialog:
        dialog = QFileDialog(self, self.tr("A file of tasks"), fileMode=QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilters([self.tr("Tasks (*.jsonl *.json)"), self.tr("All files (*)")])
        return dialog

    def words(self, name: str) -> str:
        """The row text, with the file's name."""
        return name


_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
# Labels for some of the KV cache types that engine.job_kinds.quantize.fit considers.
_CACHE_NAMES = {"f16": "f16, exact", "q8_0": "q8_0, half as large", "q4_0": "q4_0, smallest"}


class Aim(QWidget):
    """Chooses the target: a file size or a context length. `on` adds a context target to a request."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.kind = ComboBox(self.tr("Target"))
        self.kind.addItem(self.tr("File size"))
        self.kind.addItem(self.tr("Context length"))
        self.context = ComboBox(self.tr("Context length in tokens"))
        for n_ctx in _CONTEXTS:
            self.context.addItem(self.tr("{n} tokens").format(n=formatted.whole(n_ctx)), n_ctx)
        self.context.setCurrentIndex(self.context.findData(DEFAULT_CONTEXT))
        self.cache = ComboBox(self.tr("KV cache type"))
        self.cache.addItem(self.tr("automatic"), None)
        for name in K_DAMAGE:
            self.cache.addItem(self.tr(_CACHE_NAMES.get(name, name)), name)
        self._more = QWidget()
        stored = label(self.tr("KV cache"), "small")
        self._more.setLayout(row(self.context, stored, self.cache))
        self._more.hide()
        parts = FlowLayout(self)
        parts.addWidget(self.kind)
        parts.addWidget(self._more)
        self.kind.currentIndexChanged.connect(self._on_kind)
        for box in (self.context, self.cache):
            box.currentIndexChanged.connect(lambda _: self.changed.emit())

    @property
    def is_context(self) -> bool:
        """Whether the target is a context length."""
        return self.kind.currentIndex() == 1

    @property
    def n_ctx(self) -> int:
        """Target context length in tokens."""
        return int(self.context.currentData())

    def on(self, request: QuantizeOptions) -> QuantizeOptions:
        """The request with this context length. The server derives the size from the free memory."""
        return msgspec.structs.replace(
            request, fit=True, budget_bytes=None, n_ctx=self.n_ctx, kv_type=self.cache.currentData()
        )

    def _on_kind(self, _position: int) -> None:
        self._more.setVisible(self.is_context)
        self.changed.emit()
