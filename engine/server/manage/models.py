"""/tessera/v1/loaded and models/{id}/load: state, loading and unloading of models, their settings and aliases."""

import asyncio
import time
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.api.models import (
    Alias,
    Aliases,
    AliasRequest,
    EffectiveValue,
    EngineArgsRequest,
    EngineRequest,
    LoadedModel,
    LoadedModels,
    LoadOptions,
    LoadRequest,
    ModelEngine,
    ModelEngineArgs,
    ModelLoadSettings,
    ModelSampling,
    SamplingRequest,
    Unloaded,
)
from engine.core.errors import AliasNotFound, InputFault
from engine.core.sampling import Chosen, Layer, choose
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because
from engine.placement.load_settings import require_sound, with_engine_args
from engine.pool.loaded_model import LoadedModel as PooledModel
from engine.runner.engine_args import NO_ARGS, EngineArgs
from engine.runner.load_limits import growth_limit
from engine.server.models import ServedModels
from engine.server.msgspec_routes import TypedRoute
from engine.server.sse import while_connected
from engine.server.state import ServerState, server_state

# /tessera/v1/models/{id}/sampling: effective sampling values, their sources, and the user's values.

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/models/{model:path}/sampling")
async def model_sampling(request: Request, model: str) -> ModelSampling:
    """The effective and the recommended sampling values of a model."""
    models = server_state(request).models
    return describe_sampling(models, await models.entry(model))


@router.put("/models/{model:path}/sampling")
async def set_model_sampling(request: Request, model: str, body: SamplingRequest) -> ModelSampling:
    """Set the user's sampling values for a model; an empty set restores the recommended values."""
    models = server_state(request).models
    entry = await models.entry(model)
    models.user_settings.set_sampling(entry.id, body.values)
    return describe_sampling(models, entry)


def describe_sampling(models: ServedModels, entry: ModelEntry) -> ModelSampling:
    """The effective, recommended and user values of a model."""
    recommended = models.recommended_for(entry)
    usual, plain = recommended.layers(None), recommended.plain
    return ModelSampling(
        id=entry.id,
        user=models.user_settings.get(entry.id).sampling,
        in_force=decided(choose({}, usual)),
        recommended=decided(choose({}, _without_user(usual))),
        in_force_without_reasoning=decided(choose({}, plain)),
        recommended_without_reasoning=decided(choose({}, _without_user(plain))),
    )


def _without_user(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.source != "user")


def decided(chosen: Chosen) -> dict[str, EffectiveValue]:
    """The chosen sampling values in the format of the management routes."""
    return {
        name: EffectiveValue(value=getattr(chosen.params, name), source=source, link=chosen.links.get(name, ""))
        for name, source in chosen.sources.items()
    }


# /tessera/v1/models/{id}/engine_args: llama.cpp arguments for a model, in addition to Tessera's settings.


@router.get("/models/{model:path}/engine_args")
async def engine_args(request: Request, model: str) -> ModelEngineArgs:
    """The engine arguments of a model."""
    models = server_state(request).models
    entry = await models.entry(model)
    return ModelEngineArgs(id=entry.id, engine_args=models.user_settings.get(entry.id).engine_args)


