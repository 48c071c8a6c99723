"""/tessera/v1/bench and /tessera/v1/autotune: start measurements as jobs and read their results."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request

from engine.api.jobs import Job, JobKind
from engine.api.measuring import (
    BenchRequest,
    BenchResult,
    BenchResults,
    CompareRequest,
    QuickTestRequest,
    Shapes,
    SpeedCurve,
    SubjectRequest,
    TuneRequest,
)
from engine.core.errors import InputFault
from engine.job_kinds.bench.shapes import SHAPES
from engine.job_kinds.measure.target import Subject
from engine.job_kinds.measure.work import (
    BenchOptions,
    BenchService,
    CompareOptions,
    QuickTestOptions,
    Task,
    TuneOptions,
)
from engine.job_kinds.quantize.job import source_of
from engine.message_catalog.reasons import because
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["measuring"], route_class=TypedRoute)


@router.get("/bench")
async def results(
    request: Request, model: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> BenchResults:
    """Measurements on this computer, newest first; `model` selects those of one model."""
    reports = await asyncio.to_thread(_bench_service(request).results.all, model)
    listed = [BenchResult(**msgspec.structs.asdict(report), id=i) for i, report in enumerate(reports)]
    return BenchResults(results=tuple(listed[::-1][:limit]))


@router.get("/bench/shapes")
async def shapes() -> Shapes:
    """Model shapes that can be measured without a file."""
    return Shapes(shapes=tuple(SHAPES))


@router.get("/bench/curve")
async def curve(request: Request, model: Annotated[str, Query(min_length=1, max_length=4096)]) -> SpeedCurve:
    """The model's speed over prompt lengths: forecast, measured points, and the speed expected from both.

    Empty lists: nothing forecasts it, such as for models of another server or on several devices.
    """
    state = server_state(request)
    entry, settings = await state.models.unplaced(model)
    overrides = state.models.overrides_for(entry)
    return await asyncio.to_thread(state.placer.speed_curve, entry.id, settings, overrides)


@router.post("/bench", status_code=202)
async def bench(request: Request, body: BenchRequest) -> Job:
    """Start a measurement (see /tessera/v1/jobs); the job's result has the report."""
    options = BenchOptions(
        subject=_subject(body),
        lengths=body.lengths,
        parallel=body.parallel,
        repeats=body.repeats,
        tokens=body.tokens,
        threads=body.threads,
    )
    return _start(request, f"Measure {options.subject.name}", Task(what="bench", bench=options))


@router.post("/bench/types", status_code=202)
async def price_types(request: Request) -> Job:
    """Start measuring the cost of each quantization type on this computer; the planner uses the results."""
    return _start(request, "Measure quantization types", Task(what="prices"))


@router.post("/bench/places", status_code=202)
async def compare(request: Request, body: CompareRequest) -> Job:
    """Start measuring a model on each device and backend that could run it; later loads use the fastest.

    Places that were measured before are not measured again. Takes about 20 seconds, plus loading.
    """
    service, entry = _bench_service(request), await server_state(request).models.entry(body.model)
    await asyncio.to_thread(service.unmeasured, entry.id)  # errors belong to this request, not to the job
    options = CompareOptions(model=entry.id)
    return _start(request, f"Compare devices for {entry.id}", Task(what="compare", compare=options))


@router.post("/quantize/quick-test", status_code=202)
async def quick_test(request: Request, body: QuickTestRequest) -> Job:
    """Start measuring what rounding all of a model's weights to 4 bits loses; later plans use the result.

    Takes seconds for small models and about a minute per 8 billion parameters; the model is read once.
    """
    catalogue = await server_state(request).models.catalogue()
    source = await asyncio.to_thread(source_of, catalogue, body.model)
    if source.path.is_dir():
        raise InputFault(because("quick_test_of_folder", title=source.title), "model")
    options = QuickTestOptions(model=str(source.path))
    return _start(request, f"Quick test of {source.title}", Task(what="quick_test", quick_test=options))


@router.post("/autotune", status_code=202)
async def autotune(request: Request, body: TuneRequest) -> Job:
    """Start a search for the settings with the most tokens per second or per joule; later loads use them.

    Pausing keeps the results so far.
    """
    options = TuneOptions(subject=_subject(body), lengths=body.lengths, limit_s=body.limit_s, goal=body.goal)
    title = f"Tune {options.subject.name}" + (" for energy" if body.goal == "energy" else "")
    return _start(request, title, Task(what="tune", tune=options))


def _subject(body: SubjectRequest) -> Subject:
    """The model to measure. Raises: InputFault: none or several are given."""
    subject = Subject(model=body.model, shape=body.shape, like=body.like, hub=body.hub, mix=body.type)
    subject.check()
    if body.shape is not None and body.shape not in SHAPES:
        raise InputFault(f"There is no shape {body.shape!r}. Known: {', '.join(SHAPES)}.", "shape")
    return subject


def _start(request: Request, title: str, task: Task) -> Job:
    _bench_service(request)
    return server_state(request).jobs.start(JobKind.MEASURE, title, task)


def _bench_service(request: Request) -> BenchService:
    bench_service = server_state(request).bench_service
    if bench_service is None:
        raise InputFault(because("server_does_not_measure"), "server")
    return bench_service
