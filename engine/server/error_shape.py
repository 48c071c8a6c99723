"""Error bodies in the format of the request's protocol, so that its client can parse them."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from devices.errors import TesseraError
from engine.server.anthropic import errors as anthropic
from engine.server.errors import ErrorShape, lookup, retry_header
from engine.server.ollama import errors as ollama
from engine.server.openai import errors as openai
from engine.server.routing import ERROR_SHAPE

# For paths without a matching route; the longest prefix comes first.
_BY_PREFIX: Final = sorted(
    ((prefix, shape) for shape in (anthropic.SHAPE, ollama.SHAPE, openai.SHAPE) for prefix in shape.prefixes),
    key=lambda pair: -len(pair[0]),
)
# Addresses that programs are given, and the list of models below each.
_BASES: Final = {"/v1": "/models", "/api": "/tags", "/tessera/v1": "/models"}


def shape_of(scope: Scope) -> ErrorShape:
    """The error format of the matched route; before routing, of the protocol that the path belongs to."""
    own: ErrorShape | None = scope.get(ERROR_SHAPE)
    return own if own is not None else shape_of_path(scope["path"])


def shape_of_path(path: str) -> ErrorShape:
    """The error format of the protocol that a path belongs to."""
    return next(shape for prefix, shape in _BY_PREFIX if path.startswith(prefix))


def error_body(scope: Scope, error: Exception) -> dict[str, Any]:
    """An exception as the error object of the request's protocol."""
    return shape_of(scope).body(error, scope["path"])


def refusal_body(scope: Scope, status: int, code: str, message: str) -> dict[str, Any]:
    """A refusal before routing, as the error object of the request's protocol."""
    return shape_of(scope).refusal(status, code, message)


async def engine_error(request: Request, error: Exception) -> Response:
    """Response for a known error."""
    return JSONResponse(error_body(request.scope, error), status_code=lookup(error)[0], headers=retry_header(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "http_error"
    refused = f"{request.method} {request.url.path}: {error.detail}{_hint(request) if code == 'not_found' else ''}"
    body = refusal_body(request.scope, error.status_code, code, refused)
    headers = {"x-should-retry": "false", **{k.lower(): v for k, v in (error.headers or {}).items()}}
    if error.status_code == 405:
        headers["allow"] = ", ".join(_methods(request))
    return JSONResponse(body, status_code=error.status_code, headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods that the path supports; several routes may share it."""
    methods = ("DELETE", "GET", "HEAD", "POST", "PUT")
    return [method for method in methods if _has_route(request, method=method)]


def _has_route(request: Request, **changes: str) -> bool:
    scope = {**request.scope, **changes}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)


def _hint(request: Request) -> str:
    """What is wrong with the base address of a program, if only that is."""
    path = request.url.path.rstrip("/")
    if path in _BASES:
        return (
            f". This is a base address for programs. GET {path}{_BASES[path]} lists the models, /docs all routes."
        )
    first, _, shorter = path.lstrip("/").partition("/")
    if not shorter or not _has_route(request, path=f"/{shorter}"):
        return ""
    return f". There is /{shorter}: leave /{first} out of the base address."


HANDLERS: Final[dict[Any, Any]] = {TesseraError: engine_error, HTTPException: _http_error}
