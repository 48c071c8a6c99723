"""/tessera/v1/quantize: what making a model fit would give, and the job that does it."""

import asyncio

import msgspec
from fastapi import APIRouter, Request

from engine.api.jobs import Job, JobKind
from engine.api.quantizing import PlanForecast, QuantizeRequest, QuantizeSketch
from engine.library.lookup import require
from engine.quantize_jobs.job import predict
from engine.quantize_jobs.options import QuantizeOptions
from engine.server.state import server_state
from engine.server.typed import TypedRoute

router = APIRouter(prefix="/tessera/v1/quantize", tags=["quantize"], route_class=TypedRoute)


@router.post("/plan")
async def plan(request: Request, body: QuantizeRequest) -> QuantizeSketch:
    """The likely plan and what the job would take; nothing is measured or written."""
    state = server_state(request)
    catalogue = await state.models.catalogue()
    report = await asyncio.to_thread(predict, catalogue, _options(body), state.placer.resources)
    entry = await asyncio.to_thread(require, catalogue, body.model)
    context = None
    if entry.format == "gguf":
        settings = state.models.settings(entry)
        context = await asyncio.to_thread(state.placer.context_beside, settings, report.plan.file_bytes)
    forecast = PlanForecast(**msgspec.structs.asdict(report.forecast), largest_context=context)
    return QuantizeSketch(**{**msgspec.structs.asdict(report), "forecast": forecast})


@router.post("", status_code=202)
async def start(request: Request, body: QuantizeRequest) -> Job:
    """Start the job (see /tessera/v1/jobs); its result names the new model and carries the report."""
    state = server_state(request)
    options = _options(body)
    options.check()
    entry = await asyncio.to_thread(require, await state.models.catalogue(), body.model)
    return state.jobs.start(JobKind.QUANTIZE, entry.name, msgspec.to_builtins(options))


def _options(body: QuantizeRequest) -> QuantizeOptions:
    """The engine's own record."""
    given = msgspec.structs.asdict(body)
    given["locks"] = tuple((lock.pattern, lock.type, lock.at_least) for lock in body.locks)
    return QuantizeOptions(source=given.pop("model"), **given)
