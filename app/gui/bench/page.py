"""The bench page: measure a model or shape, watch progress, compare with earlier results, export."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from PySide6.QtCore import QItemSelectionModel, QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QLineEdit,
    QProgressBar,
    QSpinBox,
    QTableWidget,
    QTableWidgetItem,
)

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.bench.plots import BusyPlot, SpeedPlot, plots_image
from app.gui.jobs import Jobs
from app.gui.reasons import failure_of, translated
from app.gui.widgets.basics import Banner, EmptyState, Page, button, card, holding, label, row, stack
from app.gui.widgets.chart import value_text
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, entries_of, file_dialog
from engine.api.jobs import BenchPartial, Job, JobKind, Measured, TuneReport, partial_of, result_of
from engine.api.measuring import (
    BenchRequest,
    BenchResult,
    BenchResults,
    Goal,
    Shapes,
    SpeedCurve,
    TuneRequest,
)
from engine.api.stats import UsageSamples
from engine.placement.results import to_csv
from quantize.plan.llama_cpp_preset_rules import STAND_IN_MIXES

R = TypeVar("R", BenchRequest, TuneRequest)

_BUSY_MS = 1000
_SHOWN_S = 120
_LONGEST = 1 << 20
_SHOWN_RESULTS = 8
_ROW = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows


class BenchPage(Page):
    """Shows the server's results. Requests them when the page is shown and when a measurement ends."""

    def __init__(self, services: AppContext, jobs: Jobs) -> None:
        super().__init__(
            self.tr("Measure"),
            self.tr("How fast models run on this computer, including models you have not downloaded."),
        )
        self._services, self._jobs = services, jobs
        self._job: str | None = None
        self._live: BenchPartial | None = None
        self._results: tuple[BenchResult, ...] = ()
        self._shapes: tuple[str, ...] = ()
        self._subject: tuple[str, str] = ("", "")  # the model or shape whose curve and results are shown
        self._curve = SpeedCurve()
        self.banner = Banner(services.theme, self)
        self._build_controls()
        self._build_plots()
        self._build_results()
        self.while_visible(_BUSY_MS, self._show_utilization, self._refresh_all)
        services.models.changed.connect(self._list_models)
        jobs.changed.connect(self._on_job)
        self._list_models()

    def _build_controls(self) -> None:
        self.model = ComboBox(self.tr("Model or shape to measure"))
        self.model.currentIndexChanged.connect(lambda _: self._on_model())
        self.mix = ComboBox(self.tr("Quantization of the simulated model"))
        self.mix.addItems(list(STAND_IN_MIXES))
        self.lengths = QLineEdit("128, 512, 2048")
        self.lengths.setAccessibleName(self.tr("Prompt lengths in tokens"))
        self.repeats = QSpinBox()
        self.repeats.setRange(1, 20)
        self.repeats.setValue(3)
        self.repeats.setFixedWidth(80)
        self.repeats.lineEdit().setTextMargins(6, 0, 6, 0)
        self.repeats.setAccessibleName(self.tr("Repeats"))
        self.start = button(self.tr("Measure"), self._measure, "primary")
        self.tune = button(self.tr("Find the fastest settings"), lambda: self._tune("speed"))
        self.save_energy = button(self.tr("Find settings that save energy"), lambda: self._tune("energy"))
        self.save_energy.setToolTip(self.tr("The most tokens per joule, at no less than half the speed"))
        self.stop = button(self.tr("Stop"), self._stop)
        self.stop.hide()
        self.progress = QProgressBar()
        self.progress.setAccessibleName(self.tr("Progress of the measurement"))
        self.progress.hide()
        self.note = label("", "small", wrap=True)
        self.note.hide()
        first = row(self.model, self.mix, grow=0)
        lengths = holding(row(label(self.tr("Prompt lengths"), "small"), self.lengths))
        repeats = holding(row(label(self.tr("Repeats"), "small"), self.repeats))
        second = Flow()
        for field in (lengths, repeats):
            second.add(field)
        actions = Flow()
        for control in (self.start, self.stop, self.tune, self.save_energy):
            actions.add(control)
        self.content.addWidget(card(first, second, actions, self.progress, self.note, spacing=12))

    def _build_plots(self) -> None:
        theme = self._services.theme
        self.decode = SpeedPlot(theme, self.tr("Writing, tokens/s"), "decode_tok_s")
        self.prefill = SpeedPlot(theme, self.tr("Reading, tokens/s"), "prefill_tok_s")
        self.busy = BusyPlot(theme, self.tr("Load of the computer, %"))
        self.off = label("", "small", wrap=True)
        self._speeds = card(self.off, self.decode, self.prefill)
        self._speeds.hide()  # until there are results to plot
        self._nothing = EmptyState(
            self.tr("Nothing measured yet"),
            self.tr("Choose a model above and press Measure. Its speed at each prompt length is shown here."),
        )
        self.content.addWidget(self._nothing)
        self.content.addWidget(self._speeds)
        self.content.addWidget(card(self.busy))

    def _build_results(self) -> None:
        self.table = QTableWidget(0, 6)
        self.table.setHorizontalHeaderLabels(
            [
                self.tr("When"),
                self.tr("Model"),
                self.tr("Settings"),
                self.tr("Reads, tok/s"),
                self.tr("Writes, tok/s"),
                self.tr("Memory in use"),
            ]
        )
        self.table.verticalHeader().hide()
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setHighlightSections(False)
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.table.setShowGrid(False)
        self.table.setAccessibleName(self.tr("Earlier measurements"))
        self.table.itemSelectionChanged.connect(self._draw)
        self.image = button(self.tr("Save image"), lambda: self._save("png"))
        self.csv = button(self.tr("Save CSV"), lambda: self._save("csv"))
        self.json = button(self.tr("Save JSON"), lambda: self._save("json"))
        keep = row(1, self.image, self.csv, self.json)
        hint = label(self.tr("Select several rows to compare them."), "small")
        self._before = holding(
            stack(label(self.tr("Measured before"), "strong"), card(self.table, hint, keep), spacing=8)
        )
        self._before.hide()  # until there are results
        self.content.addWidget(self._before)

    # ------------------------------------------------------------------ loading data

    def _refresh_all(self) -> None:
        self.refresh()
        self._show_utilization()

    def refresh(self) -> None:
        api = self._services.api

        def show_shapes(answer: Shapes) -> None:
            self._shapes = answer.shapes
            self._list_models()

        self._services.ask(self.banner, api.bench_shapes, show_shapes, newest="shapes")
        self._request_curve()
        self._services.ask(self.banner, api.bench_results, self._show_results, newest="results")

    def _list_models(self) -> None:
        chosen = self.model.currentData()
        offered = [(choice.title, ("model", choice.id)) for choice in self._services.models.choices]
        away = self.tr("{shape} (not downloaded)")
        offered += [(away.format(shape=shape), ("shape", shape)) for shape in self._shapes]
        if offered == entries_of(self.model):
            self._on_model()
            return  # do not refresh the combo box, it may be open
        self.model.blockSignals(True)
        self.model.clear()
        for title, what in offered:
            self.model.addItem(title, what)
        index = self.model.findData(chosen)
        self.model.setCurrentIndex(max(index, 0))
        self.model.blockSignals(False)
        self._on_model()

    def _on_model(self) -> None:
        kind = (self.model.currentData() or ("", ""))[0]
        self.mix.setVisible(kind == "shape")
        free = self._job is None and bool(kind)
        self.start.setEnabled(free)
        self.tune.setEnabled(free)
        self.save_energy.setEnabled(free)
        subject = self.model.currentData() or ("", "")
        if subject != self._subject:
            self._subject = subject
            self._show_curve(SpeedCurve())
            self._select_newest()
            self._request_curve()

    def _request_curve(self) -> None:
        """Request the chosen model's forecast and its measured points. A shape without a file has none."""
        (kind, name), background = self._subject, self._services.background
        background.drop(self, "curve")

        def failed(_: Exception) -> None:
            self._show_curve(SpeedCurve())

        if kind == "model":
            ask = partial(self._services.api.speed_curve, name)
            background.run(ask, self._show_curve, failed, self, newest="curve")

    def _show_curve(self, curve: SpeedCurve) -> None:
        self._curve = curve
        for plot in (self.decode, self.prefill):
            plot.show_curve(curve)
        self.off.setText(self._forecast_text(curve))
        self.off.setVisible(bool(curve.forecast))
        self._draw()

    def _forecast_text(self, curve: SpeedCurve) -> str:
        """The forecast's error where it was measured, or its likely error where it was not."""
        if not curve.measured:
            text = self.tr(
                "These are forecasts: half of them are off by less than {half} %, one in ten by more than {rare} %."
                " Measure shows what is true on this computer."
            )
            half, rare = 100 * curve.usual_error, 100 * curve.rare_error
            return text.format(half=formatted.whole(half), rare=formatted.whole(rare))
        first = curve.measured[0]
        near = next(point for point in curve.forecast if point.length == first.length)
        text = self.tr(
            "After {n} tokens: writing {decode} tokens/s measured, {decode_forecast} forecast; reading {prefill} "
            "measured, {prefill_forecast} forecast."
        )
        return text.format(
            n=formatted.whole(first.length),
            decode=value_text(first.decode_tok_s),
            decode_forecast=value_text(near.decode_tok_s),
            prefill=value_text(first.prefill_tok_s),
            prefill_forecast=value_text(near.prefill_tok_s),
        )

    def _show_utilization(self) -> None:
        background, ask = self._services.background, partial(self._services.api.utilization, _SHOWN_S)

        def show(answer: UsageSamples) -> None:
            self.busy.show_samples(answer.samples)

        if not background.is_loading(self, "utilization"):
            background.run(ask, show, lambda _: None, self, newest="utilization")

    # ------------------------------------------------------------------ measuring

    def _request(self, kind: type[R]) -> R | None:
        """The settings to measure or tune. None if a prompt length is invalid, which the page reports."""
        what, name = self.model.currentData() or ("", "")
        try:
            lengths = [int(part) for part in self.lengths.text().split(",")]
        except ValueError:
            lengths = []
        if not lengths or not all(1 <= n <= _LONGEST for n in lengths):
            self.banner.notify(self.tr("Prompt lengths are numbers such as 128,512,2048."), "warn")
            return None
        if what == "shape":
            return kind(shape=name, lengths=tuple(lengths), type=self.mix.currentText())
        return kind(model=name, lengths=tuple(lengths))

    def _measure(self) -> None:
        base = self._request(BenchRequest)
        if base is not None:
            request = msgspec.structs.replace(base, repeats=self.repeats.value())
            self._begin(lambda: self._services.api.bench(request))

    def _tune(self, goal: Goal) -> None:
        base = self._request(TuneRequest)
        if base is not None:
            request = msgspec.structs.replace(base, goal=goal)
            self._begin(lambda: self._services.api.autotune(request))

    def _begin(self, start: Callable[[], Job]) -> None:
        self.banner.hide()

        def started(job: Job) -> None:
            self._job = job.id
            self._jobs.started(job)

        self._services.ask(self.banner, start, started)

    def _stop(self) -> None:
        if self._job is not None:
            self._jobs.do(self._job, "cancel")

    def _on_job(self, job: Job) -> None:
        """Follow this page's job, or one started elsewhere: only one runs at a time."""
        elsewhere = job.params.get("what") == "quick_test"
        if job.kind is not JobKind.MEASURE or elsewhere or (self._job not in {None, job.id}):
            return
        if job.ended or job.state == "paused":
            if self._job == job.id:
                self._finish(job)
            return
        self._job = job.id
        self.progress.setRange(0, job.progress.total)
        self.progress.setValue(job.progress.done)
        self.progress.show()
        self.stop.show()
        self.note.setText(translated(job.progress.note_detail, job.progress.note or job.title))
        self.note.show()
        partial = partial_of(job)
        if partial.points:
            self._live = partial
            self._draw()
        self._on_model()

    def _finish(self, job: Job) -> None:
        self._job, self._live = None, None
        self.progress.hide()
        self.stop.hide()
        self.note.hide()
        self._on_model()
        if job.state == "failed" and job.error is not None:
            self.banner.notify(failure_of(job), "bad")
        outcome = result_of(job, Measured)
        if outcome is not None and outcome.reports:
            self.banner.notify("\n".join(map(self._tuned, outcome.reports)), "ok")

        def show(answer: BenchResults) -> None:
            self._show_results(answer)
            self._select_newest()

        self._services.ask(self.banner, self._services.api.bench_results, show, newest="results")
        self._request_curve()

    def _tuned(self, report: TuneReport) -> str:
        best = report.best
        text = self.tr(
            "{model}, {length} tokens: {now} s per request, {before} s before. Threads {threads}, ubatch "
            "{ubatch}, flash attention {flash}, cache {cache}."
        ).format(
            model=report.model,
            length=report.prompt_tokens,
            now=formatted.decimal(report.turn_s, 2),
            before=formatted.decimal(report.default_turn_s, 2) if report.default_turn_s is not None else "-",
            threads=best.n_threads,
            ubatch=best.n_ubatch,
            flash=best.flash_attn,
            cache=best.kv_type,
        )
        if report.tokens_per_joule is None:
            return text
        now, before = report.tokens_per_joule, report.default_tokens_per_joule
        energy = self.tr("{now} tokens per joule, {before} before.").format(
            now=formatted.decimal(now, 2), before="?" if before is None else formatted.decimal(before, 2)
        )
        return f"{text} {energy}"

    # ------------------------------------------------------------------ results

    def _show_results(self, answer: BenchResults) -> None:
        selected = {result.id for result in self.selected}  # results' rows move if others were measured meanwhile
        self._results = answer.results
        self.table.setRowCount(len(self._results))
        for line, result in enumerate(self._results):
            points = sorted(result.points, key=lambda p: p.length)
            settings = self.tr("{backend}, {threads}, cache {cache}, ubatch {ubatch}").format(
                backend=result.backend,
                threads=formatted.threads(result.threads),
                cache=result.type_k,
                ubatch=result.n_ubatch,
            )
            cells = [
                formatted.moment(result.started_at),
                result.model + (self.tr(" (simulated)") if result.stand_in else ""),
                settings,
                formatted.whole(points[-1].prefill_tok_s.median) if points else "",
                formatted.decimal(points[0].decode_tok_s.median, 1) if points else "",
                formatted.size(result.rss_bytes),
            ]
            for column, cell in enumerate(cells):
                item = QTableWidgetItem(cell)
                item.setToolTip(formatted.plain_tip(cell))
                self.table.setItem(line, column, item)
        self._select(selected)
        self._before.setVisible(bool(self._results))
        lines = min(max(len(self._results), 1), _SHOWN_RESULTS)
        head = self.table.horizontalHeader().sizeHint().height()
        self.table.setFixedHeight(head + lines * self.table.verticalHeader().defaultSectionSize() + 2)
        if self._results and not self.table.selectedItems():
            self._select_newest()
        self._draw()

    def _select(self, results: Collection[int]) -> None:
        """Select the results with these ids."""
        with QSignalBlocker(self.table):
            self.table.clearSelection()
            for line, result in enumerate(self._results):
                if result.id in results:
                    index = self.table.model().index(line, 0)
                    self.table.selectionModel().select(index, _ROW)

    def _select_newest(self) -> None:
        """Select the newest result of the chosen model or shape."""
        kind, name = self._subject
        start = f"{name} " if kind == "shape" else None  # the quantization follows the name
        matches = (r.model.startswith(start) if start else r.model == name for r in self._results)
        newest = next((line for line, fits in enumerate(matches) if fits), None)
        # Not selectRow, which adds the row to the selection while Ctrl is held.
        self._select(() if newest is None else (self._results[newest].id,))
        if newest is not None:
            self.table.scrollTo(self.table.model().index(newest, 0))
        self._draw()

    @property
    def selected(self) -> list[BenchResult]:
        rows = sorted({index.row() for index in self.table.selectedIndexes()})
        return [self._results[r] for r in rows if r < len(self._results)]

    def _draw(self) -> None:
        shown = [(self._name(result), result.points) for result in self.selected]
        if self._live is not None:
            shown.insert(0, (self.tr("now: {model}").format(model=self._live.model), self._live.points))
        drawn = bool(self._curve.forecast) or any(points for _, points in shown)
        self._nothing.setVisible(not drawn)
        self._speeds.setVisible(drawn)
        for plot in (self.decode, self.prefill):
            plot.show_results(shown)
        for control in (self.image, self.csv, self.json):
            control.setEnabled(bool(self.selected))

    def _name(self, result: BenchResult) -> str:
        facts = (result.model, formatted.threads(result.threads), formatted.moment(result.started_at))
        return ", ".join(facts)

    def _save(self, kind: str) -> None:
        title, start, filters = self.tr("Save"), f"measured.{kind}", f"*.{kind}"
        file_dialog(self, title, lambda name: self.save(Path(name)), name_filter=filters, start=start, saves=True)

    def save(self, path: Path) -> None:
        """Write the selected results as PNG, CSV or JSON, depending on the file name."""
        if path.suffix.lower() == ".png":
            image = plots_image((self.decode, self.prefill)).toImage()
            self._services.ask(
                self.banner, lambda: image.save(str(path)), lambda done: self._saved(path, bool(done))
            )
            return
        results = self.selected
        self._services.ask(
            self.banner, lambda: write_results(path, results), lambda _: self._saved(path, done=True)
        )

    def _saved(self, path: Path, done: bool) -> None:
        if done:
            self.banner.notify(self.tr("Saved as {path}.").format(path=path), "ok")
        else:
            self.banner.notify(self.tr("{path} could not be written.").format(path=path), "bad")


def write_results(path: Path, results: Sequence[BenchResult]) -> None:
    """Write CSV or JSON, depending on the file name. Raises: OSError."""
    if path.suffix.lower() == ".csv":
        tables = [to_csv(result) for result in results]
        head, *_ = tables[0].partition("\n")
        rows = [table.partition("\n")[2] for table in tables]
        path.write_text(f"{head}\n{''.join(rows)}", encoding="utf-8")
    else:
        plain = [{k: v for k, v in msgspec.structs.asdict(result).items() if k != "id"} for result in results]
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plain)))
