"""Errors in Anthropic's format."""

import json
from typing import Any, Final

from devices.errors import TesseraError
from engine.api.protocols.routes import AnthropicError
from engine.core.errors import ContextCannotGrow, ContextOverflow
from engine.server.errors import ErrorShape, lookup

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def body_for(status: int, message: str) -> dict[str, Any]:
    """The error object for an HTTP status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def anthropic_body(error: Exception, _path: str = "") -> dict[str, Any]:
    """The error object of an exception."""
    if isinstance(error, ContextOverflow):  # clients shorten the conversation if they find this text
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.context_tokens} maximum"
        if isinstance(error, ContextCannotGrow) and error.unload:
            message += f". Unload {', '.join(error.unload)} to make room."
    elif isinstance(error, TesseraError):
        message = str(error)
    else:
        message = "An internal error; the server's log has the details."
    return body_for(lookup(error)[0], message)


def anthropic_event(error: Exception) -> bytes:
    """The error as an event, for streams that have already started."""
    return b"event: error\ndata: " + json.dumps(anthropic_body(error)).encode() + b"\n\n"


SHAPE: Final = ErrorShape(
    ("/v1/messages",),
    anthropic_body,
    anthropic_event,
    lambda status, _code, message: body_for(status, message),
    AnthropicError,
)
