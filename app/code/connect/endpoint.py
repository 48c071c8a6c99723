"""Which model a client should use, and what the server truly gives it."""

from collections.abc import Callable

from app.client import Client
from app.code.connect.types import PLACEHOLDER_KEY, Endpoint
from app.code.errors import InputFault
from engine.api.chat import REMOTE, Embeddings, ModelRow

# Coding agents open with system prompts of this size; below it they cannot even begin.
AGENT_CONTEXT = 16_384


class NoModel(InputFault):
    """The server knows no model that could serve."""

    code = "no_model"

    def __init__(self) -> None:
        super().__init__("The server knows no model that can chat. Get one first: tessera models pull NAME.")


def endpoint_of(client: Client, model: str | None = None, key: str = PLACEHOLDER_KEY) -> Endpoint:
    """The endpoint for a model: the named one, else of the local ones a loaded one, one for tools, any for chat.

    key: what the program that uses it presents.
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
        context=entry.context_length,
        key=key,
        fim="fim" in entry.capabilities,
    )


def embedder(
    client: Client, model: str | None = None
) -> tuple[str, Callable[[list[str]], list[list[float]]]] | None:
    """(model, texts to vectors) of the named embedding model, else of a loaded local one; None: there is none."""
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
