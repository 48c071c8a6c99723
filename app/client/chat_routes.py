"""Chat routes: only those that the terminal needs for a response, to keep imports small."""

from collections.abc import Mapping
from typing import Any

from app.client.chat_stream import AnswerStream, chat_body
from app.client.transport import Transport
from engine.api.chat import ChatChunk, ModelList, ModelRow, TokenCount


class ChatRoutes(Transport):
    """Models, responses and token counts over any connection to a server."""

    def chat_models(self) -> tuple[ModelRow, ...]:
        """Models that the server can load."""
        return self.get("/v1/models", ModelList).data

    def answer(self, body: Mapping[str, Any]) -> AnswerStream:
        """Stream the response to a request built by `chat_body`. Closing it stops generation."""
        return AnswerStream(self.stream("/v1/chat/completions", ChatChunk, body))

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> AnswerStream:
        """Stream a response to a conversation."""
        return self.answer(chat_body(model, messages, options))

    def count_tokens(self, model: str, text: str) -> int:
        """Token count of a text for a local model. Raises: ApiError, also for a model of another server."""
        return self.post("/tokenize", TokenCount, {"model": model, "content": text, "priority": "side"}).count
