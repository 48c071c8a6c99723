"""Which protocol a path belongs to, and its shape of an error: a client must be able to read its own refusal."""

from typing import Any

from engine.errors import EngineError
from engine.server.anthropic.errors import anthropic_body, body_for
from engine.server.errors import openai_body


def speaks_ollama(path: str) -> bool:
    """A route of Ollama's protocol."""
    return path.startswith("/api/") and not path.startswith("/api/v")


def speaks_anthropic(path: str) -> bool:
    """A route of Anthropic's protocol."""
    return path.startswith("/v1/messages")


def error_body(path: str, error: Exception) -> dict[str, Any]:
    """An exception as the error object of the path's protocol."""
    if speaks_anthropic(path):
        return anthropic_body(error)
    if speaks_ollama(path):
        return ollama_body(error, path)
    return openai_body(error, path)


def refusal_body(path: str, status: int, code: str, message: str) -> dict[str, Any]:
    """A refusal that no route has seen, as the error object of the path's protocol."""
    if speaks_anthropic(path):
        return body_for(status, message)
    if speaks_ollama(path):
        return {"error": message, "code": code}
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def ollama_body(error: Exception, path: str = "") -> dict[str, Any]:
    """Ollama's error: a text; its code stands beside it."""
    known = isinstance(error, EngineError)
    body: dict[str, Any] = openai_body(error, path)["error"]
    facts = {k: v for k, v in body.items() if k not in ("message", "type")}
    return {"error": str(error) if known else body["message"], **facts}
