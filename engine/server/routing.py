"""Routes that are served before FastAPI is imported, because the import would delay the first response."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

if TYPE_CHECKING:
    from fastapi import APIRouter

# Key in a request's scope for the `ErrorShape` of its route; without it, OpenAI's format is used.
ERROR_SHAPE: Final = "error_shape"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Any]])


class _Declared(msgspec.Struct, frozen=True):
    method: str
    path: str
    endpoint: Callable[..., Awaitable[Any]]
    body: type[BaseModel] | None


class EarlyRoute(Route):
    """A route with one method. Other methods do not match, so that later routes can handle them."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = set(methods)  # Starlette adds HEAD to GET

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return (match, child_scope) if match is Match.FULL else (Match.NONE, {})


class EarlyRouter:
    """Routes whose endpoints take the request and path parameters, and return a response or a JSON object.

    `plain` returns them for Starlette; `documented` returns them for FastAPI's OpenAPI page.
    """

    def __init__(self) -> None:
        self._routes: list[_Declared] = []

    def get(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._declare("GET", path, None)

    def post(self, path: str, body: type[BaseModel]) -> Callable[[Endpoint], Endpoint]:
        """Declare a POST route whose endpoint parses the body itself."""
        return self._declare("POST", path, body)

    def _declare(self, method: str, path: str, body: type[BaseModel] | None) -> Callable[[Endpoint], Endpoint]:
        def declare(endpoint: Endpoint) -> Endpoint:
            self._routes.append(_Declared(method, path, endpoint, body))
            return endpoint

        return declare

    def plain(self) -> list[Route]:
        return [EarlyRoute(r.path, _served(r.endpoint), methods=[r.method]) for r in self._routes]

    def documented(self) -> "APIRouter":
        from fastapi import APIRouter

        from engine.server.body import openapi_body

        router = APIRouter()
        for route in self._routes:
            extra = openapi_body(route.body) if route.body is not None else None
            router.add_api_route(route.path, route.endpoint, methods=[route.method], openapi_extra=extra)
        return router


def _served(endpoint: Callable[..., Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        answer = await endpoint(request, **request.path_params)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return serve
