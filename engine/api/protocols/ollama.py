"""What Ollama's clients rely on in an answer."""

from typing import Any

from engine.api.protocols.base import ReadAnswer


class OllamaMessage(ReadAnswer):
    """What one side said."""

    role: str
    content: str


class OllamaChat(ReadAnswer):
    """POST /api/chat: the last line of a stream, or the whole answer."""

    model: str
    created_at: str
    done: bool
    message: OllamaMessage


class OllamaCompletion(ReadAnswer):
    """POST /api/generate."""

    model: str
    created_at: str
    done: bool
    response: str


class OllamaVersion(ReadAnswer):
    """GET /api/version."""

    version: str


class OllamaDetails(ReadAnswer):
    """What a model is made of."""

    format: str
    family: str
    parameter_size: str
    quantization_level: str


class OllamaTag(ReadAnswer):
    """A model as Ollama lists it."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModel(OllamaTag):
    """A model on the disk."""

    modified_at: str


class OllamaTags(ReadAnswer):
    """GET /api/tags."""

    models: tuple[OllamaModel, ...]


class OllamaRunning(ReadAnswer):
    """GET /api/ps."""

    models: tuple[OllamaTag, ...]


class OllamaShown(ReadAnswer):
    """POST /api/show."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: tuple[str, ...]


class OllamaEmbeddings(ReadAnswer):
    """POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class OllamaEmbedding(ReadAnswer):
    """POST /api/embeddings."""

    embedding: list[float]


class OllamaStatus(ReadAnswer):
    """POST /api/create and /api/pull."""

    status: str
