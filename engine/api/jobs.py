"""/tessera/v1/jobs: long-running jobs and the result type of each kind."""

from typing import TypeVar

import msgspec

from devices.msgspec_lock import learned
from engine.job_kinds.quantize.options import Quantized
from engine.jobs.job_types import ENDED, Fault, Job, JobKind, JobState, ModelMade, Progress
from engine.placement.measurements import Comparison, Point, Report, TunableSettings, TuneReport, TypePrices
from quantize.types import QuickLoss

T = TypeVar("T")


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/jobs: every job, newest first."""

    jobs: tuple[Job, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a `measure` job: a measurement, a settings search, type costs, a comparison, or a quick test."""

    report: Report | None = None
    reports: tuple[TuneReport, ...] = ()
    prices: TypePrices | None = None
    comparison: Comparison | None = None
    quick_loss: QuickLoss | None = None


class BenchPartial(msgspec.Struct, frozen=True, kw_only=True):
    """Partial results of a measurement that is still running (`progress.partial`)."""

    model: str = ""
    points: tuple[Point, ...] = ()


def result_of(job: Job, kind: type[T]) -> T | None:
    """The result of a finished job, or None. Raises: msgspec.ValidationError: the result is not a `kind`."""
    return None if job.result is None else msgspec.convert(job.result, learned(kind))


def partial_of(job: Job) -> BenchPartial:
    """Partial results of a running measurement."""
    return msgspec.convert(job.progress.partial, learned(BenchPartial))
