"""The OpenAPI page: FastAPI's routes, completed by what it cannot know: answers, errors, streams and keys."""

from typing import Any, Final

import msgspec
from fastapi import FastAPI

from engine.api.jobs import Job
from engine.api.protocols.errors import AnthropicError, Error, OllamaError
from engine.api.protocols.routes import ANSWERS
from engine.api.stats import Stats
from engine.server.auth import OPEN_PATHS, manages
from engine.server.body import write_schemas
from engine.server.error_shape import shape_of_path
from engine.server.msgspec_routes import Contract, components, take_contract

# What any route may answer, in the words of docs/api.md.
_ERRORS: Final = {
    "400": "A field is wrong; `param` names it. Or the prompt does not fit the context",
    "401": "No valid key",
    "403": "The key, the host name or the web page is not allowed this, or the text would go to another server",
    "404": "No such model, or nothing of that name",
    "405": "The route has no such method",
    "408": "The body stopped coming, or took too long",
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
# What only some routes may answer beside those.
_ERRORS_OF: Final = {
    ("post", "/v1/chat/completions"): _SIDE_WORK,
    ("post", "/v1/completions"): _SIDE_WORK,
    ("post", "/v1/fim/completions"): _SIDE_WORK,
    ("post", "/tessera/v1/collections"): _NOT_AGREED,
    ("post", "/tessera/v1/collections/{collection}"): _NOT_AGREED,
    ("put", "/tessera/v1/remotes/{name}"): {
        "409": "The computer shows a host key that nobody has vouched for",
        "424": "The computer that was named does not show its host key",
    },
}
_ByKind = dict[type, dict[str, Any]]
_JSON: Final = "application/json"
_TEXT: Final = {"type": "string"}
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
# Routes that stream: always, or when asked to.
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
# What one event of those of our own carries.
_EVENT_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {
    "/tessera/v1/stats": Stats,
    "/tessera/v1/jobs/events": Job,
    "/tessera/v1/jobs/{job}/events": Job,
}
_KEYS: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"x-api-key": []}, {"api-key": []}]


def complete(app: FastAPI) -> None:
    """Let `app` publish a complete page."""
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
    responses.pop("422", None)  # FastAPI's own shape, which is never sent
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