@router.put("/models/{model:path}/engine_args")
async def set_engine_args(request: Request, model: str, body: EngineArgsRequest) -> ModelEngineArgs:
    """Set the engine arguments; an empty set removes them. They take effect as load settings do.

    llama.cpp checks them first without allocating memory; arguments that it rejects are not stored.
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
    """Check and store engine arguments; return the bytes that a load with them needs.

    Raises: InputFault.
    """
    require_sound(entry, args)
    engine = state.models.user_settings.get(entry.id).engine
    if engine is not None and args != NO_ARGS:
        raise InputFault(because("args_of_engine", engine=engine, model=entry.id), "engine_args")
    needed = None
    if args != NO_ARGS:
        _, before = await state.models.unplaced(entry.id)
        settings = with_engine_args(state.models.usual_settings(entry), args)
        settings = msgspec.structs.replace(settings, draft_path=before.draft_path)
        overrides = state.models.overrides_for(entry)
        placed = await asyncio.to_thread(state.placer.placement, entry.id, settings, overrides, exact=False)
        await asyncio.to_thread(state.placer.try_engine_args, placed.settings)
        needed = placed.need.total_bytes
    # stored fallbacks were measured without these arguments
    await asyncio.to_thread(state.placer.history.remember, entry.id, {})
    state.models.user_settings.change(entry.id, engine_args=args)
    return needed


def describe(model: PooledModel) -> LoadedModel:
    """The state of one model of the pool."""
    facts = model.facts
    died = model.runner.died if model.runner is not None else None
    return LoadedModel(
        id=model.id,
        state="loaded" if model.ready else "loading" if model.loading else "failed" if died else "not-loaded",
        progress=round(model.progress, 3),
        phase=model.phase if model.loading else None,
        waiting=model.waiting,
        active=model.runner.active_requests if model.runner is not None and model.ready else 0,
        pinned=model.pinned,
        ttl_s=model.ttl_s,
        expires_in_s=model.expires_in_s,
        idle_s=round(time.monotonic() - model.last_used, 1),
        pid=model.runner.pid if model.runner is not None and model.ready else None,
        n_ctx=facts.n_ctx if facts is not None else model.settings.n_ctx,
        max_ctx=facts.max_ctx if facts is not None else 0,
        backend=facts.backend if facts is not None else None,
        notes=tuple(model.notes),
        draft=Path(model.settings.draft_path).name if model.settings.draft_path else None,
        mtp=model.settings.mtp,
        engine_args=model.settings.engine_args,
        died=died.reason if died is not None and not model.ready else None,
        pending=model.pending,
    )


@router.get("/loaded")
async def loaded_models(request: Request) -> LoadedModels:
    """Models that are loaded, loading, or whose runner died."""
    return LoadedModels(models=tuple(describe(m) for m in server_state(request).pool.models))


@router.post("/models/{model:path}/load")
async def load(request: Request, model: str, body: LoadRequest) -> LoadedModel:
    """Load a model now; optionally set its settings and time to live."""
    state = server_state(request)
    if body.keep_alive == 0:
        raise InputFault("keep_alive 0 unloads a model at once: POST …/unload does that.", "keep_alive")
    if body.draft is not None:
        entry = await state.models.entry(model)
        await state.models.choose_draft(entry, body.draft or None)
        await state.pool.settings_changed(entry.id)
    if body.engine_args is not None:
        entry = await state.models.entry(model)
        await keep_engine_args(state, entry, body.engine_args)
        await state.pool.settings_changed(entry.id)
    if body.lasting:
        await _store_options(state, await state.models.entry(model), body.lasting)
    waiting = state.pool.get((await state.models.entry(model)).id)
    if waiting is not None and waiting.pending and waiting.ready:
        return describe(waiting)  # it is reloaded after its last running response
    tokens = body.tokens
    loaded = await while_connected(request, state.pool.acquire(model, min_ctx=tokens or 0))
    limit = growth_limit(loaded.settings)
    if tokens is not None and loaded.facts is not None and limit > loaded.facts.n_ctx:
        await while_connected(request, state.pool.grow(loaded, min(tokens, limit), exact=True))
    if body.pinned is not None:
        loaded.pinned = body.pinned
    if body.idle_s is not None:
        loaded.ttl_s = body.idle_s or None
    return describe(loaded)


async def _store_options(state: ServerState, entry: ModelEntry, options: dict[str, int | str]) -> None:
    """Store load options, which take effect as load settings do."""
    before = state.models.user_settings.get(entry.id).load_options
    now = msgspec.structs.replace(before, **options)
    if now != before:
        state.models.user_settings.set_load(entry.id, now, entry.context_train)
        await state.pool.settings_changed(entry.id)


@router.get("/models/{model:path}/load-settings")
async def load_settings(request: Request, model: str) -> ModelLoadSettings:
    """The user's load settings of a model, and their limits."""
    models = server_state(request).models
    return _load_settings(models, await models.entry(model))


@router.put("/models/{model:path}/load-settings")
async def set_load_settings(request: Request, model: str, body: LoadOptions) -> ModelLoadSettings:
    """Set the load settings of a model; omitted fields are chosen by Tessera.

    An idle model is unloaded, and its next request loads it with them. A busy model is reloaded after its last
    running response; only a larger context takes effect immediately.
    """
    state = server_state(request)
    entry = await state.models.entry(model)
    state.models.user_settings.set_load(entry.id, body, entry.context_train)
    loaded = state.pool.get(entry.id)
    if loaded is not None:
        loaded.pinned = body.keep_loaded
    applies = await state.pool.settings_changed(entry.id)
    unloaded = applies == "now" and loaded is not None and state.pool.get(entry.id) is None
    settings = _load_settings(state.models, entry)
    return msgspec.structs.replace(settings, unloaded=unloaded, applies=applies)


@router.put("/models/{model:path}/engine")
async def set_engine(request: Request, model: str, body: EngineRequest) -> ModelEngine:
    """Select an added program that serves a model, or Tessera's engine. An idle model is unloaded."""
    state = server_state(request)
    entry = await state.models.entry(model)
    await state.models.choose_engine(entry, body.engine)
    loaded = state.pool.get(entry.id)
    applies = await state.pool.settings_changed(entry.id)
    unloaded = applies == "now" and loaded is not None and state.pool.get(entry.id) is None
    return ModelEngine(id=entry.id, engine=body.engine, unloaded=unloaded, applies=applies)


def _load_settings(models: ServedModels, entry: ModelEntry) -> ModelLoadSettings:
    user = models.user_settings.get(entry.id).load_options
    return ModelLoadSettings(id=entry.id, user=user, context_train=entry.context_train)


@router.post("/models/{model:path}/unload")
async def unload(request: Request, model: str) -> Unloaded:
    """Unload a model; its running requests end with an error."""
    state = server_state(request)
    if state.pool.get(model) is None:  # a loaded model may have been removed from the library
        model = (await state.models.known(model)).id
    return Unloaded(id=model, unloaded=await state.pool.unload(model))


@router.get("/aliases")
async def aliases(request: Request) -> Aliases:
    """All aliases of models."""
    return Aliases(aliases=server_state(request).models.user_settings.aliases())


@router.put("/aliases/{alias:path}")
async def set_alias(request: Request, alias: str, body: AliasRequest) -> Alias:
    """Create an alias: a name, or a pattern such as `claude-*`."""
    state = server_state(request)
    entry = await state.models.add_alias(alias, body.model)
    state.pool.forget_names()
    return Alias(alias=alias.casefold(), model=entry.id)


@router.delete("/aliases/{alias:path}", status_code=204, response_class=Response)
async def remove_alias(request: Request, alias: str) -> None:
    """Delete an alias."""
    state = server_state(request)
    if not state.models.user_settings.remove_alias(alias):
        raise AliasNotFound(alias)
    state.pool.forget_names()
