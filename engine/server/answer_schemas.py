"""JSON schemas of what routes answer, for the OpenAPI page: the fields that clients may rely on.

Answers may have more fields than these. Streams are described by what one event carries.
"""

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {}


def fields(**required: Schema) -> Schema:
    """An object that has at least these fields."""
    return {"type": "object", "properties": required, "required": list(required)}


def listed(item: Schema) -> Schema:
    """An array of such items."""
    return {"type": "array", "items": item}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Schema:
    """One of these words."""
    return {"type": "string", "enum": list(values)}


OPENAI_ERROR: Final = fields(
    error=fields(message=TEXT, type=TEXT, param=nullable(TEXT), code=nullable(TEXT)),
)
ANTHROPIC_ERROR: Final = fields(type=one_of("error"), error=fields(type=TEXT, message=TEXT))
OLLAMA_ERROR: Final = fields(error=TEXT)

_USAGE = fields(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_SHORT_USAGE = fields(prompt_tokens=COUNT, total_tokens=COUNT)
_MODEL = fields(
    id=TEXT, object=one_of("model"), created=COUNT, owned_by=TEXT, context_length=COUNT,
    state=one_of("loaded", "not-loaded"), capabilities=listed(TEXT),
)  # fmt: skip
_LM_STUDIO_MODEL = fields(
    id=TEXT, object=one_of("model"), type=one_of("llm", "vlm", "embeddings"), arch=TEXT,
    state=one_of("loaded", "not-loaded"), max_context_length=COUNT,
)  # fmt: skip
_CALL = fields(id=TEXT, type=one_of("function"), function=fields(name=TEXT, arguments=TEXT))
_MESSAGE = {
    **fields(role=one_of("assistant"), content=nullable(TEXT)),
    "properties": {
        "role": one_of("assistant"), "content": nullable(TEXT), "reasoning_content": TEXT,
        "tool_calls": listed(_CALL),
    },
}  # fmt: skip
_RESPONSE = fields(
    id=TEXT, object=one_of("response"), created_at=NUMBER, model=TEXT, output=listed(fields(type=TEXT)),
    status=one_of("completed", "incomplete", "failed", "in_progress"),
)  # fmt: skip
_OLLAMA_DETAILS = fields(format=TEXT, family=TEXT, parameter_size=TEXT, quantization_level=TEXT)
_OLLAMA_TAG = fields(name=TEXT, model=TEXT, modified_at=TEXT, size=COUNT, digest=TEXT, details=_OLLAMA_DETAILS)
_OLLAMA_END = {"model": TEXT, "created_at": TEXT, "done": FLAG}
_LOADED = fields(
    id=TEXT, state=one_of("loaded", "loading", "failed", "not-loaded"), progress=NUMBER, waiting=COUNT,
    active=COUNT, pinned=FLAG, ttl_s=nullable(NUMBER), expires_in_s=nullable(NUMBER), n_ctx=COUNT,
)  # fmt: skip
_STATS = fields(models=listed(fields(id=TEXT)), tok_s=NUMBER, active=COUNT, waiting=COUNT, rss_bytes=COUNT)

# (method, path): the body of a success.
ANSWERS: Final[dict[tuple[str, str], Schema]] = {
    ("get", "/v1/models"): fields(object=one_of("list"), data=listed(_MODEL)),
    ("get", "/v1/models/{model}"): _MODEL,
    ("post", "/v1/chat/completions"): fields(
        id=TEXT, object=one_of("chat.completion"), created=COUNT, model=TEXT, usage=_USAGE,
        choices=listed(fields(index=COUNT, message=_MESSAGE, finish_reason=TEXT)),
    ),
    ("post", "/v1/completions"): fields(
        id=TEXT, object=one_of("text_completion"), created=COUNT, model=TEXT, usage=_USAGE,
        choices=listed(fields(index=COUNT, text=TEXT, finish_reason=TEXT)),
    ),
    ("post", "/v1/embeddings"): fields(
        object=one_of("list"), model=TEXT, usage=_SHORT_USAGE,
        data=listed(fields(object=one_of("embedding"), index=COUNT, embedding={"type": ["array", "string"]})),
    ),
    ("post", "/v1/rerank"): fields(
        id=TEXT, model=TEXT, usage=_SHORT_USAGE, results=listed(fields(index=COUNT, relevance_score=NUMBER)),
    ),
    ("post", "/tokenize"): fields(tokens=listed(ANY), count=COUNT, max_model_len=COUNT),
    ("post", "/detokenize"): fields(content=TEXT, prompt=TEXT),
    ("get", "/api/v0/models"): fields(object=one_of("list"), data=listed(_LM_STUDIO_MODEL)),
    ("get", "/api/v0/models/{model}"): _LM_STUDIO_MODEL,
    ("post", "/v1/responses"): _RESPONSE,
    ("get", "/v1/responses/{response_id}"): _RESPONSE,
    ("delete", "/v1/responses/{response_id}"): fields(id=TEXT, object=TEXT, deleted=FLAG),
    ("get", "/v1/responses/{response_id}/input_items"): fields(
        object=one_of("list"), data=listed({"type": "object"}), has_more=FLAG
    ),
    ("post", "/v1/messages"): fields(
        id=TEXT, type=one_of("message"), role=one_of("assistant"), model=TEXT, content=listed(fields(type=TEXT)),
        stop_reason=nullable(TEXT), stop_sequence=nullable(TEXT),
        usage=fields(input_tokens=COUNT, output_tokens=COUNT),
    ),
    ("post", "/v1/messages/count_tokens"): fields(input_tokens=COUNT),
    ("post", "/api/chat"): fields(**_OLLAMA_END, message=fields(role=TEXT, content=TEXT)),
    ("post", "/api/generate"): fields(**_OLLAMA_END, response=TEXT),
    ("get", "/api/version"): fields(version=TEXT),
    ("get", "/api/tags"): fields(models=listed(_OLLAMA_TAG)),
    ("get", "/api/ps"): fields(models=listed(_OLLAMA_TAG)),
    ("post", "/api/show"): fields(
        details=_OLLAMA_DETAILS, model_info={"type": "object"}, capabilities=listed(TEXT)
    ),
    ("post", "/api/embed"): fields(model=TEXT, embeddings=listed(listed(NUMBER)), prompt_eval_count=COUNT),
    ("post", "/api/embeddings"): fields(embedding=listed(NUMBER)),
    ("post", "/api/create"): fields(status=TEXT),
    ("post", "/api/pull"): fields(status=TEXT),
    ("get", "/tessera/v1/loaded"): fields(models=listed(_LOADED)),
    ("post", "/tessera/v1/models/{model}/load"): _LOADED,
    ("post", "/tessera/v1/models/{model}/unload"): fields(id=TEXT, unloaded=FLAG),
    ("get", "/tessera/v1/aliases"): fields(aliases={"type": "object", "additionalProperties": TEXT}),
    ("put", "/tessera/v1/aliases/{alias}"): fields(alias=TEXT, model=TEXT),
    ("get", "/tessera/v1/stats"): _STATS,
    ("get", "/health"): fields(status=one_of("ok"), version=TEXT),
}  # fmt: skip
