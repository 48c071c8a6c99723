"""Rounds the tensors of a plan: with one child process per thread, or in the executor's workers."""

from collections.abc import Iterator

import numpy as np

from quantize.child import HERE, Executor, Task
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder
from quantize.gptq.tensors import TensorsRequest, packed_path
from quantize.job.portable_plan import PlanFile
from quantize.measure.run import (
    ensure_moments,
    hessians_fit_on_disk,
    in_passes,
    joined,
    parts_in_memory,
    share_out,
)
from quantize.measurements import CancelCheck, Measured, OnProgress, PackedTensor, RoundRequest
from quantize.native.source_weights import SourceWeights
from quantize.types import QuantPlan, Rounding

# Cost per weight in addition to the matrix products, in multiply-adds. Measured: docs/dev/quantization.md, "What it
# costs".
_COLUMN_WORK = 400.0


def types_to_round(
    plan: QuantPlan, rounding: Rounding, measured: Measured | None, plan_file: PlanFile | None
) -> dict[str, str]:
    """The tensors of a plan with their types, except those that ggml rounds while the file is written."""
    changed = {t.name: t.qtype for t in plan.tensors if t.qtype != t.source_qtype}
    if plan_file is not None:
        return {n: q for n, q in changed.items() if n not in plan_file.plain}
    measured_types = measured.evidence.damage(rounding) if measured and rounding != Rounding.STOCK else {}
    return {n: q for n, q in changed.items() if n in plan.exact or q in measured_types.get(n, {})}


def round_plan(
    request: RoundRequest, on_progress: OnProgress, cancelled: CancelCheck, executor: Executor = HERE
) -> Iterator[PackedTensor]:
    """Round every tensor of a request, then yield them in file order, memory-mapped from the cache.

    Reuses results of earlier runs. Call it in a process that may memory-map the source. Raises: Cancelled. BadFile:
    weights that are not finite (the error names the tensor). ChildDied. DiskFull.
    """
    folder = WorkFolder.open(request.measure)
    source = SourceWeights(request.measure.source)
    names = [n for n in source.names if n in request.types]
    pending = [n for n in names if not packed_path(folder, request, n).exists()]
    rounding = _Rounding(request, source, pending, on_progress, cancelled, executor)
    with folder.swept():
        if request.rounding == Rounding.STOCK:
            rounding.round(pending)
        else:
            rounding.by_subset(folder)
    for name in names:
        qtype = request.types[name]
        matrices, rows, _ = source.shape(name)
        blocks = np.memmap(packed_path(folder, request, name), np.uint8, "r").reshape(matrices * rows, -1)
        yield PackedTensor(name=name, qtype=qtype, blocks=blocks)


class _Rounding:
    """Rounds tensors independently of each other."""

    def __init__(
        self,
        request: RoundRequest,
        source: SourceWeights,
        pending: list[str],
        on_progress: OnProgress,
        cancelled: CancelCheck,
        executor: Executor,
    ) -> None:
        self._request, self._source, self._pending = request, source, pending
        self._on_progress, self._cancelled, self._executor = on_progress, cancelled, executor
        self._total, self._done = float(sum(source.info(n).num_values for n in pending)), 0.0

    def by_subset(self, folder: WorkFolder) -> None:
        """Process tensor groups in batches whose Hessians fit in memory."""
        measure, pending = self._request.measure, self._pending
        groups = folder.groups() or ()
        keep = hessians_fit_on_disk(folder, groups)
        grouped = {name for g in groups for name in g.members}
        self.round([n for n in pending if n not in grouped])
        needed = [g for g in groups if set(g.members) & set(pending)]
        with in_passes(folder, needed, measure.memory_bytes) as passes:
            for subset, of_these in passes:
                ensure_moments(measure, folder, subset, self._on_progress, self._cancelled, of_these)
                self.round([n for g in subset for n in g.members if n in pending])
                if not keep:
                    for group in subset:
                        folder.drop_moments(group)

    def round(self, names: list[str]) -> None:
        """Round tensors; the Hessians they need must be in the cache.

        Those of wide matrices take gigabytes, so fewer processes round such matrices if memory is short.
        """
        most = self._executor.parts or self._request.measure.threads
        has_hessians = self._request.rounding != Rounding.STOCK
        widths = {name: self._source.shape(name)[2] for name in names}
        fitting = dict.fromkeys(widths.values(), most)
        if has_hessians and not self._executor.parts:
            fitting = {width: parts_in_memory(most, width) for width in fitting}
        by_parts: dict[int, list[SharedInputGroup]] = {}
        cost = {}
        for name, width in widths.items():
            unit = SharedInputGroup(name=name, members=(name,), width=width)
            by_parts.setdefault(fitting[width], []).append(unit)
            cost[name] = self._source.info(name).num_values * (width + _COLUMN_WORK)
        order = {name: i for i, name in enumerate(names)}
        for parts, units in sorted(by_parts.items()):
            tasks: list[Task] = [
                ("round", TensorsRequest(round=self._request, names=tuple(sorted(part, key=order.__getitem__))))
                for part in share_out(units, parts, cost)
            ]
            report = joined(self._on_progress, self._total, self._done)
            self._executor.run(tasks, report, self._cancelled)
            self._done += sum(self._source.info(unit.name).num_values for unit in units)
