"""What clients of llama-server, vLLM and LM Studio rely on in an answer."""

from typing import Any, Literal

from engine.api.protocols.base import ReadAnswer

LoadState = Literal["loaded", "not-loaded"]


class Tokenized(ReadAnswer):
    """POST /tokenize."""

    tokens: tuple[Any, ...]
    count: int
    max_model_len: int


class Detokenized(ReadAnswer):
    """POST /detokenize."""

    content: str
    prompt: str


class Health(ReadAnswer):
    """GET /health."""

    status: Literal["ok"]
    version: str


class LmStudioModel(ReadAnswer):
    """A model as LM Studio lists it."""

    id: str
    object: Literal["model"]
    type: Literal["llm", "vlm", "embeddings"]
    arch: str
    state: LoadState
    max_context_length: int


class LmStudioModels(ReadAnswer):
    """GET /api/v0/models."""

    object: Literal["list"]
    data: tuple[LmStudioModel, ...]
