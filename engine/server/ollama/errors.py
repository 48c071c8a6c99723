"""Errors in Ollama's shape."""

from typing import Any, Final

from engine.api.protocols.errors import OllamaError
from engine.errors import EngineError
from engine.server.errors import ErrorShape, openai_body


def ollama_body(error: Exception, path: str = "") -> dict[str, Any]:
    """Ollama's error: a text; its code is beside it."""
    known = isinstance(error, EngineError)
    body: dict[str, Any] = openai_body(error, path)["error"]
    facts = {k: v for k, v in body.items() if k not in ("message", "type")}
    return {"error": str(error) if known else body["message"], **facts}


def _refusal(_status: int, code: str, message: str) -> dict[str, Any]:
    return {"error": message, "code": code}


def _speaks(path: str) -> bool:
    return path.startswith("/api/") and not path.startswith("/api/v")


SHAPE: Final = ErrorShape(_speaks, ollama_body, _refusal, OllamaError)
