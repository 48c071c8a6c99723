"""Measures a model: Hessians, rounding errors and sensitivities. Runs in child processes and caches all results."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import psutil

from devices.msgspec_lock import learned
from quantize.child import HERE, Executor, run_task
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, file_sha256, read_json, write_json
from quantize.measure.collect_hessians import MomentsRequest, write_importance
from quantize.measure.hessians import partition
from quantize.measure.probe_groups import SCORED_STEP, alphas, probe_units, representatives
from quantize.measure.rounding_error import ErrorsRequest, filled, has_errors, load_errors, measured_types
from quantize.measure.sensitivity import AlphaRequest, Swapped, swap_errors
from quantize.measurements import (
    CancelCheck,
    LossMeasurements,
    Measured,
    MeasureRequest,
    OnProgress,
    Progress,
    TensorEvidence,
)

# Hessians stay on disk for the following rounding if they need at most this fraction of the free space.
_KEEP_FRAC = 0.5
_PLAIN_FRACTION = 0.1  # cost of a group without GPTQ, relative to one with GPTQ
# Memory for each value of a Hessian while it is damped and factored: four copies of 8 bytes and two of 4. Measured:
# docs/dev/quantization.md, "What it costs".
FACTOR_BYTES = 40
_FREE_FRAC = 0.8  # of the free memory; the chunks of weights take some of the remainder


class Passes(msgspec.Struct, frozen=True):
    """One of several passes over the text: the folder for streams, and the first group of the next pass."""

    streams: Path | None = None
    then: str = ""


ALONE = Passes()


def measure(
    request: MeasureRequest, on_progress: OnProgress, cancelled: CancelCheck, executor: Executor = HERE
) -> Measured:
    """Measure a model, or read earlier measurements from the cache.

    No native code runs in this process. Each finished part is stored immediately, so an interrupted run continues
    from there. The executor's workers measure rounding errors.

    Raises: Cancelled. BadFile, BadActivations, TextTooShort, Unreadable: invalid input. ChildDied: native code
    crashed. DiskFull.
    """
    cached = measured_before(request)
    if cached is not None:
        return cached
    folder = WorkFolder.open(request)
    with folder.swept():
        groups = _surveyed(request, folder, on_progress, cancelled)
        _measure_errors(request, folder, groups, on_progress, cancelled, executor)
        write_importance(folder, groups, request.calibration.name)
        swaps = run_task("alpha", AlphaRequest(measure=request), on_progress, cancelled)
    evidence = _assemble(request, folder, groups, msgspec.convert(swaps, learned(Swapped)))
    write_json(_evidence_file(request, folder), evidence)
    return Measured(evidence=evidence, imatrix=folder.imatrix, folder=folder.path)


def measured_before(request: MeasureRequest) -> Measured | None:
    """The cached measurements of a model if they are complete; measures nothing. Raises: Unreadable."""
    folder = WorkFolder.open(request)
    cached = read_json(_evidence_file(request, folder))
    if cached is None or not folder.imatrix.exists():
        return None
    return Measured(
        evidence=msgspec.convert(cached, learned(LossMeasurements)), imatrix=folder.imatrix, folder=folder.path
    )


def measure_inputs(request: MeasureRequest, on_progress: OnProgress, cancelled: CancelCheck) -> Path:
    """Collect only Hessians, for an existing plan, and return the path of the importance matrix.

    Raises: same as `measure`.
    """
    folder = WorkFolder.open(request)
    with folder.swept():
        _collect_all(request, folder, on_progress, cancelled)
    return folder.imatrix


def _collect_all(
    request: MeasureRequest, folder: WorkFolder, on_progress: OnProgress, cancelled: CancelCheck
) -> None:
    groups = _surveyed(request, folder, on_progress, cancelled)
    with in_passes(folder, groups, request.memory_bytes) as passes:
        for subset, of_these in passes:
            unseen = [g for g in subset if g.seen and folder.diagonals(g) is None]
            ensure_moments(request, folder, unseen, on_progress, cancelled, of_these)
    write_importance(folder, groups, request.calibration.name)


def _surveyed(
    request: MeasureRequest, folder: WorkFolder, on_progress: OnProgress, cancelled: CancelCheck
) -> tuple[SharedInputGroup, ...]:
    if folder.groups() is None:
        run_task("survey", request, on_progress, cancelled)
    return folder.groups() or ()


def never_measured(request: MeasureRequest) -> bool:
    """Whether the cache has no measurements of a model. Raises: Unreadable."""
    return WorkFolder.open(request).groups() is None


def evidence_key(request: MeasureRequest) -> str:
    """Cache key of a model's measurements: it depends on the types, the tier and the compared positions."""
    facts = (request.tier, request.probe_tokens, SCORED_STEP, sorted(request.qtypes))
    return sha256(msgspec.json.encode(facts)).hexdigest()[:16]


def _evidence_file(request: MeasureRequest, folder: WorkFolder) -> Path:
    return folder.path / f"evidence-{evidence_key(request)}.json"


def ensure_moments(
    request: MeasureRequest,
    folder: WorkFolder,
    groups: list[SharedInputGroup],
    on_progress: OnProgress,
    cancelled: CancelCheck,
    passes: Passes = ALONE,
) -> None:
    """Collect the Hessians of those groups that have none in the cache, in one pass over the text."""
    missing = tuple(g.name for g in groups if g.seen and folder.moments(g) is None)
    if missing:
        task = MomentsRequest(measure=request, groups=missing, then=passes.then, streams=passes.streams)
        run_task("moments", task, on_progress, cancelled)


