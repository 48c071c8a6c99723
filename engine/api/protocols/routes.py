"""Which answer each route of another protocol gives. One that can stream gives it when it does not."""

from typing import Any, Final, Literal

import msgspec

from engine.message_catalog.reasons import Reason

# Errors in the shapes of OpenAI, Anthropic and Ollama.


class ReadAnswer(msgspec.Struct):
    """Read here, never written: answers have more fields than these."""


class ErrorDetail(ReadAnswer):
    """What went wrong: words for a person, a `code` for a program, the field in `param` if one is to blame.

    `detail`: the words as a kind with values, where Tessera has them so.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    detail: Reason | None = None


class Error(ReadAnswer):
    """OpenAI's error, and that of our own routes. Facts (bytes needed, tokens) stand beside the message."""

    error: ErrorDetail


class AnthropicErrorDetail(ReadAnswer):
    """Kind and words of an error."""

    type: str
    message: str


class AnthropicError(ReadAnswer):
    """Anthropic's error."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class OllamaError(ReadAnswer):
    """Ollama's error."""

    error: str


LoadState = Literal["loaded", "not-loaded"]

# What OpenAI's clients rely on in an answer.


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


# What Ollama's clients rely on in an answer.


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


# What clients of llama-server, vLLM and LM Studio rely on in an answer.


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


# What Anthropic's clients rely on in an answer.


class ContentBlock(ReadAnswer):
    """Text, thinking, or a use of a tool."""

    type: str


class AnthropicUsage(ReadAnswer):
    """Tokens of a request."""

    input_tokens: int
    output_tokens: int


class AnthropicMessage(ReadAnswer):
    """POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: tuple[ContentBlock, ...]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class CountedTokens(ReadAnswer):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


# (method, path): the body of a success.
ANSWERS: Final[dict[tuple[str, str], type[msgspec.Struct]]] = {
    ("get", "/v1/models"): ServedModelList,
    ("get", "/v1/models/{model}"): ServedModel,
    ("post", "/v1/chat/completions"): ChatCompletion,
    ("post", "/v1/completions"): TextCompletion,
    ("post", "/v1/embeddings"): EmbeddingList,
    ("post", "/v1/rerank"): Ranking,
    ("post", "/v1/audio/transcriptions"): Transcription,
    ("post", "/tokenize"): Tokenized,
    ("post", "/detokenize"): Detokenized,
    ("get", "/api/v0/models"): LmStudioModels,
    ("get", "/api/v0/models/{model}"): LmStudioModel,
    ("post", "/v1/responses"): StoredResponse,
    ("get", "/v1/responses/{response_id}"): StoredResponse,
    ("delete", "/v1/responses/{response_id}"): DeletedResponse,
    ("get", "/v1/responses/{response_id}/input_items"): ResponseItems,
    ("post", "/v1/messages"): AnthropicMessage,
    ("post", "/v1/messages/count_tokens"): CountedTokens,
    ("post", "/api/chat"): OllamaChat,
    ("post", "/api/generate"): OllamaCompletion,
    ("get", "/api/version"): OllamaVersion,
    ("get", "/api/tags"): OllamaTags,
    ("get", "/api/ps"): OllamaRunning,
    ("post", "/api/show"): OllamaShown,
    ("post", "/api/embed"): OllamaEmbeddings,
    ("post", "/api/embeddings"): OllamaEmbedding,
    ("post", "/api/create"): OllamaStatus,
    ("post", "/api/pull"): OllamaStatus,
    ("get", "/health"): Health,
}
