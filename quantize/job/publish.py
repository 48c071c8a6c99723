"""Rounds and writes files, publishes one under its final name, and holds the best file so far of a running job."""

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from quantize.child import HERE, Executor, run_task
from quantize.files.measurement_folder import file_sha256
from quantize.files.output_file import Output
from quantize.files.provenance import report_path
from quantize.job.phases import JobPhases
from quantize.job.plan_file import NO_PLAN, plan_of, same_or_not, write_plan
from quantize.job.report import provenance_of, write_report
from quantize.job.request import QuantizeReport, QuantizeRequest
from quantize.job.round_plan import round_plan
from quantize.job.source import Identity, check_unchanged
from quantize.job.write_model import WriteRequest, plain_types, stamp
from quantize.measurements import CancelCheck, MeasureRequest, OnProgress, RoundRequest
from quantize.types import Rounding


def packed(
    task: RoundRequest, on_progress: OnProgress, cancelled: CancelCheck, executor: Executor
) -> dict[str, Path]:
    """Round tensors; return the file of each tensor's finished blocks."""
    tensors = round_plan(task, on_progress, cancelled, executor)
    return {t.name: Path(str(getattr(t.blocks, "filename", ""))) for t in tensors}


class Writing:
    """Rounds tensors and writes files.

    `measure` returns the measure request of a weights file; its cache holds the Hessians.
    """

    def __init__(self, phases: JobPhases, executor: Executor, measure: Callable[[Path], MeasureRequest]) -> None:
        self._phases, self._executor, self._measure = phases, executor, measure

    def packed(
        self,
        source: Path,
        types: dict[str, str],
        imatrix: Path | None,
        rounding: Rounding,
        exact: Collection[str] = (),
    ) -> dict[str, Path]:
        """Packed blocks by tensor; the other tensors are rounded while the file is written."""
        measure = self._measure(source)
        blocks: dict[str, Path] = {}
        lossy = {n: q for n, q in types.items() if n not in exact}
        lossless = {n: q for n, q in types.items() if n in exact}
        for task in (
            RoundRequest(measure=measure, types=lossy, rounding=rounding, imatrix=imatrix),
            RoundRequest(measure=measure, types=lossless, rounding=Rounding.STOCK, exact=True),
        ):
            if task.types:
                with self._phases.phase("round"):
                    blocks |= packed(task, self._phases.on_progress, self._phases.cancelled, self._executor)
        return blocks

    def written(self, task: WriteRequest) -> Path:
        if self._executor is not HERE:  # round in the executor what `write` would round itself
            blocks = self.packed(task.source, plain_types(task), task.imatrix, Rounding.STOCK)
            task = msgspec.structs.replace(task, packed={**blocks, **task.packed})
        with self._phases.phase("write"):
            run_task("write", task, self._phases.on_progress, self._phases.cancelled)
        return task.out


def publish(
    request: QuantizeRequest,
    output: Output,
    report: QuantizeReport,
    chosen: Path,
    types: dict[str, str],
    rounded: Collection[str],
    source: Identity,
) -> QuantizeReport:
    """Stamp the `chosen` file, check it and give it its final name. Returns the completed report.

    Raises: SourceChanged: the source has changed. BadFile, InvalidOption: as in `Output.publish`, or the file
    differs from the one that the followed plan describes. OSError.
    """
    plan, exports = request.plan, request.export_plan
    provenance = plan.provenance if plan and report.shipped == "ours" else provenance_of(report, request.tier)
    stamp(chosen, provenance)
    digest = file_sha256(chosen) if plan or exports else ""
    if plan and report.shipped == "ours":
        note = same_or_not(plan, digest, force=request.force)
        report = msgspec.structs.replace(report, warnings=(*report.warnings, note))
    exported = plan_of(request, report, rounded, provenance, digest) if exports else None
    if exports and not exported:
        report = msgspec.structs.replace(report, warnings=(*report.warnings, NO_PLAN))
    check_unchanged(request.source, source)
    output.publish(chosen, types)
    write_report(report_path(output.path), report)
    if exports and exported:
        write_plan(exports, exported)
    return report


class FileSoFar(msgspec.Struct, frozen=True):
    """A complete file of a running job, with the report that it gets if the job is stopped now."""

    path: Path
    types: dict[str, str]
    report: QuantizeReport

    def publish(self, request: QuantizeRequest, output: Output, source: Identity) -> QuantizeReport:
        """Give the file its final name. Raises: same as `publish`."""
        request = msgspec.structs.replace(request, export_plan=None)
        if self.report.stopped == "unmeasured":
            request = msgspec.structs.replace(request, tier="instant")
        report = msgspec.structs.replace(
            self.report, out=str(output.path), file_bytes=self.path.stat().st_size, shipped="ours"
        )
        return publish(request, output, report, self.path, self.types, (), source)
