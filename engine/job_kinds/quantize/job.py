"""Making a model of the library fit: a forecast at once, the file itself as a job."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import Cancelled, EnvironmentFault, InputFault
from engine.core.paths import Paths, whole_path
from engine.job_kinds.quantize.options import Quantized, QuantizeOptions
from engine.jobs.jobs import Control, JobKind, JobRegistry
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.library.types import Origin
from engine.placement.resources import Resources
from quantize.child import HERE, Executor
from quantize.job.request import QuantizeReport
from quantize.measurements import Progress

if TYPE_CHECKING:
    from engine.job_kinds.quantize.gate import GateService
    from engine.job_kinds.quantize.tasks import TaskSets
    from quantize.job.gate import GateTask

OpenGates: TypeAlias = "Callable[[], GateService]"
_BAR = 1000  # steps of the one bar of a job


def register(
    registry: JobRegistry, open_catalogue: Callable[[], Catalogue], resources: Resources, open_gates: OpenGates
) -> None:
    """Teach a registry the kind `quantize`: one at a time, for it takes every core."""

    def run(options: QuantizeOptions, control: Control) -> Quantized:
        with closing(open_catalogue()) as catalogue:
            return make(catalogue, options, control, resources, open_gates=open_gates)

    registry.register(JobKind.QUANTIZE, run, read=options_of)


def options_of(params: dict[str, Any]) -> QuantizeOptions:
    """The options of a job, also of one that an earlier version recorded: `source`, and locks as lists."""
    if "source" in params:
        locks = [dict(zip(("pattern", "type", "at_least"), lock, strict=True)) for lock in params.get("locks", ())]
        known = {k: v for k, v in params.items() if k not in {"source", "plan_only"}}
        params = {**known, "model": params["source"], "locks": locks}
    return msgspec.convert(params, learned(QuantizeOptions))


def predict(
    catalogue: Catalogue, options: QuantizeOptions, resources: Resources, named: "TaskSets | None" = None
) -> QuantizeReport:
    """The likely plan, from what is known about this model so far; nothing is measured or written.

    `named` are the tasks that a gate may name.

    Without a goal the plan is the largest one, whose `smallest_bytes` bounds what can be asked for.

    Raises: InputFault, EnvironmentFault: the model or the options.
    """
    from engine.job_kinds.quantize.calibration_text import texts_of  # noqa: PLC0415 - not while the server starts
    from engine.job_kinds.quantize.request import build_request  # noqa: PLC0415 - as above
    from quantize.job.execute import quantize as run_quantize  # noqa: PLC0415 - as above

    source = source_of(catalogue, options.model)
    gate = gate_task(options, named or {})
    if not options.goals:
        options = msgspec.structs.replace(options, budget_bytes=max(source.num_bytes, 1))
    out = target_of(source, options, catalogue.paths)
    with texts_of(options) as given:
        preview = build_request(given, source.path, out, catalogue.paths, resources, gate, plan_only=True)
        return run_quantize(preview, lambda _: None, lambda: False)


def make(
    catalogue: Catalogue,
    options: QuantizeOptions,
    control: Control,
    resources: Resources,
    executor: Executor = HERE,
    open_gates: "OpenGates | None" = None,
) -> Quantized:
    """Make the file, and list it; its `model` is empty where the source was a file outside the library.

    `open_gates` gives what asks a gate's tasks. Where a gate vetoes, `path` is empty too: no file is there.

    Raises: InputFault, EnvironmentFault, the quantizer's errors; Cancelled and Paused from `control`.
    """
    from engine.job_kinds.quantize.calibration_text import texts_of  # noqa: PLC0415 - not while the server starts
    from engine.job_kinds.quantize.request import build_request  # noqa: PLC0415 - as above
    from quantize.job.execute import quantize as run_quantize  # noqa: PLC0415 - as above

    source = source_of(catalogue, options.model)
    out = require_disk(source, options, catalogue.paths)
    judge, gate = None, None
    if options.gate is not None and open_gates is not None:
        gates = open_gates()
        tasks = gates.tasks(options.gate)
        judge, gate = gates.judge(tasks), tasks.task
    elif options.gate is not None:
        raise InputFault("Nobody here can ask a model tasks.", "gate")

    def progress(at: Progress) -> None:
        control.report(at.phase, round(_BAR * (at.share or 0.0)), _BAR, "", at.detail, left_s=at.left_s)

    try:
        with texts_of(options) as given:
            request = build_request(given, source.path, out, catalogue.paths, resources, gate)
            report = run_quantize(request, progress, lambda: control.stopping, executor, judge)
    except Cancelled:
        control.check()  # a pause, not a cancellation
        raise
    if report.out is None:
        return Quantized(model="", path="", report=report)
    if options.out is None:
        made = catalogue.add(out, Origin(kind="built")).id
    else:  # what a model of the library became is one too, wherever it lies
        made = "" if Path(options.model).is_absolute() else catalogue.add(out).id
    return Quantized(model=made, path=str(out), report=report)


def gate_task(options: QuantizeOptions, named: "TaskSets") -> "GateTask | None":
    """What the gate of these options asks; None without one. Raises: InputFault: no task. EnvironmentFault."""
    if options.gate is None:
        return None
    from engine.job_kinds.quantize.tasks import task_set  # noqa: PLC0415 - not while the server starts

    return task_set(options.gate, named).task


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is made of: where it is, how people call it, and what files made of it are named after."""

    path: Path
    title: str
    stem: str
    num_bytes: int


def source_of(catalogue: Catalogue, named: str) -> Source:
    """The model of that name, or the file or folder at a whole path.

    Raises: ModelNotFound; EnvironmentFault: it is not there now.
    """
    path = Path(named)
    if path.is_absolute() and path.exists():
        if path.is_dir():
            return Source(path=path, title=path.name, stem=path.name, num_bytes=0)
        return Source(path=path, title=path.name, stem=path.stem, num_bytes=path.stat().st_size)
    entry = require(catalogue, named)
    if entry.state != "online":
        raise EnvironmentFault(f"{entry.id} is {entry.state}: {entry.problem or 'its drive is not connected'}")
    return Source(path=entry.path, title=entry.name, stem=entry.id, num_bytes=entry.size_bytes)


def target_of(source: Source, options: QuantizeOptions, paths: Paths) -> Path:
    """Where the file is to lie. Raises: InputFault: that is not a whole path."""
    from engine.job_kinds.quantize.request import in_library  # noqa: PLC0415 - not while the server starts

    if options.out is None:
        return in_library(source.stem, options, paths)
    return whole_path(options.out, "out")


def require_disk(source: Source, options: QuantizeOptions, paths: Paths) -> Path:
    """Where the file is to lie, with the library's folder for it made. Raises: InputFault; CannotWrite."""
    from engine.job_kinds.quantize.request import make_room  # noqa: PLC0415 - not while the server starts

    out = target_of(source, options, paths)
    make_room(out, paths)
    return out
