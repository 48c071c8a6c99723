"""Runs measurements for the terminal and for jobs: bench, autotune, decoding times of types, places of a model."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from devices.host import Host
from devices.host_real import RealHost
from devices.types import Machine
from engine.core.errors import BadModelFile, Cancelled, NotEnoughMemory, RunnerDied
from engine.core.paths import Paths
from engine.energy.meter import EnergyMeter
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.run import Step, tune
from engine.job_kinds.autotune.space import dimensions
from engine.job_kinds.bench.measure import Meter, Timed
from engine.job_kinds.bench.qtype_speed import PriceStore, measure_prices
from engine.job_kinds.bench.run import bench, bench_settings
from engine.job_kinds.measure.target import Opened, Subject, opened
from engine.jobs.jobs import JobContext, JobKind, JobRegistry, Paused, params_of
from engine.library.catalogue import Catalogue
from engine.message_catalog.reasons import Reason, because
from engine.placement.candidates import Candidate, forecast_for
from engine.placement.history import MeasuredSpeed
from engine.placement.load_settings import usable_cores
from engine.placement.measurements import (
    Comparison,
    Goal,
    PlaceSpeed,
    Point,
    Report,
    TuneReport,
    TypePrices,
    knobs_of,
)
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer, read_shape
from engine.placement.results import Results, machine_key, shape_key, tuned_of
from engine.placement.shape import ModelShape
from engine.placement.types import NO_OVERRIDES
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.measure.quick_loss import QuickLossRequest, quick_loss
from quantize.measurements import OnProgress
from quantize.measurements import Progress as RoundingProgress
from quantize.types import CALIBRATION, QuickLoss

log = logging.getLogger(__name__)
# KV cells in addition to the prompt of a tuned request: its response and the chat template.
TURN_CELLS: Final = 512
# Seconds of measuring for all places together. At most this many places, the ones with the best forecasts.
LIMIT_S: Final = 20.0
MOST_PLACES: Final = 4
# Tokens generated after each prompt.
ANSWER: Final = 16
# Prompt lengths. The first warms up; the shallow one is as in published runs, or shorter on slow devices.
WARM_UP: Final = 64
SHALLOW: Final = (512, 128)
DEEP: Final = (8192, 4096, 2048, 1024, 512, 256)
# Share of a place's seconds for the shallow point; reading at depth may be this many times slower.
SHALLOW_SHARE: Final = 0.25
SLOWER_DEEP: Final = 2.0
# Interval of checks for a stop.
LOOK_S: Final = 0.1


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark. `threads` None: chosen by placement or autotune. `lengths` and `tokens` in tokens."""

    subject: Subject
    lengths: tuple[int, ...] = (128, 512, 2048)
    parallel: tuple[int, ...] = (1, 4)
    repeats: int = 3
    tokens: int = 32
    threads: int | None = None


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of the places for a model. `limit_s` limits the measuring itself, of all places together."""

    model: str
    limit_s: float = LIMIT_S


class QuickTestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One quick test of how much the model in a GGUF file loses by rounding."""

    model: str


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One search per prompt length in `lengths`; `limit_s` limits all of them together."""

    subject: Subject
    lengths: tuple[int, ...] = (512,)
    limit_s: float = 600.0
    goal: Goal = "speed"


class BenchService:
    """Measures on this machine, with its power meters. Only one at a time, to avoid mutual load."""

    def __init__(
        self,
        paths: Paths,
        placer: Placer,
        admission: MemoryAdmission,
        open_catalogue: Callable[[], Catalogue],
    ) -> None:
        self._host: Host = RealHost()
        self._paths = paths
        self._placer = placer
        self._admission = admission
        self._open = open_catalogue
        self.prices = PriceStore(paths.state / "type_prices.json")

    @property
    def results(self) -> Results:
        """All measurements on this machine."""
        return self._placer.results

    def bench(
        self,
        options: BenchOptions,
        step: Callable[[Reason], None],
        on_point: Callable[[Point], None] = lambda _: None,
    ) -> Report:
        """Measure and store the result. Raises: NotEnoughMemory, BadModelFile, RunnerDied, StandInFailed."""
        placer = self._placer
        with opened(options.subject, self._paths, self._open, step) as subject:
            shape = read_shape(str(subject.path))
            machine = placer.machine_now()
            placed = placer.judge_shape(_owner(subject), shape, subject.settings)
            settings = placed.settings
            if options.threads:
                settings = msgspec.structs.replace(
                    settings, n_threads=options.threads, n_threads_batch=options.threads
                )
            with self._admitted(bench_settings(settings, options.lengths, options.parallel, options.tokens)):
                report = asyncio.run(
                    bench(
                        settings,
                        model=options.subject.name,
                        lengths=options.lengths,
                        parallel=options.parallel,
                        repeats=options.repeats,
                        stand_in=options.subject.stand_in,
                        step=step,
                        tokens=options.tokens,
                        machine=machine,
                        shape_key=shape_key(shape),
                        on_point=on_point,
                    )
                )
        placer.results.add(report)
        self._learn(report, shape, settings, machine)
        return report

    def _learn(self, report: Report, shape: ModelShape, settings: LoadSettings, machine: Machine) -> None:
        """Store the report's points, from which later forecasts for this family of models are made."""
        forecast = forecast_for(shape, settings, machine)
        if forecast is not None:
            rows = [(p.length, p.prefill_tok_s.median, p.decode_tok_s.median) for p in report.points]
            one = report.decode_tok_s
            gains = [(c.parallel, c.total_tok_s.median / one) for c in report.concurrency] if one > 0 else []
            measured = forecast.measured_at(rows, report.tokens, report.started_at, sorted(gains))
            self._placer.history.record_measured(forecast.key, measured)

    def tune(self, options: TuneOptions, step: Step) -> list[TuneReport]:
        """Search for every length and store the results.

        Raises: same as `bench`; NothingWorks; NoPowerMeter and NeverAtRest if energy is the goal.
        """
        placer = self._placer
        reports = []
        energy = None
        if options.goal == "energy":
            energy = EnergyMeter(self._host, placer.machine_now())
            step(because("bench_rest"), 0)
            asyncio.run(energy.rest())  # before a dummy-weight model is written, which loads the disk
        with opened(options.subject, self._paths, self._open, lambda text: step(text, 0)) as subject:
            shape = read_shape(str(subject.path))
            machine = placer.machine_now()
            where, which = machine_key(machine), shape_key(shape)
            for length in options.lengths:
                cells = max(subject.settings.n_ctx, length + TURN_CELLS)
                requested = msgspec.structs.replace(
                    subject.settings, n_ctx=cells, kv_cells=max(cells, subject.settings.kv_cells)
                )
                settings = placer.defaults(_owner(subject), shape, requested).settings
                base = knobs_of(settings)
                layers, tiles = len(shape.layers), tiles_library(library_folder()) is not None
                report = asyncio.run(
                    tune(
                        settings,
                        base,
                        dimensions(base, machine, length, layers, experts=shape.experts > 0, tiles=tiles),
                        model=options.subject.name,
                        prompt_tokens=length,
                        journal_path=self.journal(where, which, length, options.goal),
                        admit=self._admitted,
                        limit_s=options.limit_s / len(options.lengths),
                        step=step,
                        drafts=not options.subject.stand_in,
                        energy=energy,
                    )
                )
                placer.tuned.put(tuned_of(report, where, which))
                reports.append(report)
        return reports

    def unmeasured(self, model: str) -> list[Candidate]:
        """Places of this model that only forecasts compare. Raises: InputFault, ModelNotFound, BadModelFile."""
        with opened(Subject(model=model), self._paths, self._open, lambda _: None) as subject:
            options = self._placer.resources.settings.get(model).load_options
            return self._placer.unmeasured(model, subject.settings, NO_OVERRIDES.with_options(options))

    def compare(self, options: CompareOptions, control: JobContext) -> Comparison:
        """Measure each place that was not measured yet, and store the speeds. Raises: Paused, Cancelled."""
        model = options.model
        missing = self.unmeasured(model)[:MOST_PLACES]
        before = self._place(model)
        places: list[PlaceSpeed] = []
        for done, candidate in enumerate(missing):

            def step(now: Reason, done: int = done) -> None:
                control.report("comparing", done, len(missing), "places", now, {"model": model})

            began = time.monotonic()
            try:
                with self._admitted(compare_settings(candidate)):
                    limit_s = options.limit_s / len(missing)
                    measured = asyncio.run(measure_place(candidate, limit_s, step, control.check))
            except (NotEnoughMemory, BadModelFile, RunnerDied) as error:
                log.info("model=%s not measured on %s: %s", model, candidate.device.name, error)
                continue
            assert candidate.forecast is not None
            self._placer.history.record_measured(candidate.forecast.key, measured)
            places.append(
                PlaceSpeed(
                    device=candidate.device.id,
                    backend=candidate.backend,
                    prefill_tok_s=1 / measured.prompt[0].measured_s,
                    decode_tok_s=1 / measured.decode[0].measured_s,
                    forecast_prefill_tok_s=1 / measured.prompt[0].forecast_s,
                    forecast_decode_tok_s=1 / measured.decode[0].forecast_s,
                    took_s=time.monotonic() - began,
                )
            )
        return Comparison(model=model, places=tuple(places), before=before, after=self._place(model))

    def quick_test(
        self, options: QuickTestOptions, on_progress: OnProgress, cancelled: Callable[[], bool]
    ) -> QuickLoss:
        """Measure what rounding all weights to 4 bits loses; plans of this model then use the result.

        Raises: NotEnoughMemory, Cancelled, ChildDied, InputFault: not a GGUF file.
        """
        with opened(Subject(model=options.model), self._paths, self._open, lambda _: None) as subject:
            request = QuickLossRequest(source=subject.path, text=CALIBRATION, threads=usable_cores())
            with self._admitted(msgspec.structs.replace(subject.settings, n_ctx=512, kv_cells=512, n_parallel=1)):
                return quick_loss(request, self._paths.cache / "quantize", on_progress, cancelled)

    def _place(self, model: str) -> str:
        """The model's present placement."""
        with opened(Subject(model=model), self._paths, self._open, lambda _: None) as subject:
            options = self._placer.resources.settings.get(model).load_options
            placed = self._placer.placement(
                model, subject.settings, NO_OVERRIDES.with_options(options), exact=False
            )
        return f"{placed.device}/{placed.backend}"

    def price_types(self, step: Callable[[str, int, int], None]) -> TypePrices:
        """Measure the types on the CPU and store the times. Raises: same as `bench`."""
        prices = asyncio.run(
            measure_prices(
                machine_key(self._placer.machine_now()),
                threads=usable_cores(),
                scratch=self._paths.cache / "stand-ins",
                step=step,
            )
        )
        self.prices.put(prices)
        return prices

    def journal(self, where: str, which: str, length: int, goal: Goal = "speed") -> Path:
        """Path of a search's record, which exists until the search is complete. Each goal has its own."""
        kind = "" if goal == "speed" else f"-{goal}"
        return self._paths.state / "autotune" / f"{where}-{which}-{length}{kind}.jsonl"

    def forget(self, options: TuneOptions) -> None:
        """Delete the results of a search that will not be completed; other searches' results stay."""
        for length in options.lengths:
            any_of_it = self.journal("*", "*", length, options.goal)
            for path in any_of_it.parent.glob(any_of_it.name):
                journal = Journal(path)
                if journal.model == options.subject.name:
                    journal.clear()

    @contextmanager
    def _admitted(self, settings: LoadSettings) -> Iterator[None]:
        """Reserve memory before a load and release it afterwards. Raises: NotEnoughMemory."""
        owner = f"measuring {settings.path}"
        self._admission.reserve_now(owner, settings)
        try:
            yield
        finally:
            self._admission.release(owner)


