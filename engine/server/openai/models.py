"""GET /v1/models."""

import time
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request

from engine.core.sampling import choose
from engine.library.default_model import default_model, demos
from engine.library.types import ModelEntry
from engine.server.anthropic import errors as anthropic
from engine.server.anthropic_tools import SERVER_TOOLS
from engine.server.routing import ERROR_SHAPE, EarlyRouter
from engine.server.state import ServerState, server_state

router = EarlyRouter()
# Time that the list waits for context sizes not yet computed; later lists include them.
LIST_S: Final = 1.0


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """All models that this server can load; `default` marks the one for requests without a model name."""
    _answer_as_asked(request)
    state = server_state(request)
    entries = await state.models.entries()
    toys, chosen = demos(entries), default_model(entries, {m.id for m in state.pool.loaded})
    until = time.monotonic() + LIST_S
    data = [
        {**await _describe(e, state, until), "demo": e.id in toys, "default": e is chosen}
        for e in entries
        if e.servable and e.state == "online"
    ]
    by_id = {described["id"]: described for described in data}
    for alias, model in state.models.user_settings.plain_aliases().items():
        if model in by_id and alias not in by_id:
            fields = {"id": alias, "name": alias, "display_name": alias, "alias_of": model}
            data.append({**by_id[model], **fields, "default": False})
    answer: dict[str, Any] = {"object": "list", "data": data}
    if "anthropic-version" in request.headers:
        data[:] = [{**described, **_as_anthropic(described)} for described in data]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        answer |= {"has_more": False, **ends}
    return answer


@router.get("/v1/models/{model:path}")
async def show_model(request: Request, model: str) -> dict[str, Any]:
    """One model."""
    if not model:  # the list's address with a slash at its end
        return await list_models(request)
    _answer_as_asked(request)
    state = server_state(request)
    described = await _describe(await state.models.entry(model), state)
    return {**described, **_as_anthropic(described)} if "anthropic-version" in request.headers else described


def _answer_as_asked(request: Request) -> None:
    """Use Anthropic's error format for Anthropic's clients, which use this route too."""
    if "anthropic-version" in request.headers:
        request.scope[ERROR_SHAPE] = anthropic.SHAPE


def _as_anthropic(described: dict[str, Any]) -> dict[str, Any]:
    """Model fields for Anthropic's clients; their capabilities are an object."""
    able = set(described["capabilities"])
    yes, no = {"supported": True}, {"supported": False}

    def support(name: str) -> dict[str, bool]:
        return yes if name in able else no

    thinks = support("reasoning")
    context = described["context_length"]
    return {
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
        "capabilities": {
            **dict.fromkeys(("batch", "citations", "code_execution", "pdf_input"), no),
            "image_input": support("vision"),
            "structured_outputs": yes,
            "context_management": no,
            "effort": {**thinks, **dict.fromkeys(("low", "medium", "high", "max", "xhigh"), thinks)},
            "thinking": {
                **thinks,
                "types": {**dict.fromkeys(("adaptive", "enabled"), thinks), "disabled": yes, "between_tools": no},
            },
            "server_tools": {**no, **dict.fromkeys(SERVER_TOOLS, no)},
        },
    }


def sampling_of(entry: ModelEntry, state: ServerState) -> dict[str, Any]:
    """Default sampling values and their sources; listed separately for reasoning if they differ."""
    recommended = state.models.recommended_for(entry)
    payload: dict[str, Any] = {"sampling": choose({}, recommended.layers(None)).facts()}
    if recommended.plain != recommended.layers(None):
        payload["sampling_without_reasoning"] = choose({}, recommended.plain).facts()
    return payload


async def _describe(entry: ModelEntry, state: ServerState, until: float | None = None) -> dict[str, Any]:
    """OpenAI's model fields, and the possible context length under the names that clients read.

    The current length is `loaded_context_length`. It grows with the first request that needs more.
    """
    loaded = state.pool.get(entry.id)
    ready = loaded is not None and loaded.ready
    remote = entry.origin.kind == "remote"
    patience_s = None if until is None else max(0.0, until - time.monotonic())
    context = await state.contexts.largest(entry.id, patience_s)
    return {
        "id": entry.id,
        "object": "model",
        "created": int(entry.added_at),
        "owned_by": (entry.origin.app if remote else entry.origin.repo) or "local",
        "name": entry.name,
        "origin": entry.origin.kind,
        "type": "model",  # this field and the next two are for Anthropic's clients
        "display_name": entry.name,
        "created_at": datetime.fromtimestamp(entry.added_at, UTC).isoformat().replace("+00:00", "Z"),
        "context_length": context,
        "max_model_len": context,
        "loaded_context_length": state.contexts.loaded(entry.id),
        "state": "loaded" if ready else "not-loaded",
        "capabilities": list(entry.capabilities),
        **({"remote": entry.origin.app, "problem": entry.problem} if remote else sampling_of(entry, state)),
        "meta": {"n_ctx": context, "n_ctx_train": entry.context_train, "n_params": entry.details.n_params},
    }
