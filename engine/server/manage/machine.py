"""/tessera/v1/devices, /ledger, /models/{id}/placement and /pin: the machine, its memory, and where models run."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from devices.as_json import to_json
from devices.doctor import build_summary, diagnose
from devices.memory import Reservation
from devices.types import Machine
from engine.dispatch.placer import Placer
from engine.dispatch.types import Wish
from engine.errors import InputFault
from engine.runner.llama.limits import KV_TYPES
from engine.server.body import Body, openapi_body, parse
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["machine"])
RECENT_AUDITS = 50


class PinBody(Body):
    """POST /tessera/v1/models/{id}/pin: a device, backend or `device/backend`; null lets Tessera choose again."""

    device: Annotated[str, Field(min_length=1, max_length=100)] | None


@router.get("/devices")
async def devices(request: Request, *, fresh: bool = False) -> dict[str, Any]:
    """Devices, memory, backends and findings; `fresh` tries every backend again."""
    placer = _placer(request)
    machine = await asyncio.to_thread(placer.machine.full, fresh=fresh)
    return {**to_json(machine), "findings": to_json(list(diagnose(machine))), "build": build_summary(machine)}


@router.get("/devices/live")
async def live(request: Request) -> dict[str, Any]:
    """How busy, warm and hungry each device is since the call before; null where the system does not tell."""
    return {"devices": to_json(list(await asyncio.to_thread(_placer(request).machine.live)))}


@router.post("/models/{name:path}/pin", openapi_extra=openapi_body(PinBody))
async def pin(request: Request, name: str) -> dict[str, Any]:
    """Keep a model on a device. An idle model is unloaded, so that its next request loads it there."""
    body = await parse(request, PinBody)
    state, placer = server_state(request), _placer(request)
    entry = await state.models.entry(name)
    if body.device is not None:
        machine = await asyncio.to_thread(placer.machine.full)
        _check_pin(machine, body.device)
    await asyncio.to_thread(placer.memory.set_pin, entry.id, body.device)
    loaded = state.pool.get(entry.id)
    unloaded = bool(loaded and loaded.idle) and await state.pool.unload(entry.id)
    return {"id": entry.id, "device": body.device, "unloaded": unloaded}


@router.get("/ledger")
async def ledger(request: Request) -> dict[str, Any]:
    """Pools, what each loaded model was predicted and measured to hold, and the last audits."""
    return await asyncio.to_thread(_ledger, _placer(request))


@router.get("/models/{name:path}/placement")
async def placement(
    request: Request,
    name: str,
    ctx: Annotated[int | None, Query(ge=1, le=1 << 24)] = None,
    parallel: Annotated[int | None, Query(ge=1, le=128)] = None,
    kv: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Where the model would run now and why, what it needs, and what to give up if that does not fit."""
    if kv is not None and kv not in KV_TYPES:
        raise InputFault(f"{kv!r} is not a cache type; use one of {', '.join(KV_TYPES)}.", "kv")
    state = server_state(request)
    model_id, _, settings = await state.models.resolve(name)
    placer = _placer(request)
    wish = Wish(n_ctx=ctx, n_parallel=parallel, kv_type=kv, device=device)
    placed = await asyncio.to_thread(placer.placement, model_id, settings, wish)
    report = await asyncio.to_thread(placer.report, model_id, placed)
    loaded = placer.placed(model_id) if state.pool.get(model_id) else None
    return {
        "placement": {**msgspec.to_builtins(placed), **msgspec.to_builtins(placed.settings)},
        "fit": msgspec.to_builtins(report),
        "loaded": msgspec.to_builtins(loaded) if loaded else None,
        "pinned": placer.memory.pin(model_id),
    }


def _check_pin(machine: Machine, wanted: str) -> None:
    """Raises: InputFault: no device of this machine goes by that name."""
    names: set[str] = set()
    for device in machine.devices:
        backends = {r.backend for r in device.runtimes if r.state == "usable"} | ({"cpu"} & {device.kind})
        names |= {device.id, device.kind, *backends, *(f"{device.id}/{backend}" for backend in backends)}
    if wanted.lower() not in {name.lower() for name in names}:
        raise InputFault(f"{wanted!r} is not a device here; use one of {', '.join(sorted(names))}.", "device")


def _placer(request: Request) -> Placer:
    placer = server_state(request).placer
    if placer is None:
        raise InputFault("This server runs without a placement service.", None)
    return placer


def _ledger(placer: Placer) -> dict[str, Any]:
    machine = placer.machine.full()
    book = placer.ledger
    held = book.reservations()
    ours = sum(r.measured.pss_bytes if r.measured else 0 for r in held)
    return {
        "pools": [to_json(pool) for pool in book.pools(machine)],
        "available_bytes": {d.id: book.available(d.id, machine) for d in machine.devices if d.kind != "npu"},
        "other_programs_bytes": _others(machine, ours),
        "reservations": [{**_reservation(r), "parts": placer.parts(r.owner)} for r in held],
        "audits": [{**to_json(a), "error_frac": a.error_frac} for a in book.audits.all()[-RECENT_AUDITS:]],
    }


def _others(machine: Machine, ours: int) -> int | None:
    ram = machine.memory
    if ram.total_bytes is None or ram.available_bytes is None:
        return None
    return max(0, ram.total_bytes - ram.available_bytes - ours)


def _reservation(reservation: Reservation) -> dict[str, Any]:
    return {
        "owner": reservation.owner,
        "drawn": dict(reservation.drawn),
        "predicted_bytes": reservation.predicted_bytes,
        "devices": {device: amount.total_bytes for device, amount in reservation.amounts.items()},
        "measured": to_json(reservation.measured) if reservation.measured else None,
        "buffers": dict(reservation.buffers),
        "pid": reservation.pid,
    }
