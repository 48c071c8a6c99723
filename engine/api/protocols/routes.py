"""Which answer each route of another protocol gives. One that can stream gives it when it does not."""

from typing import Final

import msgspec

from engine.api.protocols.anthropic import AnthropicMessage, CountedTokens
from engine.api.protocols.llama_server import Detokenized, Health, LmStudioModel, LmStudioModels, Tokenized
from engine.api.protocols.ollama import (
    OllamaChat,
    OllamaCompletion,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaRunning,
    OllamaShown,
    OllamaStatus,
    OllamaTags,
    OllamaVersion,
)
from engine.api.protocols.openai import (
    ChatCompletion,
    DeletedResponse,
    EmbeddingList,
    Ranking,
    ResponseItems,
    ServedModel,
    ServedModelList,
    StoredResponse,
    TextCompletion,
    Transcription,
)

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
