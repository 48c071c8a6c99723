"""What a route answers when it raised, in the shape of its protocol."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from devices.errors import TesseraError
from engine.server.error_shape import error_body, refusal_body
from engine.server.errors import lookup, retry_header


async def engine_error(request: Request, error: Exception) -> Response:
    """An error that somebody foresaw."""
    return JSONResponse(error_body(request.scope, error), status_code=lookup(error)[0], headers=retry_header(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "http_error"  # noqa: PLR2004 - HTTP
    refused = f"{request.method} {request.url.path}: {error.detail}"
    body = refusal_body(request.scope, error.status_code, code, refused)
    headers = {"x-should-retry": "false", **{k.lower(): v for k, v in (error.headers or {}).items()}}
    if error.status_code == 405:  # noqa: PLR2004 - HTTP
        headers["allow"] = ", ".join(_methods(request))
    return JSONResponse(body, status_code=error.status_code, headers=headers)


def _methods(request: Request) -> list[str]:
    """What the path can be asked with: several routes may share it."""
    scopes = {method: {**request.scope, "method": method} for method in ("DELETE", "GET", "HEAD", "POST", "PUT")}
    routes = request.app.router.routes
    return [m for m, s in scopes.items() if any(route.matches(s)[0] is Match.FULL for route in routes)]


HANDLERS: Final[dict[Any, Any]] = {TesseraError: engine_error, HTTPException: _http_error}