@contextmanager
def in_passes(
    folder: WorkFolder, groups: Iterable[SharedInputGroup], memory_bytes: int
) -> Iterator[Iterator[tuple[list[SharedInputGroup], Passes]]]:
    """Split groups into subsets whose Hessians fit in memory, with one pass per subset."""
    subsets = partition(groups, memory_bytes)
    firsts = [next((g.name for g in s if g.seen), "") for s in subsets]
    if len(subsets) < 2:
        yield ((s, ALONE) for s in subsets)
        return
    with folder.scratch() as streams:
        nexts = [next(filter(None, firsts[i + 1 :]), "") for i in range(len(subsets))]
        yield ((s, Passes(streams, then)) for s, then in zip(subsets, nexts, strict=True))


def hessians_fit_on_disk(folder: WorkFolder, groups: tuple[SharedInputGroup, ...]) -> bool:
    """Whether the disk has space for all Hessians at the same time."""
    needed = sum(g.moment_bytes for g in groups)
    return needed <= _KEEP_FRAC * (shutil.disk_usage(folder.path).free + needed)


def joined(on_progress: OnProgress, total: float, before: float = 0.0) -> Callable[[int, Progress], None]:
    """Combine the progress of several child processes; `total` is all work, of which `before` was done earlier."""
    done: dict[int, float] = {}
    left_s: dict[int, float] = {}

    def report(index: int, progress: Progress) -> None:
        done[index] = progress.done
        left_s[index] = progress.left_s or 0.0
        slowest = max(left_s.values()) or None
        on_progress(
            msgspec.structs.replace(progress, done=before + sum(done.values()), total=total, left_s=slowest)
        )

    return report


def parts_in_memory(parts: int, width: int) -> int:
    """How many processes can factor a Hessian of this width at the same time in the free memory, at least one."""
    free_bytes = _FREE_FRAC * psutil.virtual_memory().available
    return max(1, min(parts, int(free_bytes) // (FACTOR_BYTES * width**2)))


def share_out(groups: list[SharedInputGroup], parts: int, cost: dict[str, float]) -> list[tuple[str, ...]]:
    """Divide groups into at most `parts` lists of about the same cost, most expensive first."""
    lists: list[list[str]] = [[] for _ in range(max(1, min(parts, len(groups))))]
    loads = [0.0] * len(lists)
    for group in sorted(groups, key=lambda g: -cost[g.name]):
        lightest = loads.index(min(loads))
        lists[lightest].append(group.name)
        loads[lightest] += cost[group.name]
    return [tuple(part) for part in lists if part]


def _measure_errors(
    request: MeasureRequest,
    folder: WorkFolder,
    groups: tuple[SharedInputGroup, ...],
    on_progress: OnProgress,
    cancelled: CancelCheck,
    executor: Executor,
) -> None:
    keep = hessians_fit_on_disk(folder, groups)
    by_gptq = set(representatives(groups, request.tier).values())
    with in_passes(folder, groups, request.memory_bytes) as passes:
        for subset, of_these in passes:
            unseen = [g for g in subset if g.seen and folder.diagonals(g) is None]
            pending = [g for g in subset if not has_errors(folder, g, request.qtypes, gptq=g.name in by_gptq)]
            groups_needed = pending + [g for g in unseen if g not in pending]
            ensure_moments(request, folder, groups_needed, on_progress, cancelled, of_these)
            cost = {
                g.name: len(g.members) * g.width**2 * (1.0 if g.name in by_gptq else _PLAIN_FRACTION)
                for g in pending
            }
            widest = max((g.width for g in pending if g.name in by_gptq), default=1)
            most = executor.parts or parts_in_memory(request.threads, widest)
            parts = share_out(pending, most, cost) if pending else []
            report = joined(on_progress, float(len(pending)))
            names = tuple(sorted(by_gptq))
            tasks = [ErrorsRequest(measure=request, groups=p, by_gptq=names) for p in parts]
            executor.run([("errors", task) for task in tasks], report, cancelled)
            if not keep:
                for group in subset:
                    folder.drop_moments(group)


def _assemble(
    request: MeasureRequest, folder: WorkFolder, groups: tuple[SharedInputGroup, ...], swapped: Swapped
) -> LossMeasurements:
    anchored = swap_errors(folder, groups, request)
    units = probe_units(groups, request.tier, anchored)
    errors = {g.name: load_errors(folder, g) for g in groups}
    alpha_by_unit = alphas(units, swapped.kld, anchored)
    unit_of = {name: unit.name for unit in units for name in unit.members}
    model_of = representatives(groups, request.tier)
    members_of = {g.name: g.members for g in groups}
    tensors = []
    for group in groups:
        names = measured_types(group.width, request.qtypes)
        model = model_of[group.name]
        for name, like in zip(sorted(group.members), sorted(members_of[model]), strict=True):
            whole = filled(errors[group.name][name], errors[model][like])
            picked = {r: {q: by_type[q] for q in names} for r, by_type in whole.items()}
            tensors.append(TensorEvidence(name=name, group=unit_of[name], alpha=alpha_by_unit[name], errors=picked))
    return LossMeasurements(
        tier=request.tier,
        source_sha256=folder.source_sha256,
        calibration_sha256=folder.calibration_sha256,
        imatrix_sha256=file_sha256(folder.imatrix),
        tokens=read_json(folder.path / "tokens.json"),
        probe_tokens=swapped.tokens,
        tensors=tuple(tensors),
    )
