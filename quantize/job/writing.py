"""Writing the files of a job, with what takes long to round made first, where the executor has room for it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from quantize.child import HERE, Executor, run_task
from quantize.job.phases import Phases
from quantize.job.round_plan import round_plan
from quantize.job.write_model import WriteRequest, plain_types
from quantize.measurements import MeasureRequest, RoundRequest
from quantize.types import Rounding


class Writing:
    """`measure` says how a file of weights is measured, whose cache has what rounding needs."""

    def __init__(self, phases: Phases, executor: Executor, measure: Callable[[Path], MeasureRequest]) -> None:
        self._phases, self._executor, self._measure = phases, executor, measure

    def packed(
        self, source: Path, types: dict[str, str], imatrix: Path | None, rounding: Rounding
    ) -> dict[str, Path]:
        """Finished blocks by tensor; the rest is rounded while the file is written."""
        if not types:
            return {}
        task = RoundRequest(measure=self._measure(source), types=types, rounding=rounding, imatrix=imatrix)
        with self._phases.phase("round"):
            tensors = list(round_plan(task, self._phases.on_progress, self._phases.cancelled, self._executor))
        return {t.name: Path(str(getattr(t.blocks, "filename", ""))) for t in tensors}

    def written(self, task: WriteRequest) -> Path:
        """The file that was asked for."""
        if self._executor is not HERE:  # what writing would round by itself
            packed = self.packed(task.source, plain_types(task), task.imatrix, Rounding.STOCK)
            task = msgspec.structs.replace(task, packed={**packed, **task.packed})
        with self._phases.phase("write"):
            run_task("write", task, self._phases.on_progress, self._phases.cancelled)
        return task.out
