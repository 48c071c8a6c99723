"""The OpenAPI page: FastAPI's routes, completed by what it cannot know: answers, errors, streams and keys."""

from typing import Any, Final

from fastapi import FastAPI

from engine.server.answer_schemas import ANSWERS, ANTHROPIC_ERROR, OLLAMA_ERROR, OPENAI_ERROR, TEXT, Schema
from engine.server.auth import OPEN_PATHS, manages
from engine.server.error_shape import speaks_anthropic, speaks_ollama

# What any route may answer, in the words of docs/api.md.
_ERRORS: Final = {
    "400": "A field is wrong; `param` names it. Or the prompt does not fit the context",
    "401": "No valid key",
    "403": "The key, the host name or the web page is not allowed this",
    "404": "No such model, or nothing of that name",
    "405": "The route has no such method",
    "408": "The body stopped coming",
    "413": "The body is too large",
    "415": "The body is a form or plain text",
    "422": "The model's file cannot be loaded",
    "429": "Too many wrong keys",
    "500": "A fault of the server; its log has the details",
    "503": "The model's process died, or something on this machine is missing for now",
    "507": "Not enough memory or disk",
}
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
# Routes that stream: always, or when asked to.
_STREAMS: Final = {
    "/v1/chat/completions": _EVENTS,
    "/v1/completions": _EVENTS,
    "/v1/fim/completions": _EVENTS,
    "/infill": _EVENTS,
    "/v1/responses": _EVENTS,
    "/v1/messages": _EVENTS,
    "/api/chat": _LINES,
    "/api/generate": _LINES,
    "/api/create": _LINES,
    "/api/pull": _LINES,
    "/tessera/v1/stats": _EVENTS,
    "/tessera/v1/jobs/events": _EVENTS,
    "/tessera/v1/jobs/{job}/events": _EVENTS,
}
_ALWAYS_STREAMS: Final = frozenset(
    {"/tessera/v1/stats", "/tessera/v1/jobs/events", "/tessera/v1/jobs/{job}/events"}
)
_KEYS: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"x-api-key": []}, {"api-key": []}]


def complete(app: FastAPI) -> None:
    """Let `app` publish a complete page."""
    bare = app.openapi

    def page() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(bare())
        return app.openapi_schema

    app.openapi = page  # type: ignore[method-assign]  # FastAPI documents this as the way to change the page


def _completed(page: dict[str, Any]) -> dict[str, Any]:
    page["components"] = {
        "schemas": {"Error": OPENAI_ERROR, "AnthropicError": ANTHROPIC_ERROR, "OllamaError": OLLAMA_ERROR},
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            **{name: {"type": "apiKey", "in": "header", "name": name} for name in ("x-api-key", "api-key")},
        },
    }
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            _operation(method, path, operation)
    return page


def _operation(method: str, path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own shape, which is never sent
    for status, response in responses.items():
        if status != "204":
            _success(method, path, response)
    name = "AnthropicError" if speaks_anthropic(path) else "OllamaError" if speaks_ollama(path) else "Error"
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    responses |= {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    if path in OPEN_PATHS:
        operation["security"] = []
    else:
        operation["security"] = _KEYS if manages(path) else [{}, *_KEYS]


def _success(method: str, path: str, response: dict[str, Any]) -> None:
    content: dict[str, dict[str, Schema]] = response.setdefault("content", {})
    known = ANSWERS.get((method, path))
    if known is not None:
        content["application/json"] = {"schema": known}
    stream = _STREAMS.get(path)
    if stream is not None:
        content[stream] = {"schema": TEXT}
    if path in _ALWAYS_STREAMS:
        content.pop("application/json", None)
    if path == "/metrics":
        content.clear()
        content["text/plain"] = {"schema": TEXT}
    if not content:
        del response["content"]
