"""What Anthropic's clients rely on in an answer."""

from typing import Literal

from engine.api.protocols.base import ReadAnswer


class ContentBlock(ReadAnswer):
    """Text, thinking, or a use of a tool."""

    type: str


class AnthropicUsage(ReadAnswer):
    """Tokens of a request."""

    input_tokens: int
    output_tokens: int


class AnthropicMessage(ReadAnswer):
    """POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: tuple[ContentBlock, ...]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class CountedTokens(ReadAnswer):
    """POST /v1/messages/count_tokens."""

    input_tokens: int
