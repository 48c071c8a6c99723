"""The shape of an error in a request's protocol: a client must be able to read its own refusal."""

from typing import Any, Final

from starlette.types import Scope

from engine.server.anthropic import errors as anthropic
from engine.server.errors import ErrorShape
from engine.server.ollama import errors as ollama
from engine.server.openai import errors as openai
from engine.server.routing import ERROR_SHAPE

# For paths that no route has matched, yet or at all: the longest prefix first.
_BY_PREFIX: Final = sorted(
    ((prefix, shape) for shape in (anthropic.SHAPE, ollama.SHAPE, openai.SHAPE) for prefix in shape.prefixes),
    key=lambda pair: -len(pair[0]),
)


def shape_of(scope: Scope) -> ErrorShape:
    """The shape of the route that took the request; before that, of the protocol that the path belongs to."""
    found: ErrorShape | None = scope.get(ERROR_SHAPE)
    return found if found is not None else shape_of_path(scope["path"])


def shape_of_path(path: str) -> ErrorShape:
    """The shape of the protocol that a path belongs to."""
    return next(shape for prefix, shape in _BY_PREFIX if path.startswith(prefix))


def error_body(scope: Scope, error: Exception) -> dict[str, Any]:
    """An exception as the error object of the request's protocol."""
    return shape_of(scope).body(error, scope["path"])


def refusal_body(scope: Scope, status: int, code: str, message: str) -> dict[str, Any]:
    """A refusal that no route has seen, as the error object of the request's protocol."""
    return shape_of(scope).refusal(status, code, message)
