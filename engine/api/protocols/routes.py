"""Response struct of each route of the other protocols. Streaming routes are listed with their non-streamed one."""

from typing import Any, Final, Literal

import msgspec

from engine.message_catalog.reasons import Reason

# Errors in the formats of OpenAI, Anthropic and Ollama.


class ReadAnswer(msgspec.Struct):
    """Used for decoding only: real responses have more fields."""


class ErrorDetail(ReadAnswer):
    """An error: `message` for people, `code` for programs, `param` for the field at fault if there is one.

    `detail` is the message as a kind with values, if Tessera has it in that form.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    detail: Reason | None = None


class Error(ReadAnswer):
    """Error of OpenAI's routes and of Tessera's own routes.

    Facts such as needed bytes or tokens are fields next to the message.
    """

    error: ErrorDetail


class AnthropicErrorDetail(ReadAnswer):
    """Type and message of an error."""

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

# Response fields that OpenAI's clients rely on.


class TokenUsage(ReadAnswer):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptUsage(ReadAnswer):
    """Token counts of a request that generates no text."""

    prompt_tokens: int
    total_tokens: int


class ServedModel(ReadAnswer):
    """A model with its effective context length."""

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
    """A function call that the model requests."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(ReadAnswer):
    """A message of the model."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[FunctionCall, ...] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(ReadAnswer):
    """One choice of a chat completion."""

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
    """One choice of a text completion."""

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
    """The vector of one text: floats, or base64 of little-endian floats."""

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
    """One document and its relevance to the query."""

    index: int
    relevance_score: float


class Ranking(ReadAnswer):
    """POST /v1/rerank, best first."""

    id: str
    model: str
    results: tuple[RankedDocument, ...]
    usage: PromptUsage


class OutputItem(ReadAnswer):
    """A message, a call or a reasoning item."""

    type: str


class StoredResponse(ReadAnswer):
    """POST /v1/responses and GET /v1/responses/{id}."""

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


# Response fields that Ollama's clients rely on.


class OllamaMessage(ReadAnswer):
    """One message of the chat."""

    role: str
    content: str


class OllamaChat(ReadAnswer):
    """POST /api/chat: the last line of a stream, or the whole response."""

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
    """Format, family, size and quantization of a model."""

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
    """A model on disk."""

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


# Response fields that clients of llama-server, vLLM and LM Studio rely on.


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


# Response fields that Anthropic's clients rely on.


class ContentBlock(ReadAnswer):
    """A block of type text, thinking or tool_use."""

    type: str


class AnthropicUsage(ReadAnswer):
    """Token counts of a request."""

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


# (method, path): struct of a successful response.
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
