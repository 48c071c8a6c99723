"""/tessera/v1/loaded and models/{id}/load: what is loaded, loading and unloading by hand, pins and aliases."""

import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from engine.errors import InputFault, ModelNotFound
from engine.pool import LoadedModel
from engine.server.body import Body, openapi_body, parse, parse_or
from engine.server.sse import while_connected
from engine.server.state import ServerState, server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"])


class LoadRequest(Body):
    """POST /tessera/v1/models/{id}/load. `ttl_s` 0 keeps the model until it is unloaded.

    `draft` names a smaller model of the same vocabulary that guesses ahead, from now on; empty: none does.
    """

    pinned: bool | None = None
    draft: Annotated[str, Field(max_length=200)] | None = None
    ttl_s: Annotated[float, Field(ge=0, le=1e9)] | None = None


class AliasRequest(Body):
    """PUT /tessera/v1/aliases/{alias}."""

    model: Annotated[str, Field(min_length=1, max_length=200)]


def describe(model: LoadedModel) -> dict[str, Any]:
    """The state of one model of the pool."""
    facts = model.facts
    died = model.runner.died if model.runner is not None else None
    state = "loaded" if model.ready else "loading" if model.loading else "failed" if died else "not-loaded"
    return {
        "id": model.id,
        "state": state,
        "progress": round(model.progress, 3),
        "phase": model.phase if model.loading else None,
        "waiting": model.waiting,
        "active": model.runner.active_requests if model.runner is not None and model.ready else 0,
        "pinned": model.pinned,
        "ttl_s": model.ttl_s,
        "expires_in_s": model.expires_in_s,
        "idle_s": round(time.monotonic() - model.last_used, 1),
        "pid": model.runner.pid if model.runner is not None and model.ready else None,
        "n_ctx": facts.n_ctx if facts is not None else model.settings.n_ctx,
        "backend": facts.backend if facts is not None else None,
        "notes": list(model.notes),
        "draft": Path(model.settings.draft_path).name if model.settings.draft_path else None,
        "mtp": model.settings.mtp,
        "died": died.reason if died is not None and not model.ready else None,
    }


@router.get("/loaded")
async def loaded_models(request: Request) -> dict[str, Any]:
    """Models that are loaded, loading, or whose runner died."""
    return {"models": [describe(m) for m in server_state(request).pool.known]}


@router.post("/models/{model:path}/load", openapi_extra=openapi_body(LoadRequest, required=False))
async def load(request: Request, model: str) -> dict[str, Any]:
    """Load a model now, and say how long it stays."""
    body = await parse_or(request, LoadRequest)
    state = server_state(request)
    if body.draft is not None:
        entry = await state.models.entry(model)
        await state.models.choose_draft(entry, body.draft or None)
        await _reload_with(state, entry.id)
    found = await while_connected(request, state.pool.acquire(model))
    if body.pinned is not None:
        found.pinned = body.pinned
    if body.ttl_s is not None:
        found.ttl_s = body.ttl_s or None
    return describe(found)


async def _reload_with(state: ServerState, model_id: str) -> None:
    """A model that is loaded with another draft model is loaded again, unless somebody uses it now."""
    _, _, settings = await state.models.resolve(model_id)
    loaded = state.pool.get(model_id)
    if loaded is not None and loaded.ready and loaded.settings.draft_path != settings.draft_path:
        if not loaded.idle:
            raise InputFault(f"{model_id} is in use; its draft model changes when it is loaded next.", "draft")
        await state.pool.unload(model_id)


@router.post("/models/{model:path}/unload")
async def unload(request: Request, model: str) -> dict[str, Any]:
    """Unload a model; its running requests end with an error."""
    state = server_state(request)
    entry = await state.models.entry(model)
    return {"id": entry.id, "unloaded": await state.pool.unload(entry.id)}


@router.get("/aliases")
async def aliases(request: Request) -> dict[str, Any]:
    """Other names of models."""
    return {"aliases": server_state(request).models.aliases.all()}


@router.put("/aliases/{alias:path}", openapi_extra=openapi_body(AliasRequest))
async def set_alias(request: Request, alias: str) -> dict[str, Any]:
    """Let a name, or a pattern such as `claude-*`, stand for a model."""
    state = server_state(request)
    body = await parse(request, AliasRequest)
    entry = await state.models.entry(body.model)
    state.models.aliases.set(alias, entry.id)
    state.pool.forget_names()
    return {"alias": alias.casefold(), "model": entry.id}


@router.delete("/aliases/{alias:path}", status_code=204, response_class=Response)
async def remove_alias(request: Request, alias: str) -> None:
    """Forget an alias."""
    state = server_state(request)
    if not state.models.aliases.remove(alias):
        raise ModelNotFound(alias, tuple(state.models.aliases.all())[:8])
    state.pool.forget_names()
