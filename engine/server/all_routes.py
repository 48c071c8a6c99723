"""The application with the routes of all protocols and the OpenAPI page. Imported late, see `LateRoutes`."""

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import generate_latest
from starlette.responses import Response

from engine.api.jobs import Job
from engine.api.protocols.routes import ANSWERS, AnthropicError, Error, OllamaError
from engine.api.stats import Stats
from engine.core.errors import InputFault
from engine.core.version import __version__
from engine.server.anthropic import routes as anthropic
from engine.server.auth import OPEN_PATHS, manages
from engine.server.body import write_schemas
from engine.server.error_shape import HANDLERS, engine_error, shape_of_path
from engine.server.llama_server import fim
from engine.server.llama_server import routes as llama_server
from engine.server.lmstudio import routes as lmstudio
from engine.server.manage import collections as manage_collections
from engine.server.manage import converting as manage_converting
from engine.server.manage import jobs as manage_jobs
from engine.server.manage import keys as manage_keys
from engine.server.manage import library as manage_library
from engine.server.manage import machine as manage_machine
from engine.server.manage import measuring as manage_measuring
from engine.server.manage import models as manage_models
from engine.server.manage import quantizing as manage_quantizing
from engine.server.manage import replay as manage_replay
from engine.server.manage import speech as manage_speech
from engine.server.manage import stats as manage_stats
from engine.server.manage import upstreams as manage_upstreams
from engine.server.middleware import ErrorMiddleware
from engine.server.msgspec_routes import Contract, components, take_contract
from engine.server.ollama import models as ollama_models
from engine.server.ollama import routes as ollama
from engine.server.openai import audio, completions, embeddings, files, models, unsupported, vector_stores
from engine.server.openai import routes as chat
from engine.server.responses import compaction, conversations
from engine.server.responses import routes as responses
from engine.server.root import health, root
from engine.server.state import ServerState, server_state

DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def every_route(state: ServerState) -> FastAPI:
    """Application with all routes. Routes that are served early are included for the OpenAPI page."""
    # Tessera has its own docs page: FastAPI's page loads scripts from a CDN and stays blank offline.
    app = FastAPI(title="Tessera", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = state
    app.add_middleware(ErrorMiddleware)
    for early in (models, chat, completions):
        app.include_router(early.router.documented())
    for module in (llama_server, audio, fim, embeddings, lmstudio, unsupported):
        app.include_router(module.router)
    for module in (responses, compaction, conversations, anthropic, ollama, ollama_models):
        app.include_router(module.router)
    for managed in (manage_models, manage_keys, manage_stats, manage_machine, manage_library, manage_jobs):
        app.include_router(managed.router)
    for module in (manage_collections, manage_replay, files, vector_stores):
        app.include_router(module.router)
    for also in (manage_quantizing, manage_measuring, manage_converting, manage_upstreams):
        app.include_router(also.router)
    app.include_router(manage_speech.router)
    for raised, handler in HANDLERS.items():
        app.add_exception_handler(raised, handler)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/v1/health", health, methods=["GET"], include_in_schema=False)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=PlainTextResponse)
    app.add_api_route("/", root, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", _docs, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/chat", _chat, methods=["GET", "HEAD"], include_in_schema=False)
    complete(app)
    return app


async def _docs() -> Response:
    """Page that lists every route with its fields and can send test requests. It contacts only this server."""
    return await _page("docs.html")


async def _chat() -> Response:
    """Chat page for phones. It contacts only this server."""
    return await _page("chat.html")


async def _page(name: str) -> Response:
    page = await asyncio.to_thread(Path(__file__).with_name(name).read_text, "utf-8")
    return HTMLResponse(page, headers={"content-security-policy": DOCS_POLICY, "x-frame-options": "DENY"})


async def _metrics(request: Request) -> Response:
    """Counters in Prometheus format."""
    state = server_state(request)
    state.metrics.queue.set(sum(m.runner.active_requests for m in state.pool.loaded if m.runner))
    return PlainTextResponse(generate_latest(state.metrics.registry), media_type="text/plain; version=0.0.4")


async def _invalid(request: Request, error: Exception) -> Response:
    """Error response for path and query parameters, which FastAPI validates."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return await engine_error(request, InputFault(f"{field}: {first['msg']}.", field))


# Error responses that any route may send, worded as in docs/api.md.
_ERRORS: Final = {
    "400": "A field is wrong; `param` names it. Or the prompt does not fit the context",
    "401": "No valid key",
    "403": "The key, the host name or the web page is not allowed this, or the text would go to another server",
    "404": "No such model, or nothing of that name",
    "405": "The route has no such method",
    "408": "The body stopped arriving, or took too long",
    "413": "The body is too large",
    "415": "The body is a form or plain text",
    "422": "The model's file cannot be loaded",
    "429": "Too many wrong keys, or the other server that a rule chose has no place left",
    "431": "The headers are too large",
    "499": "The request was cancelled",
    "500": "A fault of the server; its log has the details",
    "502": "The other server that a rule chose failed",
    "503": "The model's process died, or something on this machine is missing for now",
    "507": "Not enough memory or disk",
}
_SIDE_WORK: Final = {"409": "A request with `priority: side` for a model that is not loaded"}
_NOT_AGREED: Final = {"409": "Another server runs a named model, and `allow_remote` is missing"}
# Additional error responses of single routes.
_ERRORS_OF: Final = {
    ("post", "/v1/chat/completions"): _SIDE_WORK,
    ("post", "/v1/completions"): _SIDE_WORK,
    ("post", "/v1/fim/completions"): _SIDE_WORK,
    ("post", "/tessera/v1/collections"): _NOT_AGREED,
    ("post", "/tessera/v1/collections/{collection}"): _NOT_AGREED,
    ("put", "/tessera/v1/remotes/{name}"): {
        "409": "The computer shows an unknown host key",
        "424": "The computer that was named does not show its host key",
    },
}
_ByKind = dict[type, dict[str, Any]]
_JSON: Final = "application/json"
_TEXT: Final = {"type": "string"}
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
# Media types of routes that stream, always or on request.
_STREAMS: Final = {
    "/v1/chat/completions": _EVENTS,
    "/v1/completions": _EVENTS,
    "/v1/fim/completions": _EVENTS,
    "/infill": _EVENTS,
    "/completion": _EVENTS,
    "/v1/responses": _EVENTS,
    "/v1/audio/transcriptions": _EVENTS,
    "/v1/messages": _EVENTS,
    "/api/chat": _LINES,
    "/api/generate": _LINES,
    "/api/create": _LINES,
    "/api/pull": _LINES,
    "/tessera/v1/stats": _EVENTS,
    "/tessera/v1/jobs/events": _EVENTS,
    "/tessera/v1/jobs/{job}/events": _EVENTS,
}
# Struct of one event of Tessera's own streams.
_EVENT_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {
    "/tessera/v1/stats": Stats,
    "/tessera/v1/jobs/events": Job,
    "/tessera/v1/jobs/{job}/events": Job,
}
_KEYS: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"x-api-key": []}, {"api-key": []}]


def complete(app: FastAPI) -> None:
    """Add bodies, errors and security to the OpenAPI page of `app`."""
    bare = app.openapi

    def page() -> dict[str, Any]:
        if app.openapi_schema is None:
            write_schemas()
            app.openapi_schema = _completed(bare())
        return app.openapi_schema

    app.openapi = page  # type: ignore[method-assign]  # FastAPI documents this as the way to change the page


def _completed(page: dict[str, Any]) -> dict[str, Any]:
    contracts = {
        (method, path): take_contract(operation) or Contract(None, ANSWERS.get((method, path)))
        for path, operations in page["paths"].items()
        for method, operation in operations.items()
    }
    kinds = [k for c in contracts.values() for k in (c.takes, c.returns) if k is not None]
    kinds += [*_EVENT_STRUCTS.values(), Error, AnthropicError, OllamaError]
    kinds = list(dict.fromkeys(kinds))
    references, schemas = components(kinds)
    by_kind = dict(zip(kinds, references, strict=True))
    page["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            **{name: {"type": "apiKey", "in": "header", "name": name} for name in ("x-api-key", "api-key")},
        },
    }
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if status.startswith("2") and status != "204":
                    _success(path, response, contracts[method, path].returns, by_kind)
            _add_body(operation, contracts[method, path].takes, by_kind)
            _add_errors(method, path, operation, by_kind)
    return page


def _add_body(operation: dict[str, Any], takes: type[msgspec.Struct] | None, by_kind: _ByKind) -> None:
    if takes is not None:
        needed = any(field.required for field in msgspec.structs.fields(takes))
        operation["requestBody"] = {"required": needed, "content": {_JSON: {"schema": by_kind[takes]}}}


def _add_errors(method: str, path: str, operation: dict[str, Any], by_kind: _ByKind) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's validation error, which is never sent
    error = {_JSON: {"schema": by_kind[shape_of_path(path).schema]}}
    errors = {**_ERRORS, **_ERRORS_OF.get((method, path), {})}
    responses |= {status: {"description": text, "content": error} for status, text in errors.items()}
    if path in OPEN_PATHS:
        operation["security"] = []
    else:
        operation["security"] = _KEYS if manages(path) else [{}, *_KEYS]


def _success(path: str, response: dict[str, Any], returns: type[msgspec.Struct] | None, by_kind: _ByKind) -> None:
    content: dict[str, dict[str, Any]] = response.setdefault("content", {})
    if returns is not None:
        content[_JSON] = {"schema": by_kind[returns]}
    event, stream = _EVENT_STRUCTS.get(path), _STREAMS.get(path)
    if stream is not None:
        content[stream] = {"schema": by_kind[event] if event else _TEXT}
    if event is not None:
        content.pop(_JSON, None)
    if path == "/metrics":
        content.clear()
        content["text/plain"] = {"schema": _TEXT}
    if not content:
        del response["content"]