def _owner(subject: Opened) -> str:
    return f"measuring {subject.path}"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a job of kind `measure`."""

    what: Literal["bench", "tune", "prices", "compare", "quick_test"]
    quick_test: QuickTestOptions | None = None
    bench: BenchOptions | None = None
    tune: TuneOptions | None = None
    compare: CompareOptions | None = None


def register(registry: JobRegistry, bench_service: BenchService) -> None:
    """Register the kind `measure`, one job at a time."""
    registry.register(
        JobKind.MEASURE, lambda task, control: run(bench_service, task, control), read=params_of(Task)
    )


def run(bench_service: BenchService, task: Task, control: JobContext) -> dict[str, Any]:
    """Run a job. A paused search continues from its record. Raises: Paused, Cancelled."""
    if task.quick_test is not None:
        return _quick_test(bench_service, task.quick_test, control)
    if task.what == "tune" and task.tune is not None:

        def tried(now: str | Reason, count: int) -> None:
            control.check()
            control.report("tuning", count, 0, "settings", now)

        try:
            control.check()
            return {"reports": bench_service.tune(task.tune, tried)}
        except Cancelled:
            bench_service.forget(task.tune)
            raise

    control.check()
    if task.what == "bench" and task.bench is not None:
        options = task.bench
        total = len(options.lengths) * options.repeats + sum(options.repeats for n in options.parallel if n > 1)
        done = 0
        points: list[Point] = []

        def step(now: Reason) -> None:
            nonlocal done
            control.check()
            done += "run" in now.values
            partial = {"model": options.subject.name, "points": msgspec.to_builtins(points)}
            control.report("measuring", min(done, total), total, "runs", now, partial)

        return {"report": bench_service.bench(options, step, points.append)}

    if task.what == "compare" and task.compare is not None:
        try:
            return {"comparison": bench_service.compare(task.compare, control)}
        except Paused:  # what was measured is stored; the rest is measured at the next idle time
            raise Cancelled from None

    return {"prices": _prices(bench_service, control)}


def _quick_test(bench_service: BenchService, options: QuickTestOptions, control: JobContext) -> dict[str, Any]:
    def tested(now: RoundingProgress) -> None:
        control.report("testing", round(now.done), round(now.total), "tensors", now.detail)

    try:
        return {"quick_loss": bench_service.quick_test(options, tested, lambda: control.stopping)}
    except Cancelled:
        control.check()  # a pause, not a cancellation
        raise


def _prices(bench_service: BenchService, control: JobContext) -> TypePrices:
    def priced(name: str, done: int, total: int) -> None:
        control.check()
        control.report("pricing types", done, total, "types", name)

    return bench_service.price_types(priced)


# Measures a model on every place that could run it, so that the choice between them does not rest on a forecast.
# Loading and compiling shaders do not count, because they happen once anyway. Prompt and decode speed at two depths
# are stored per family of models, chip, driver and kernels.


def longest(candidate: Candidate) -> int:
    """Tokens of the longest prompt: within the context that the model would have there."""
    room = candidate.settings.n_ctx - ANSWER
    return next((length for length in DEEP if length <= room), DEEP[-1])


def compare_settings(candidate: Candidate) -> LoadSettings:
    """Load settings of a measurement in that place."""
    return bench_settings(candidate.settings, (longest(candidate),), (1,), ANSWER)


async def measure_place(
    candidate: Candidate, limit_s: float, step: Callable[[Reason], None], check: Callable[[], None]
) -> MeasuredSpeed:
    """Speeds of the model in one place, in about `limit_s` seconds. `check` raises to stop, ten times a second.

    Raises: BadModelFile, RunnerDied, and what `check` raises.
    """
    return await _until_stopped(_measured(candidate, limit_s, step), check)


async def _measured(candidate: Candidate, limit_s: float, step: Callable[[Reason], None]) -> MeasuredSpeed:
    forecast = candidate.forecast
    assert forecast is not None
    where = because("compare_place", device=candidate.device.name, backend=candidate.backend)
    step(where)
    largest, runner = longest(candidate), await RunnerProcess.start("llama", candidate.settings.path)
    try:
        facts = await runner.load(compare_settings(candidate))
        meter = Meter(runner, facts.n_vocab, lambda _: None, ANSWER)
        await meter.timed(WARM_UP)
        first = await meter.timed(WARM_UP)
        rows = [(WARM_UP, first)]
        if SHALLOW[-1] / first.prefill_tok_s <= limit_s:  # otherwise it is too slow to spend more time on
            rows = await _two_depths(meter, first, largest, limit_s)
    finally:
        await runner.end()
    speeds = [(length, timed.prefill_tok_s, timed.decode_tok_s) for length, timed in rows]
    return forecast.measured_at(speeds, ANSWER, time.time())


async def _two_depths(meter: Meter, first: Timed, largest: int, limit_s: float) -> list[tuple[int, Timed]]:
    """A shallow run, and one as deep as the time allows."""
    shallow = next((n for n in SHALLOW if n / first.prefill_tok_s <= limit_s * SHALLOW_SHARE), SHALLOW[-1])
    await meter.run(shallow, 1)  # compiles the shaders for whole ubatches
    one = await meter.timed(shallow)
    left_s = limit_s - shallow / one.prefill_tok_s - SLOWER_DEEP * ANSWER / one.decode_tok_s
    deep = next((n for n in DEEP if n <= largest and SLOWER_DEEP * n / one.prefill_tok_s <= left_s), DEEP[-1])
    if deep <= shallow:
        return [(shallow, one)]
    return [(shallow, one), (deep, await meter.timed(deep))]


async def _until_stopped(work: Coroutine[Any, Any, MeasuredSpeed], check: Callable[[], None]) -> MeasuredSpeed:
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            check()
        return await task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
