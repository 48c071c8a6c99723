"""Errors in Ollama's format."""

import json
from typing import Any, Final

from devices.errors import TesseraError
from engine.api.protocols.routes import OllamaError
from engine.server.errors import ErrorShape
from engine.server.openai.errors import openai_body


def ollama_body(error: Exception, path: str = "") -> dict[str, Any]:
    """Ollama's error text, with OpenAI's other error fields next to it."""
    is_ours = isinstance(error, TesseraError)
    body: dict[str, Any] = openai_body(error, path)["error"]
    facts = {k: v for k, v in body.items() if k not in ("message", "type")}
    return {"error": str(error) if is_ours else body["message"], **facts}


def error_line(error: Exception) -> bytes:
    """The error as a line, for streams that have already started."""
    return json.dumps(ollama_body(error)).encode() + b"\n"


def _refusal(_status: int, code: str, message: str) -> dict[str, Any]:
    return {"error": message, "code": code}


SHAPE: Final = ErrorShape(("/api/",), ollama_body, error_line, _refusal, OllamaError)
