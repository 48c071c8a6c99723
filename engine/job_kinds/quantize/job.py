"""Quantizes a model of the library: an immediate forecast, and the file itself as a job."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import Cancelled, EnvironmentFault, InputFault
from engine.core.paths import Paths, whole_path
from engine.job_kinds.quantize.options import Quantized, QuantizeOptions
from engine.jobs.jobs import JobContext, JobKind, JobRegistry
from engine.library.catalogue import Catalogue
from engine.library.hub.file_selection import HubName, parse_hub_name
from engine.library.model_ids import folder_name, from_file_name, stem_of
from engine.library.trash import Trash
from engine.library.types import ModelEntry, Origin
from engine.library.work import PullTask, pull
from engine.placement.model_settings import named_model
from engine.placement.resources import Resources
from quantize.child import HERE, Executor
from quantize.job.request import QuantizeReport
from quantize.measurements import Progress

if TYPE_CHECKING:
    from engine.job_kinds.quantize.gate import GateService
    from engine.job_kinds.quantize.tasks import TaskSets
    from quantize.job.gate import GateTask

OpenGates: TypeAlias = "Callable[[], GateService]"
# Q8_0 has 8.5 bits per weight.
EXACT_BITS = 7.9
_BAR = 1000  # steps of a job's progress bar


def register(
    registry: JobRegistry, open_catalogue: Callable[[], Catalogue], resources: Resources, open_gates: OpenGates
) -> None:
    """Register the kind `quantize`, one job at a time, because it uses all cores."""

    def run(options: QuantizeOptions, control: JobContext) -> Quantized:
        with closing(open_catalogue()) as catalogue:
            if options.download:
                return make_from_hub(catalogue, options, control, resources, open_gates)
            return make(catalogue, options, control, resources, open_gates=open_gates)

    registry.register(JobKind.QUANTIZE, run, read=options_of)


def options_of(params: dict[str, Any]) -> QuantizeOptions:
    """The options of a job, including one recorded by an earlier version: `source`, and locks as lists."""
    if "source" in params:
        locks = [dict(zip(("pattern", "type", "at_least"), lock, strict=True)) for lock in params.get("locks", ())]
        fields = {k: v for k, v in params.items() if k not in {"source", "plan_only"}}
        params = {**fields, "model": params["source"], "locks": locks}
    return msgspec.convert(params, learned(QuantizeOptions))


def predict(
    catalogue: Catalogue, options: QuantizeOptions, resources: Resources, task_sets: "TaskSets | None" = None
) -> QuantizeReport:
    """The likely plan from the cached measurements of this model; measures and writes nothing.

    `task_sets` are the tasks that a gate may name. Without a goal, the plan is the largest one; its
    `smallest_bytes` is the minimum size for a request.

    Raises: InputFault, EnvironmentFault: the model or the options.
    """
    from engine.job_kinds.quantize.calibration_text import texts_of
    from engine.job_kinds.quantize.request import build_request
    from quantize.job.execute import quantize as run_quantize

    source = source_of(catalogue, options.model)
    gate = gate_task(options, task_sets or {})
    if not options.goals:
        options = msgspec.structs.replace(options, budget_bytes=max(source.num_bytes, 1))
    out = target_of(source, options, catalogue.paths)
    with texts_of(options) as with_texts:
        preview = build_request(with_texts, source.path, out, catalogue.paths, resources, gate, plan_only=True)
        return run_quantize(preview, lambda _: None, lambda: False)


def make(
    catalogue: Catalogue,
    options: QuantizeOptions,
    control: JobContext,
    resources: Resources,
    executor: Executor = HERE,
    open_gates: "OpenGates | None" = None,
) -> Quantized:
    """Create the file and add it to the library; `model` is empty if the source is a file outside the library.

    `open_gates` creates the service for a gate's tasks. If a gate rejects the file, `path` is empty too, and no
    file exists.

    Raises: InputFault, EnvironmentFault, the quantizer's errors; Cancelled and Paused from `control`.
    """
    from engine.job_kinds.quantize.calibration_text import texts_of
    from engine.job_kinds.quantize.request import build_request
    from quantize.job.execute import quantize as run_quantize

    source = source_of(catalogue, options.model)
    out = require_disk(source, options, catalogue.paths)
    judge, gate = None, None
    if options.gate is not None and open_gates is not None:
        gates = open_gates()
        tasks = gates.tasks(options.gate)
        judge, gate = gates.judge(tasks), tasks.task
    elif options.gate is not None:
        raise InputFault("This program cannot run tasks on a model.", "gate")

    def progress(at: Progress) -> None:
        partial = {"usable": at.usable} if at.usable else {}
        control.report(at.phase, round(_BAR * (at.share or 0.0)), _BAR, "", at.detail, partial, at.left_s)

    try:
        with texts_of(options) as with_texts:
            request = build_request(with_texts, source.path, out, catalogue.paths, resources, gate)
            stopping, finishing = (lambda: control.stopping), (lambda: control.finishing)
            report = run_quantize(
                request, progress, stopping, executor, judge, keeps=finishing, on_publish=control.store
            )
    except Cancelled:
        control.check()  # a pause, not a cancellation
        raise
    if report.out is None:
        return Quantized(model="", path="", report=report)
    if options.out is None:
        model_id = catalogue.add(out, Origin(kind="built")).id
    else:  # files made from a library model are added too, wherever they are stored
        model_id = "" if Path(options.model).is_absolute() else catalogue.add(out).id
    return Quantized(model=model_id, path=str(out), report=report)


def make_from_hub(
    catalogue: Catalogue, options: QuantizeOptions, control: JobContext, resources: Resources, open_gates: OpenGates
) -> Quantized:
    """Download the model that `options` names, unless it is here, and make the file from it.

    A download that was interrupted continues. Unless the source is kept, it is deleted when the file is complete or
    the job is cancelled. Raises: the errors of `pull` and `make`.
    """
    name = parse_hub_name(options.model)
    source = original_here(catalogue, name)
    try:
        if source is None:
            task = PullTask(model=name.repo, quant=name.label, revision=name.revision, original=name.label is None)
            source = pull(catalogue, task, control)
        quantized = make(
            catalogue,
            msgspec.structs.replace(options, model=source.id),
            control,
            resources,
            open_gates=open_gates,
        )
    except Cancelled:
        if source is not None and not options.keep_source:
            Trash(catalogue).delete(source)
        raise
    if quantized.path and not options.keep_source:
        Trash(catalogue).delete(source)
    return quantized


def original_here(catalogue: Catalogue, name: HubName) -> ModelEntry | None:
    """The model of the library that was downloaded under this name, or None."""
    for entry in catalogue.entries():
        if entry.state != "online" or entry.origin.kind != "hub" or entry.origin.repo != name.repo:
            continue
        stem = stem_of(entry.path.name)
        labels = {entry.details.quantization, from_file_name(stem), stem}
        if entry.format == "safetensors":
            labels = {"safetensors"}
        if name.label in labels or (name.label is None and is_original(entry)):
            return entry
    return None


def is_original(entry: ModelEntry) -> bool:
    """Whether the model is exact enough to make another file from it."""
    return entry.format == "safetensors" or entry.bits_per_weight >= EXACT_BITS


def gate_task(options: QuantizeOptions, task_sets: "TaskSets") -> "GateTask | None":
    """The task of the options' gate; None without one. Raises: InputFault: no such task. EnvironmentFault."""
    if options.gate is None:
        return None
    from engine.job_kinds.quantize.tasks import task_set

    return task_set(options.gate, task_sets).task


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a file: its path, its title for users, and the base name of files made from it."""

    path: Path
    title: str
    stem: str
    num_bytes: int


def source_of(catalogue: Catalogue, model: str) -> Source:
    """The model with that name, or the file or folder at an absolute path.

    Raises: ModelNotFound; EnvironmentFault: it is not available now.
    """
    path = Path(model)
    if path.is_absolute() and path.exists():
        if path.is_dir():
            return Source(path=path, title=folder_name(path), stem=folder_name(path), num_bytes=0)
        return Source(path=path, title=path.name, stem=path.stem, num_bytes=path.stat().st_size)
    entry = named_model(catalogue, model)
    if entry.state != "online":
        raise EnvironmentFault(f"{entry.id} is {entry.state}: {entry.problem or 'its drive is not connected'}")
    return Source(path=entry.path, title=entry.name, stem=entry.id, num_bytes=entry.size_bytes)


def target_of(source: Source, options: QuantizeOptions, paths: Paths) -> Path:
    """Path of the output file. Raises: InputFault: not an absolute path."""
    from engine.job_kinds.quantize.request import in_library

    if options.out is None:
        return in_library(source.stem, options, paths)
    return whole_path(options.out, "out")


def require_disk(source: Source, options: QuantizeOptions, paths: Paths) -> Path:
    """Path of the output file; creates the library's folder for it. Raises: InputFault; CannotWrite."""
    from engine.job_kinds.quantize.request import make_room

    out = target_of(source, options, paths)
    make_room(out, paths)
    return out
