"""Make it fit: choose a size, see what it costs, start, follow, and chat with the result."""

from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QSlider, QVBoxLayout

from app.gui import words
from app.gui.api import ApiError, in_words
from app.gui.fit.aim import Aim
from app.gui.fit.frontier import FrontierPlot, size_words
from app.gui.fit.report import report_card
from app.gui.jobs import Jobs
from app.gui.library.job_card import JobList
from app.gui.services import Services
from app.gui.widgets.basics import Banner, Page, button, card, clear, label, row, set_kind
from app.gui.widgets.flow import Flow
from app.gui.widgets.mosaic import Mosaic, PrecisionLegend, tiles_of_tensors

_DELAY_MS = 250
_STEPS = 1000
_START_SHARE = 0.35  # the slider begins near 4 to 5 bits
_SWEEP = 9
PLAN = "/tessera/v1/quantize/plan"
START = "/tessera/v1/quantize"
# Loss of quality in words. Measured: docs/log.md (bundled model), tensors at 8, 5, 4 and 3 bits.
_LOSS_WORDS = ((0.004, "hardly any", "chip-ok"), (0.02, "small", "chip-ok"), (0.06, "noticeable", "chip-warn"))
_TIERS = (
    ("instant", "Instant", "Uses what is known about models of this kind. Seconds."),
    ("balanced", "Balanced", "Measures this model in groups of tensors."),
    ("max", "Best", "Measures every tensor. Takes longest."),
)


