"""The bench page: measure a model or shape, watch progress, compare with earlier results, export."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyqtgraph
from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QHeaderView,
    QLineEdit,
    QProgressBar,
    QSpinBox,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.reasons import failure_of
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner, EmptyState, Page, button, card, label, row, stack
from app.gui.widgets.chart import Chart, ChartKey, value_words
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, entries_of
from engine.api.jobs import BenchPartial, Job, JobKind, Measured, TuneReport, partial_of, result_of
from engine.api.measuring import BenchRequest, BenchResult, BenchResults, Goal, Point, Shapes, TuneRequest
from engine.api.stats import Usage
from engine.placement.results import to_csv
from quantize.plan.llama_cpp_preset_rules import STAND_IN_MIXES

R = TypeVar("R", BenchRequest, TuneRequest)

_BUSY_MS = 1000
_SHOWN_S = 120
_LONGEST = 1 << 20
_SHOWN_RESULTS = 8


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
        self.banner = Banner(services.theme, self)
        self._build_controls()
        self._build_plots()
        self._build_results()
        self.while_visible(_BUSY_MS, self._show_utilization, self._refresh_all)
        services.models.changed.connect(self._list_models)
        jobs.changed.connect(self._on_job)
        self._list_models()

    def _build_controls(self) -> None:
        self.model = ComboBox()
        self.model.setAccessibleName(self.tr("Model or shape to measure"))
        self.model.currentIndexChanged.connect(lambda _: self._on_model())
        self.mix = ComboBox()
        self.mix.addItems(list(STAND_IN_MIXES))
        self.mix.setAccessibleName(self.tr("Quantization of the simulated model"))
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
        first = row(self.model, self.mix)
        first.setStretch(0, 1)
        second = row(
            label(self.tr("Prompt lengths"), "small"),
            self.lengths,
            label(self.tr("Repeats"), "small"),
            self.repeats,
            1,
        )
        searches = Flow()
        searches.add(self.tune)
        searches.add(self.save_energy)
        actions = row(searches, self.stop, self.start)
        actions.setStretch(0, 1)
        self.content.addWidget(card(first, second, actions, self.progress, self.note, spacing=12))

    def _build_plots(self) -> None:
        theme = self._services.theme
        self.decode = SpeedPlot(theme, self.tr("Writing, tokens/s"), "decode_tok_s")
        self.prefill = SpeedPlot(theme, self.tr("Reading, tokens/s"), "prefill_tok_s")
        self.busy = BusyPlot(theme, self.tr("Load of the computer, %"))
        self._speeds = card(self.decode, self.prefill)
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
                self.tr("Memory"),
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
        self._before = QWidget()
        self._before.setLayout(
            stack(label(self.tr("Measured before"), "strong"), card(self.table, hint, keep), spacing=8)
        )
        self._before.hide()  # until there are results
        self.content.addWidget(self._before)

    # ------------------------------------------------------------------ loading data

    def _refresh_all(self) -> None:
        self.refresh()
        self._show_utilization()

    def refresh(self) -> None:
        """Request the model shapes and all earlier results."""
        api = self._services.api

        def show_shapes(answer: Shapes) -> None:
            self._shapes = answer.shapes
            self._list_models()

        self._services.ask(self.banner, api.bench_shapes, show_shapes)
        self._services.ask(self.banner, api.bench_results, self._show_results)

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
        found = self.model.findData(chosen)
        self.model.setCurrentIndex(max(found, 0))
        self.model.blockSignals(False)
        self._on_model()

    def _on_model(self) -> None:
        kind = (self.model.currentData() or ("", ""))[0]
        self.mix.setVisible(kind == "shape")
        free = self._job is None and bool(kind)
        self.start.setEnabled(free)
        self.tune.setEnabled(free)
        self.save_energy.setEnabled(free)

    def _show_utilization(self) -> None:
        self._services.background.run(
            lambda: self._services.api.utilization(_SHOWN_S),
            lambda answer: self.busy.show_samples(answer.samples),
            lambda _: None,
            self,
        )

    # ------------------------------------------------------------------ measuring

    def _request(self, kind: type[R]) -> R | None:
        """What to measure or tune. None if a prompt length is invalid, which the page reports."""
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
        found = self._request(BenchRequest)
        if found is not None:
            request = msgspec.structs.replace(found, repeats=self.repeats.value())
            self._begin(lambda: self._services.api.bench(request))

    def _tune(self, goal: Goal) -> None:
        found = self._request(TuneRequest)
        if found is not None:
            request = msgspec.structs.replace(found, goal=goal)
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
        self.note.setText(job.progress.note or job.title)
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
        found = result_of(job, Measured)
        if found is not None and found.reports:
            self.banner.notify("\n".join(map(self._tuned, found.reports)), "ok")
        self._services.ask(self.banner, self._services.api.bench_results, self._show_results)

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
        self._results = answer.results
        self.table.setRowCount(len(self._results))
        for line, result in enumerate(self._results):
            points = sorted(result.points, key=lambda p: p.length)
            settings = f"{result.backend}, {result.threads} threads, {result.type_k}, ub {result.n_ubatch}"
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
                item.setToolTip(cell)
                self.table.setItem(line, column, item)
        self._before.setVisible(bool(self._results))
        lines = min(max(len(self._results), 1), _SHOWN_RESULTS)
        head = self.table.horizontalHeader().sizeHint().height()
        self.table.setFixedHeight(head + lines * self.table.verticalHeader().defaultSectionSize() + 2)
        if self._results and not self.table.selectedItems():
            self.table.selectRow(0)
        self._draw()

    @property
    def selected(self) -> list[BenchResult]:
        """Results of the selected rows, in table order."""
        rows = sorted({index.row() for index in self.table.selectedIndexes()})
        return [self._results[r] for r in rows if r < len(self._results)]

    def _draw(self) -> None:
        shown = [(self._name(result), result.points) for result in self.selected]
        if self._live is not None:
            shown.insert(0, (self.tr("now: {model}").format(model=self._live.model), self._live.points))
        drawn = any(points for _, points in shown)
        self._nothing.setVisible(not drawn)
        self._speeds.setVisible(drawn)
        for plot in (self.decode, self.prefill):
            plot.show_results(shown)
        for made in (self.image, self.csv, self.json):
            made.setEnabled(bool(self.selected))

    def _name(self, result: BenchResult) -> str:
        return f"{result.model}, {result.threads} ({formatted.moment(result.started_at)})"

    def _save(self, kind: str) -> None:
        name, _ = QFileDialog.getSaveFileName(self, self.tr("Save"), f"measured.{kind}", f"*.{kind}")
        if name:
            path = Path(name)
            self.save(path if path.suffix else path.with_suffix(f".{kind}"))

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


# Plots of the bench page: speed over prompt length, and the computer's utilization meanwhile.

_SECONDS = 120
_SYMBOLS = ("o", "s", "t", "d", "+", "x")


class _Titled(QWidget):
    """A chart below its title and legend."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__()
        self._theme = theme
        self.chart = Chart(theme, title)
        self.key = ChartKey(theme)
        self.key.hide()
        self.setLayout(stack(label(title, "small"), self.key, self.chart, spacing=4))
        theme.changed.connect(self._draw)

    def _draw(self) -> None:
        raise NotImplementedError


