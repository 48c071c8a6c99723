"""/tessera/v1/quantize: predict and run the quantization of a model."""

import asyncio

import msgspec
from fastapi import APIRouter, Request

from engine.api.jobs import Job, JobKind
from engine.api.quantizing import PlanForecast, QuantizeOptions, QuantizeSketch
from engine.job_kinds.quantize.job import gate_task, original_here, predict, require_disk, source_of
from engine.library.hub.file_selection import parse_hub_name
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/quantize", tags=["quantize"], route_class=TypedRoute)


@router.post("/plan")
async def plan(request: Request, body: QuantizeOptions) -> QuantizeSketch:
    """The likely plan and the cost of the job; nothing is measured or written."""
    state = server_state(request)
    catalogue = await state.models.catalogue()
    report = await asyncio.to_thread(predict, catalogue, body, state.placer.resources, state.named_tasks)
    entry = await asyncio.to_thread(catalogue.get, body.model)
    context = None
    if entry is not None and entry.format == "gguf":
        settings = state.models.settings(entry)
        context = await asyncio.to_thread(state.placer.context_beside, settings, report.plan.file_bytes)
    forecast = PlanForecast(**msgspec.structs.asdict(report.forecast), largest_context=context)
    return QuantizeSketch(**{**msgspec.structs.asdict(report), "forecast": forecast})


@router.post("", status_code=202)
async def start(request: Request, body: QuantizeOptions) -> Job:
    """Start the job (see /tessera/v1/jobs); its result names the new model and has the report."""
    state = server_state(request)
    body.check()
    await asyncio.to_thread(gate_task, body, state.named_tasks)
    catalogue = await state.models.catalogue()
    if body.download:
        name = parse_hub_name(body.model)
        if await asyncio.to_thread(original_here, catalogue, name) is not None:
            body = msgspec.structs.replace(body, keep_source=True)  # the user downloaded it for another purpose
        return state.jobs.start(JobKind.QUANTIZE, name.repo.rpartition("/")[2], body)
    source = await asyncio.to_thread(source_of, catalogue, body.model)
    await asyncio.to_thread(require_disk, source, body, catalogue.paths)
    return state.jobs.start(JobKind.QUANTIZE, source.title, body)
