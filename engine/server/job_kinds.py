"""Registers the job kinds of a server: download, quantize, convert, measure, move the models folder."""

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core.paths import Paths
from engine.job_kinds import speech_model
from engine.job_kinds.measure import work as measuring
from engine.job_kinds.measure.work import BenchService
from engine.job_kinds.quantize import convert as converting
from engine.job_kinds.quantize import job as quantizing
from engine.jobs.jobs import JobRegistry
from engine.library import models_folder, work
from engine.library.catalogue import Catalogue
from engine.message_catalog import sentence
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer

if TYPE_CHECKING:
    from engine.job_kinds.quantize.gate import GateService
    from engine.job_kinds.quantize.tasks import TaskSets
    from engine.library.hub.plan import FitEstimator
    from engine.pool.loaded_model import LoadedModel
    from engine.server.state import ServerState


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
    speech_model.register(jobs)
    bench_service = BenchService(paths, placer, admission, catalogue)
    measuring.register(jobs, bench_service)
    return bench_service


def register_move(state: "ServerState") -> None:
    """Register the move of the models folder, which waits for this server's models and jobs."""

    def readers(folder: Path) -> "list[LoadedModel]":
        return [m for m in state.pool.models if Path(m.settings.path).is_relative_to(folder)]

    def rests(model: "LoadedModel") -> bool:
        return model.idle or not (model.ready or model.loading or model.waiting)

    def busy(folder: Path) -> bool:
        active = (job.kind for job in state.jobs.jobs() if job.state in {"queued", "running"})
        return bool(models_folder.WRITERS & set(active)) or not all(map(rests, readers(folder)))

    def unload(folder: Path) -> bool:
        for model in filter(rests, readers(folder)):
            assert state.loop is not None  # jobs start with the first request
            asyncio.run_coroutine_threadsafe(state.pool.unload(model.id), state.loop).result()
        return bool(readers(folder))

    switch = models_folder.Switch(busy=busy, keep=state.keep_models_folder, unload=unload)
    models_folder.register(state.jobs, partial(Catalogue, state.paths, scan=False), switch)


def _gates(paths: Paths, placer: Placer, admission: MemoryAdmission, task_sets: "TaskSets") -> "GateService":
    from engine.job_kinds.quantize.gate import GateService

    return GateService(placer, admission, paths.cache / "quantize", task_sets)


def _fit_estimator(placer: Placer) -> "FitEstimator":
    from engine.placement.hub_shape import fit_estimator

    return fit_estimator(placer, sentence)
