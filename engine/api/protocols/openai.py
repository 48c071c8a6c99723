"""What OpenAI's clients rely on in an answer."""

from typing import Any, Literal

import msgspec

from engine.api.protocols.base import ReadAnswer

LoadState = Literal["loaded", "not-loaded"]


class TokenUsage(ReadAnswer):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptUsage(ReadAnswer):
    """Tokens of a request that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class ServedModel(ReadAnswer):
    """A model, with the context it really gets here."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    state: LoadState
    capabilities: tuple[str, ...]


class ServedModelList(ReadAnswer):
    """GET /v1/models."""

    object: Literal["list"]
    data: tuple[ServedModel, ...]


class CalledFunction(ReadAnswer):
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


class FunctionCall(ReadAnswer):
    """A call the model wants made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(ReadAnswer):
    """An answer."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[FunctionCall, ...] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(ReadAnswer):
    """One of the answers asked for."""

    index: int
    message: AssistantMessage
    finish_reason: str


class ChatCompletion(ReadAnswer):
    """POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: TokenUsage


class TextChoice(ReadAnswer):
    """One of the continuations asked for."""

    index: int
    text: str
    finish_reason: str


class TextCompletion(ReadAnswer):
    """POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: TokenUsage


class EmbeddedText(ReadAnswer):
    """The vector of one text: numbers, or base64 of little-endian floats."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(ReadAnswer):
    """POST /v1/embeddings."""

    object: Literal["list"]
    model: str
    data: tuple[EmbeddedText, ...]
    usage: PromptUsage


class RankedDocument(ReadAnswer):
    """One document and how well it answers the query."""

    index: int
    relevance_score: float


class Ranking(ReadAnswer):
    """POST /v1/rerank, best first."""

    id: str
    model: str
    results: tuple[RankedDocument, ...]
    usage: PromptUsage


class OutputItem(ReadAnswer):
    """A message, a call or a piece of reasoning."""

    type: str


class StoredResponse(ReadAnswer):
    """POST /v1/responses, and what was stored of it."""

    id: str
    object: Literal["response"]
    created_at: float
    model: str
    output: tuple[OutputItem, ...]
    status: Literal["completed", "incomplete", "failed", "in_progress"]


class DeletedResponse(ReadAnswer):
    """DELETE /v1/responses/{id}."""

    id: str
    object: str
    deleted: bool


class ResponseItems(ReadAnswer):
    """GET /v1/responses/{id}/input_items."""

    object: Literal["list"]
    data: tuple[dict[str, Any], ...]
    has_more: bool


class Transcription(ReadAnswer):
    """POST /v1/audio/transcriptions with `json` or `verbose_json`; the other formats are plain text."""

    text: str
    usage: dict[str, Any]
    language: str | None = None
    duration: float | None = None
    segments: tuple[dict[str, Any], ...] | None = None
