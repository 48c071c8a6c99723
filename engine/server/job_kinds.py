"""Registers the job kinds of a server: download, quantize, convert, measure."""

from functools import partial
from typing import TYPE_CHECKING

from engine.core.paths import Paths
from engine.job_kinds.measure import work as measuring
from engine.job_kinds.measure.work import BenchService
from engine.job_kinds.quantize import convert as converting
from engine.job_kinds.quantize import job as quantizing
from engine.jobs.jobs import JobRegistry
from engine.library import work
from engine.library.catalogue import Catalogue
from engine.message_catalog import sentence
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer

if TYPE_CHECKING:
    from engine.job_kinds.quantize.gate import GateService
    from engine.job_kinds.quantize.tasks import TaskSets
    from engine.library.hub.plan import FitEstimator


def register(
    jobs: JobRegistry,
    paths: Paths,
    placer: Placer,
    admission: MemoryAdmission,
    named_tasks: "TaskSets | None" = None,
) -> BenchService:
    """Register all job kinds and return the benchmark service. `named_tasks` can be used by a quality gate."""
    catalogue = partial(Catalogue, paths, scan=False)
    work.register(jobs, catalogue, partial(_fit_estimator, placer))
    quantizing.register(
        jobs, catalogue, placer.resources, partial(_gates, paths, placer, admission, named_tasks or {})
    )
    converting.register(jobs, catalogue)
    bench_service = BenchService(paths, placer, admission, catalogue)
    measuring.register(jobs, bench_service)
    return bench_service


def _gates(paths: Paths, placer: Placer, admission: MemoryAdmission, named: "TaskSets") -> "GateService":
    from engine.job_kinds.quantize.gate import GateService

    return GateService(placer, admission, paths.cache / "quantize", named)


def _fit_estimator(placer: Placer) -> "FitEstimator":
    from engine.placement.hub_shape import fit_estimator

    return fit_estimator(placer, sentence)