class FitPage(Page):
    """One model at a time."""

    chat_wanted = Signal(str)

    def __init__(self, services: Services, jobs: Jobs) -> None:
        super().__init__(
            self.tr("Make it fit"),
            self.tr(
                "Tessera chooses a precision for every tensor, so that the model loses least at the size you want."
            ),
        )
        self._services, self._jobs = services, jobs
        self._models: list[dict[str, Any]] = []
        self._range = (0, 0)
        self._asked = 0
        self._job = ""
        self._ours: dict[int, float] = {}
        self._stock: list[dict[str, Any]] = []
        look = services.look
        self.banner = Banner(look)
        self.model = QComboBox()
        self.model.setAccessibleName(self.tr("Model"))
        self.model.setMinimumWidth(280)
        self.model.activated.connect(lambda _: self._on_model())
        self.tier = QComboBox()
        self.tier.setAccessibleName(self.tr("How thorough"))
        for value, name, words_ in _TIERS:
            self.tier.addItem(self.tr(name), value)
            self.tier.setItemData(self.tier.count() - 1, self.tr(words_), Qt.ItemDataRole.ToolTipRole)
        self.tier.setCurrentIndex(1)
        self.tier.activated.connect(lambda _: self._forecast())
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, _STEPS)
        self.slider.setMinimumHeight(24)
        self.slider.setAccessibleName(self.tr("Size of the file"))
        self.slider.valueChanged.connect(self._on_slider)
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(_DELAY_MS)
        self._delay.timeout.connect(self._forecast)
        self.size_words = label("", "title")
        self._smallest, self._largest = label("", "small"), label("", "small")
        self.chips = Flow()
        self.start = button(self.tr("Make it fit"), self._start, "primary")
        self.start.setEnabled(False)
        self.mosaic = Mosaic(look, height=96)
        self.plot = FrontierPlot(look)
        self._report = QVBoxLayout()
        self.aim = Aim()
        self.aim.changed.connect(self._on_aim)
        choose = row(self.model, 1, label(self.tr("How thorough"), "small"), self.tier)
        ends = row(self._smallest, 1, self._largest)
        go = row(self.size_words, 1, self.start)
        self.content.addWidget(self.banner)
        self.content.addWidget(JobList(look, jobs, frozenset({"quantize", "convert"})))
        self.content.addLayout(self._report)
        self.content.addWidget(card(choose, self.aim, go, self.slider, ends, self.chips, spacing=12))
        self.content.addWidget(card(self.mosaic, PrecisionLegend(look), self.plot, spacing=12))
        jobs.finished.connect(self._on_finished)
        services.models.reachable_changed.connect(lambda reachable: self._refresh() if reachable else None)

    def showEvent(self, event: QShowEvent) -> None:
        """Look for models when the page is opened."""
        super().showEvent(event)
        self._refresh()

    def choose(self, model: str) -> None:
        """Show this model."""
        self._wanted = model
        self._refresh()

    _wanted = ""
    _refused = False

    @property
    def budget_bytes(self) -> int:
        """The size the slider stands at."""
        low, high = self._range
        return round(low + (high - low) * self.slider.value() / _STEPS)

    def _refresh(self) -> None:
        self._run(lambda: self._services.api.get("/tessera/v1/models"), self._show_models)

    def _show_models(self, answer: dict[str, Any]) -> None:
        self._models = [row_ for row_ in answer.get("models") or () if row_.get("state", "online") == "online"]
        wanted = self._wanted or self.model.currentData()
        before = self.model.currentData()
        self.model.clear()
        for item in self._models:
            self.model.addItem(f"{item['name']} · {words.size(item.get('size_bytes') or 0)}", item["id"])
        position = max(self.model.findData(wanted), 0)
        self.model.setCurrentIndex(position)
        self._wanted = ""
        if self.model.currentData() != before or not self._range[1]:
            self._on_model()

    def _on_model(self) -> None:
        self._range = (0, 0)
        self._ours, self._stock = {}, []
        self.start.setEnabled(False)
        self.plot.show_points({}, [])
        clear(self._report)
        if self.model.currentData():
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
            self.size_words.setText(words.size(self.budget_bytes))
            self.plot.show_here(self.budget_bytes)
            self._delay.start()

    def _body(self, budget: int) -> dict[str, Any]:
        body = {"model": self.model.currentData(), "tier": self.tier.currentData()}
        if self.aim.is_context and self._range[1]:
            return {**body, **self.aim.body()}
        return {**body, "budget_bytes": budget or None}

    def _forecast(self) -> None:
        self._asked += 1
        asked, body = self._asked, self._body(self.budget_bytes)
        model = body["model"]
        if not model:
            return

        def show(report: dict[str, Any]) -> None:
            if asked == self._asked:
                self._show_forecast(report, model)

        def failed(error: Exception) -> None:
            if asked == self._asked:
                self._show_refusal(error)

        self._services.background.run(lambda: self._services.api.post(PLAN, body), show, failed, self)

    def _show_refusal(self, error: Exception) -> None:
        self._refused = True
        self.start.setEnabled(False)
        if isinstance(error, ApiError) and error.status == 404 and error.code != "model_not_found":  # noqa: PLR2004
            self.banner.tell(self.tr("This server cannot make models fit yet."), "warn")
        else:
            self.banner.tell(in_words(error), "warn")

    def _show_forecast(self, report: dict[str, Any], model: str) -> None:
        if self._refused:  # what a finished job says stays
            self._refused = False
            self.banner.hide()
        plan, forecast = report["plan"], report.get("forecast") or {}
        if not self._range[1]:
            self._set_range(plan["smallest_bytes"], report.get("source_bytes") or plan["file_bytes"])
            self._sweep(model)
            return
        self.start.setEnabled(True)
        self.size_words.setText(size_words(plan["file_bytes"], _bpw(plan)))
        self.mosaic.show_tiles(tiles_of_tensors(plan.get("tensors") or ()))
        self._ours[plan["file_bytes"]] = plan["damage"]
        self._stock = list(plan.get("stock") or self._stock)
        self.plot.show_points(self._ours, self._stock)
        self.plot.show_here(plan["file_bytes"])
        self._show_chips(plan, forecast)

    def _show_chips(self, plan: dict[str, Any], forecast: dict[str, Any]) -> None:
        self.chips.clear()
        loss = plan["damage"]
        name, kind = next(((w, k) for limit, w, k in _LOSS_WORDS if loss <= limit), ("large", "chip-bad"))
        chip = label(self.tr("Loss of quality: {name} ({n})").format(name=self.tr(name), n=words.decimal(loss, 4)))
        set_kind(chip, kind)
        self.chips.add(chip)
        for text in self._facts(plan, forecast):
            self.chips.add(label(text, "chip"))

    def _facts(self, plan: dict[str, Any], forecast: dict[str, Any]) -> list[str]:
        """What the plan means here, as far as it is known."""
        found: list[str] = []
        if self.aim.is_context:
            found.append(self.tr("For a context of {n}").format(n=words.whole(self.aim.n_ctx)))
        elif forecast.get("largest_context"):
            context = words.whole(forecast["largest_context"])
            found.append(self.tr("Context up to {n} fits").format(n=context))
        elif forecast.get("largest_context") == 0:
            found.append(self.tr("Does not fit the memory that is free now"))
        if plan.get("kv"):
            found.append(self.tr("Context stored in {k}").format(k=plan["kv"].get("type_k", "")))
        if plan.get("decode_cost"):
            speed = words.decimal(1 / plan["decode_cost"], 2)
            found.append(self.tr("{n} times the speed of 4 bits").format(n=speed))
        if forecast.get("seconds"):
            found.append(self.tr("Takes about {time}").format(time=words.duration(forecast["seconds"])))
        if forecast.get("disk_bytes"):
            found.append(self.tr("{size} of disk meanwhile").format(size=words.size(forecast["disk_bytes"])))
        return found

    def _set_range(self, smallest: int, largest: int) -> None:
        self._range = (smallest, max(largest, smallest + 1))
        self._smallest.setText(self.tr("smallest {size}").format(size=words.size(smallest)))
        self._largest.setText(self.tr("as it is {size}").format(size=words.size(largest)))
        self.slider.setValue(round(_STEPS * _START_SHARE / 2))
        self._on_slider()
        self._forecast()

    def _sweep(self, model: str) -> None:
        """Plans over the range, one after the other, for the curve."""
        low, high = self._range
        budgets = [round(low + (high - low) * (0.02 + 0.6 * (n / _SWEEP) ** 1.5)) for n in range(_SWEEP)]
        bodies = [{"model": model, "budget_bytes": budget, "tier": "instant"} for budget in budgets]

        def plans() -> list[dict[str, Any]]:
            found = []
            for body in bodies:
                try:
                    found.append(self._services.api.post(PLAN, body)["plan"])
                except ApiError:
                    continue
            return found

        def show(found: list[dict[str, Any]]) -> None:
            if self.model.currentData() == model:
                self._ours.update({plan["file_bytes"]: plan["damage"] for plan in found})
                if found:
                    self._stock = list(found[-1].get("stock") or self._stock)
                self.plot.show_points(self._ours, self._stock)

        self._services.background.run(plans, show, lambda _: None, self)

    def _start(self) -> None:
        def started(job: dict[str, Any]) -> None:
            self._job = job["id"]
            clear(self._report)
            self._jobs.started(job)
            self.verticalScrollBar().setValue(0)

        self._run(lambda: self._services.api.post(START, self._body(self.budget_bytes)), started)

    def _on_finished(self, job: dict[str, Any]) -> None:
        if job["kind"] != "quantize":
            return
        if job["state"] == "failed":
            self.banner.tell(str((job.get("error") or {}).get("message", "")), "bad")
        if job["state"] != "done":
            return
        result = job.get("result") or {}
        clear(self._report)
        if result.get("report"):
            self._report.addWidget(report_card(self._services.look, result["report"]))
        model = result.get("model")
        actions = [(self.tr("Chat with it"), lambda: self.chat_wanted.emit(model))] if model else []
        self.banner.tell(self.tr("Done: {name} is in your library.").format(name=model or ""), "ok", *actions)

    def _run(self, work: Any, on_done: Any) -> None:
        self._services.background.run(work, on_done, lambda error: self.banner.tell(in_words(error), "bad"), self)


def _bpw(plan: dict[str, Any]) -> float:
    weights = 0
    for tensor in plan.get("tensors") or ():
        values = 1
        for extent in tensor.get("shape") or ():
            values *= extent
        weights += values
    return 8 * plan["file_bytes"] / weights if weights else 0.0
