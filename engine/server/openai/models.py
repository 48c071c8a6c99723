"""GET /v1/models."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from engine.library.types import ModelEntry
from engine.server.state import ServerState, server_state

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """Every model this server can load."""
    state = server_state(request)
    data = [_describe(e, state) for e in await state.models.entries() if e.servable and e.state == "online"]
    answer: dict[str, Any] = {"object": "list", "data": data}
    if "anthropic-version" in request.headers:
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        answer |= {"has_more": False, **ends}
    return answer


@router.get("/v1/models/{model:path}")
async def show_model(request: Request, model: str) -> dict[str, Any]:
    """One model."""
    state = server_state(request)
    return _describe(await state.models.entry(model), state)


def _describe(entry: ModelEntry, state: ServerState) -> dict[str, Any]:
    """OpenAI's fields, and the context the model really gets here, under the names clients look for."""
    loaded = state.pool.get(entry.id)
    ready = loaded is not None and loaded.ready
    context = loaded.facts.n_ctx if loaded and loaded.facts else state.models.settings(entry).n_ctx
    return {
        "id": entry.id,
        "object": "model",
        "created": int(entry.added_at),
        "owned_by": entry.origin.repo or "local",
        "name": entry.name,
        "type": "model",  # this and the next two are what Anthropic's clients read
        "display_name": entry.name,
        "created_at": datetime.fromtimestamp(entry.added_at, UTC).isoformat().replace("+00:00", "Z"),
        "context_length": context,
        "max_model_len": context,
        "state": "loaded" if ready else "not-loaded",
        "capabilities": list(entry.capabilities),
        "meta": {"n_ctx": context, "n_ctx_train": entry.context_train, "n_params": entry.details.n_params},
    }
