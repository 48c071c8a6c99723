"""Errors in OpenAI's format, also used by Tessera's own routes."""

import json
from typing import Any, Final

import msgspec

from devices.errors import TesseraError
from engine.api.protocols.routes import Error
from engine.core import errors
from engine.server.errors import ErrorShape, lookup

# Name of the prompt field on routes without chat messages.
_PROMPT_FIELDS: Final = {
    "/v1/completions": "prompt",
    "/completion": "prompt",
    "/infill": "input_prefix",
    "/v1/fim/completions": "prompt",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
    "/api/generate": "prompt",
    "/api/embed": "input",
    "/api/embeddings": "prompt",
}


def openai_body(error: Exception, path: str = "") -> dict[str, Any]:
    """OpenAI's error object for a request to `path`.

    Facts of the error are fields next to the message, so that programs need not parse it.
    """
    _, kind, _ = lookup(error)
    is_ours = isinstance(error, TesseraError)
    body: dict[str, Any] = {
        "message": str(error) if is_ours else "An internal error; the server's log has the details.",
        "type": kind,
        "param": getattr(error, "param", None),
        "code": error.code if isinstance(error, TesseraError) else "internal",
    }
    detail = errors.fact_of(error)
    if detail is not None:
        body["detail"] = msgspec.to_builtins(detail)
    if isinstance(error, errors.ContextOverflow):
        # Clients shorten the conversation, or report a long prompt as such, if they find OpenAI's words.
        body["message"] = f"This model's maximum context length is {error.context_tokens} tokens. {body['message']}"
        body["param"] = _PROMPT_FIELDS.get(path, error.param)
        body["prompt_tokens"] = error.prompt_tokens
        body["context_tokens"] = error.context_tokens
    if isinstance(error, errors.ContextCannotGrow):
        body["loaded_context_tokens"] = error.loaded_tokens
        body["unload"] = list(error.unload)
    if isinstance(error, errors.NotEnoughMemory):
        body |= error.facts()
    if isinstance(error, errors.RunnerDied):
        body["exit_code"] = error.exit_code
    return {"error": body}


def openai_event(error: Exception) -> bytes:
    """The error as a server-sent event, for streams that have already started."""
    return b"data: " + json.dumps(openai_body(error)).encode() + b"\n\n"


def _last_event(error: Exception) -> bytes:
    """The error in one of OpenAI's streams, which always ends with `[DONE]`."""
    return openai_event(error) + b"data: [DONE]\n\n"


def _refusal(_status: int, code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


# LM Studio's prefix /api/v0 is below Ollama's prefix.
SHAPE: Final = ErrorShape(("", "/api/v"), openai_body, openai_event, _refusal, Error)
STREAM_SHAPE: Final = ErrorShape(("", "/api/v"), openai_body, _last_event, _refusal, Error)
