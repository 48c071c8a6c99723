"""Errors in the shapes of OpenAI, Anthropic and Ollama."""

from typing import Literal

from engine.api.protocols.base import ReadAnswer
from engine.message_catalog.reasons import Reason


class ErrorDetail(ReadAnswer):
    """What went wrong: words for a person, a `code` for a program, the field in `param` if one is to blame.

    `detail`: the words as a kind with values, where Tessera has them so.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    detail: Reason | None = None


class Error(ReadAnswer):
    """OpenAI's error, and that of our own routes. Facts (bytes needed, tokens) stand beside the message."""

    error: ErrorDetail


class AnthropicErrorDetail(ReadAnswer):
    """Kind and words of an error."""

    type: str
    message: str


class AnthropicError(ReadAnswer):
    """Anthropic's error."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class OllamaError(ReadAnswer):
    """Ollama's error."""

    error: str
