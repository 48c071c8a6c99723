"""GET /api/v0/models: LM Studio's model list, from which coding agents read the effective context length."""

import time
from typing import Any

from fastapi import APIRouter, Request

from engine.library.types import ModelEntry
from engine.server.openai.models import LIST_S
from engine.server.state import ServerState, server_state

router = APIRouter()


@router.get("/api/v0/models")
async def list_models(request: Request) -> dict[str, Any]:
    """All models with their state and context length."""
    state = server_state(request)
    until = time.monotonic() + LIST_S
    entries = [e for e in await state.models.entries() if e.servable and e.state == "online"]
    data = [await describe(e, state, until) for e in entries]
    return {"object": "list", "data": data}


@router.get("/api/v0/models/{model:path}")
async def show_model(request: Request, model: str) -> dict[str, Any]:
    """One model."""
    state = server_state(request)
    return await describe(await state.models.entry(model), state)


async def describe(entry: ModelEntry, state: ServerState, until: float | None = None) -> dict[str, Any]:
    """A model with LM Studio's fields."""
    patience_s = None if until is None else max(0.0, until - time.monotonic())
    loaded = state.pool.get(entry.id)
    ready = loaded is not None and loaded.ready
    kind = "embeddings" if {"embedding", "rerank"} & set(entry.capabilities) else "llm"
    answer: dict[str, Any] = {
        "id": entry.id,
        "object": "model",
        "type": "vlm" if kind == "llm" and "vision" in entry.capabilities else kind,
        "publisher": (entry.origin.repo or "local").partition("/")[0],
        "arch": entry.architecture,
        "compatibility_type": entry.format,
        "quantization": entry.details.quantization,
        "state": "loaded" if ready else "not-loaded",
        "max_context_length": await state.contexts.largest(entry.id, patience_s),
        "capabilities": ["tool_use"] if "tools" in entry.capabilities else [],
    }
    if ready and loaded is not None and loaded.facts is not None:
        answer["loaded_context_length"] = loaded.facts.n_ctx
    return answer
