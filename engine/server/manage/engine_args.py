"""/tessera/v1/models/{id}/engine_args: llama.cpp's own arguments for a model beside Tessera's settings."""

import asyncio

import msgspec
from fastapi import APIRouter, Request

from engine.api.models import EngineArgsRequest, ModelEngineArgs
from engine.core.errors import InputFault
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because
from engine.placement.load_settings import require_sound, with_engine_args
from engine.runner.engine_args import NO_ARGS, EngineArgs
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import ServerState, server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/models/{model:path}/engine_args")
async def engine_args(request: Request, model: str) -> ModelEngineArgs:
    """The raw engine arguments of a model."""
    models = server_state(request).models
    entry = await models.entry(model)
    return ModelEngineArgs(id=entry.id, engine_args=models.user_settings.get(entry.id).engine_args)


@router.put("/models/{model:path}/engine_args")
async def set_engine_args(request: Request, model: str, body: EngineArgsRequest) -> ModelEngineArgs:
    """Set them; none at all goes back to Tessera's choice. They come into force as load settings do.

    llama.cpp tries them first without allocating anything; what it refuses is not kept.
    """
    state = server_state(request)
    entry = await state.models.entry(model)
    needed = await keep_engine_args(state, entry, body.engine_args)
    applies = await state.pool.settings_changed(entry.id)
    unloaded = applies == "now" and state.pool.get(entry.id) is None
    return ModelEngineArgs(
        id=entry.id, engine_args=body.engine_args, needed_bytes=needed, unloaded=unloaded, applies=applies
    )


async def keep_engine_args(state: ServerState, entry: ModelEntry, args: EngineArgs) -> int | None:
    """Try arguments and keep them; returns the bytes a load would need with them.

    Raises: InputFault.
    """
    require_sound(entry, args)
    engine = state.models.user_settings.get(entry.id).engine
    if engine is not None and args != NO_ARGS:
        raise InputFault(because("args_of_engine", engine=engine, model=entry.id), "engine_args")
    needed = None
    if args != NO_ARGS:
        _, before = await state.models.unplaced(entry.id)
        wanted = with_engine_args(state.models.usual_settings(entry), args)
        wanted = msgspec.structs.replace(wanted, draft_path=before.draft_path)
        overrides = state.models.overrides_for(entry)
        placed = await asyncio.to_thread(state.placer.placement, entry.id, wanted, overrides, exact=False)
        await asyncio.to_thread(state.placer.try_engine_args, placed.settings)
        needed = placed.need.total_bytes
    await asyncio.to_thread(state.placer.history.remember, entry.id, {})  # what worked was tried without them
    state.models.user_settings.change(entry.id, engine_args=args)
    return needed