class SpeedPlot(_Titled):
    """One line per result: `field` of its points (decode_tok_s or prefill_tok_s), with the repeats' spread."""

    def __init__(self, theme: Theme, title: str, field: str) -> None:
        super().__init__(theme, title)
        self._field = field
        self._shown: Sequence[tuple[str, Sequence[Point]]] = ()
        self.chart.setMinimumHeight(200)
        self.chart.name_axes(bottom=self.tr("tokens in the prompt"))
        self.lines: dict[str, list[tuple[float, float]]] = {}
        self._draw()

    def show_results(self, results: Sequence[tuple[str, Sequence[Point]]]) -> None:
        """Show the points of each result under the given name. A result without points is not drawn."""
        self._shown = results
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        self.lines = {}
        entries = []
        top = 0.0
        for number, (name, points) in enumerate(self._shown):
            rows = [(p.length, getattr(p, self._field)) for p in sorted(points, key=lambda p: p.length)]
            if not rows:
                continue
            xs, ys = [float(x) for x, _ in rows], [s.median for _, s in rows]
            colour = chart.series_colour(number)
            chart.line(xs, ys, colour, symbol=_SYMBOLS[number % len(_SYMBOLS)])
            low = [y - s.low for y, (_, s) in zip(ys, rows, strict=True)]
            high = [s.high - y for y, (_, s) in zip(ys, rows, strict=True)]
            chart.addItem(_bars(xs, ys, low, high, pyqtgraph.mkPen(colour, width=1)))
            self.lines[name] = list(zip(xs, ys, strict=True))
            entries.append((name, colour))
            text = self.tr("{name}: {speed} tokens/s at {n} tokens")
            chart.points += [
                (x, y, text.format(name=name, speed=value_words(y), n=formatted.whole(x)))
                for x, y in self.lines[name]
            ]
            top = max(top, *(y + h for y, h in zip(ys, high, strict=True)))
        self.key.show_names(entries)
        chart.setYRange(0, max(top * 1.1, 1.0), padding=0)


