"""/tessera/v1/devices, /ledger, /power, /models/{id}/placement and /pin: hardware, memory, power and placement."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request

from devices.doctor import build_summary, diagnose
from devices.types import Machine
from engine.api import machine as api
from engine.api.machine import PowerLimits, PowerState
from engine.jobs.jobs import JobKind, JobRegistry
from engine.placement.model_settings import check_kv_type
from engine.placement.pins import check_pin, missing_pins
from engine.placement.placer import Placer
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["machine"], route_class=TypedRoute)
RECENT_AUDITS = 50


@router.get("/devices")
async def devices(request: Request, *, fresh: bool = False) -> api.Machine:
    """Devices, memory, backends and findings; `fresh` probes every backend again."""
    placer = _placer(request)
    machine = await asyncio.to_thread(placer.machine.full, fresh=fresh)
    pins = await asyncio.to_thread(placer.resources.settings.pins)
    findings = (*diagnose(machine), *missing_pins(machine, pins))
    facts = msgspec.structs.asdict(machine) | {"findings": findings}
    return api.Machine(**facts, build=build_summary(machine))


@router.get("/devices/live")
async def live(request: Request) -> api.LiveDevices:
    """Utilization, temperature and power of each device since the last call; null: not reported."""
    devices = await asyncio.to_thread(_placer(request).machine.live)
    return api.LiveDevices(devices=tuple(devices))


@router.post("/models/{name:path}/pin")
async def pin(request: Request, name: str, body: api.PinRequest) -> api.Pinned:
    """Pin a model to a device. An idle model is unloaded, so that its next request loads it there."""
    state, placer = server_state(request), _placer(request)
    entry = await state.models.entry(name)
    if body.device is not None:
        machine = await asyncio.to_thread(placer.machine.full)
        check_pin(machine, body.device)
    await asyncio.to_thread(placer.pin, entry.id, body.device)
    applies = await state.pool.settings_changed(entry.id)
    unloaded = applies == "now" and state.pool.get(entry.id) is None
    return api.Pinned(id=entry.id, device=body.device, unloaded=unloaded, applies=applies)


@router.get("/canary")
async def canary(request: Request) -> api.CanaryState:
    """How many rows of answers were compared with the CPU's results, the cost, and the errors found."""
    canary_service = server_state(request).canary
    return canary_service.state() if canary_service is not None else api.CanaryState(enabled=False)


@router.get("/ledger")
async def ledger(request: Request) -> api.LedgerState:
    """Memory pools, predicted and measured memory of each loaded model, and the last audits."""
    return await asyncio.to_thread(_ledger, _placer(request))


@router.get("/models/{name:path}/placement")
async def placement(
    request: Request,
    name: str,
    ctx: Annotated[int | None, Query(ge=1, le=1 << 24)] = None,
    parallel: Annotated[int | None, Query(ge=1, le=128)] = None,
    gpu_layers: Annotated[int | None, Query(ge=-1, le=10_000)] = None,
    threads: Annotated[int | None, Query(ge=1, le=1024)] = None,
    kv: str | None = None,
    device: str | None = None,
    *,
    saved: bool = True,
) -> api.PlacementAnswer:
    """The model's placement and its reasons, memory needs, and options if it does not fit.

    `saved=false` ignores the user's load settings and uses only the parameters of this request.
    """
    check_kv_type(kv, "kv")
    state = server_state(request)
    entry, settings = await state.models.unplaced(name)
    placer = _placer(request)
    requested = {
        "n_ctx": ctx,
        "n_parallel": parallel,
        "n_gpu_layers": gpu_layers,
        "n_threads": threads,
        "type_k": kv,
        "device": device,
    }
    limits = {field: value for field, value in requested.items() if value is not None}
    usual = state.models.overrides_for(entry, saved=saved)
    overrides = msgspec.structs.replace(usual, **limits)
    placed = await asyncio.to_thread(lambda: placer.choose(entry.id, settings, overrides, exact=True))
    report = await asyncio.to_thread(placer.report, entry.id, placed)
    model = state.pool.get(entry.id)
    loaded = model.placement if model is not None and model.ready else None
    return api.PlacementAnswer(
        placement=placed,
        fit=report,
        loaded=loaded,
        pinned=placer.resources.settings.get(entry.id).device,
        comparing=_comparison_of(state.jobs, entry.id),
    )


def _comparison_of(jobs: JobRegistry, model: str) -> str | None:
    """Id of the running job that compares the places for this model."""
    running = (job for job in jobs.jobs() if job.kind is JobKind.MEASURE and job.state in {"queued", "running"})
    return next((job.id for job in running if (job.params.get("compare") or {}).get("model") == model), None)


def _placer(request: Request) -> Placer:
    return server_state(request).placer


def _ledger(placer: Placer) -> api.LedgerState:
    machine = placer.machine.full()
    registry = placer.ledger
    reservations = registry.reservations()
    audits = registry.audits.all()[-RECENT_AUDITS:]
    return api.LedgerState(
        pools=registry.pools(machine),
        available_bytes={d.id: registry.available(d.id, machine) for d in machine.devices if d.kind != "npu"},
        other_programs_bytes=_others(machine, registry.ram_in_use(machine)),
        reservations=tuple(reservations),
        audits=audits,
    )


def _others(machine: Machine, ours: int) -> int | None:
    ram = machine.memory
    if ram.total_bytes is None or ram.available_bytes is None:
        return None
    return max(0, ram.total_bytes - ram.available_bytes - ours)


@router.get("/power")
async def power(request: Request) -> PowerState:
    """The power limits and, if a meter is available, the current power."""
    return server_state(request).power.state()


@router.put("/power")
async def set_power(request: Request, body: PowerLimits) -> PowerState:
    """Replace the limits; omitted fields are unlimited. The limits are stored for the next start."""
    service = server_state(request).power
    service.set(body)
    return service.state()
