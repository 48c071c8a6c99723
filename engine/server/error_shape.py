"""Which protocol a path belongs to, and its shape of an error: a client must be able to read its own refusal."""

from typing import Any, Final

from engine.api.protocols.errors import Error
from engine.server.anthropic import errors as anthropic
from engine.server.errors import ErrorShape, openai_body
from engine.server.ollama import errors as ollama


def _refusal(_status: int, code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


# Every other path tells errors as OpenAI does.
_SHAPES: Final = (anthropic.SHAPE, ollama.SHAPE)
_OPENAI: Final = ErrorShape(lambda _path: True, openai_body, _refusal, Error)


def shape_of(path: str) -> ErrorShape:
    """The shape of the path's protocol."""
    return next((shape for shape in _SHAPES if shape.speaks(path)), _OPENAI)


def error_body(path: str, error: Exception) -> dict[str, Any]:
    """An exception as the error object of the path's protocol."""
    return shape_of(path).body(error, path)


def refusal_body(path: str, status: int, code: str, message: str) -> dict[str, Any]:
    """A refusal that no route has seen, as the error object of the path's protocol."""
    return shape_of(path).refusal(status, code, message)