def _bars(xs: list[float], ys: list[float], low: list[float], high: list[float], pen: Any) -> Any:
    """Error bars that show the spread of the repeats."""
    import numpy as np

    return pyqtgraph.ErrorBarItem(
        x=np.asarray(xs), y=np.asarray(ys), bottom=np.asarray(low), top=np.asarray(high), pen=pen
    )


class BusyPlot(_Titled):
    """CPU, GPU and NPU utilization over the last two minutes, in percent."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__(theme, title)
        self.chart.setFixedHeight(112)
        self.chart.setYRange(0, 100, padding=0.02)
        self.chart.getPlotItem().getAxis("left").setTicks([[(0, "0"), (50, "50"), (100, "100")]])
        ago = QCoreApplication.translate("TimePlot", "{n} min ago")
        now = QCoreApplication.translate("TimePlot", "now")
        clock = self.chart.getPlotItem().getAxis("bottom")
        clock.setTicks([[(-_SECONDS / 2, ago.format(n=_SECONDS // 120)), (0.0, now)]])
        clock.setStyle(hideOverlappingLabels=False)  # otherwise the label at the edge is omitted
        self.chart.getPlotItem().setContentsMargins(0, 8, 16, 4)
        self.chart.setXRange(-_SECONDS, 0, padding=0)
        self.series: dict[str, list[float]] = {}
        self._samples: Sequence[Usage] = ()
        self._draw()

    def show_samples(self, samples: Sequence[Usage]) -> None:
        """Show the server's samples, oldest first."""
        self._samples = samples
        self._draw()

    def _draw(self) -> None:
        chart = self.chart
        chart.clear()
        chart.points = []
        found: dict[str, list[tuple[float, float]]] = {}
        newest = self._samples[-1].at if self._samples else 0.0
        for sample in self._samples:
            at = sample.at - newest
            found.setdefault(self.tr("Processor"), []).append((at, 100 * sample.cpu_frac))
            for device in sample.devices:
                if device.busy_frac is not None:
                    name = f"{device.kind.upper()} {device.device}"
                    found.setdefault(name, []).append((at, 100 * device.busy_frac))
        entries = []
        text = self.tr("{name}, {n} s ago: {busy} %")
        for number, (name, points) in enumerate(found.items()):
            colour = chart.series_colour(number)
            chart.line([x for x, _ in points], [y for _, y in points], colour)
            chart.points += [
                (x, y, text.format(name=name, n=formatted.whole(-x), busy=formatted.whole(y))) for x, y in points
            ]
            entries.append((name, colour))
        self.key.show_names(entries)
        self.series = {name: [y for _, y in points] for name, points in found.items()}


# Exports results: an image of the plots, llama-bench's columns as CSV, or all data as JSON.


def plots_image(widgets: Sequence[QWidget]) -> QPixmap:
    """An image of the widgets below each other, as currently drawn."""
    ratio = widgets[0].devicePixelRatioF()
    width = max(w.width() for w in widgets)
    height = sum(w.height() for w in widgets)
    made = QPixmap(round(width * ratio), round(height * ratio))
    made.setDevicePixelRatio(ratio)
    made.fill()
    painter = QPainter(made)
    top = 0
    for widget in widgets:
        painter.drawPixmap(0, top, widget.grab())
        top += widget.height()
    painter.end()
    return made


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
