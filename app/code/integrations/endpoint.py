"""Choose the model for a client, and get its actual context and capabilities."""

from collections.abc import Callable

from app.client import ApiError, Client, Routes
from app.code.integrations.types import PLACEHOLDER_KEY, Endpoint
from devices.errors import InputFault
from engine.api.chat import REMOTE, Embeddings, ModelRow


class NoModel(InputFault):
    """The server has no suitable model."""

    code = "no_model"

    def __init__(self) -> None:
        super().__init__("The server knows no model that can chat. Get one first: tessera models pull NAME.")


def endpoint_of(client: Client, model: str | None = None, key: str = PLACEHOLDER_KEY) -> Endpoint:
    """Endpoint for the named model, else for a local one; prefers loaded models, then tool calls.

    key: the API key that the client sends.
    Raises: NoModel, ApiError.
    """
    models = client.chat_models()
    if model is not None:
        entry = next((m for m in models if m.id == model), None) or client.get(f"/v1/models/{model}", ModelRow)
    else:
        able = [m for m in models if "chat" in m.capabilities and m.origin != REMOTE]
        if not able:
            raise NoModel
        entry = max(able, key=lambda m: (m.state == "loaded", "tools" in m.capabilities, m.context_length))
    return Endpoint(
        url=client.url.rstrip("/"),
        model=entry.id,
        context=_context(client, entry),
        key=key,
        capabilities=entry.capabilities,
    )


def context_here(client: Routes, model: str) -> int | None:
    """Current context of a local model, or its context if loaded now; None if the key may not query it."""
    try:
        answer = client.placement(model)
    except ApiError:
        return None
    settings = (answer.loaded or answer.placement).settings
    return settings.n_ctx if settings is not None else None


def _context(client: Client, entry: ModelRow) -> int:
    """The model's largest context on this computer: a larger request makes a loaded model grow."""
    return entry.context_length or context_here(client, entry.id) or 0


def embedder(
    client: Client, model: str | None = None
) -> tuple[str, Callable[[list[str]], list[list[float]]]] | None:
    """(model, function from texts to vectors) of the named or a loaded local embedding model; None if none."""
    if model is None:
        local = (m for m in client.chat_models() if m.origin != REMOTE)
        able = (m for m in local if "embedding" in m.capabilities and m.state == "loaded")
        model = next((m.id for m in able), None)
    if model is None:
        return None
    chosen = model

    def embed(texts: list[str]) -> list[list[float]]:
        answer = client.post(
            "/v1/embeddings", Embeddings, {"model": chosen, "input": texts, "encoding_format": "float"}
        )
        return [row.embedding for row in sorted(answer.data, key=lambda row: row.index)]

    return chosen, embed
