"""The routes of a chat: what the terminal needs for an answer, and no more types than those."""

from collections.abc import Mapping
from typing import Any

from app.client.chat_stream import AnswerStream, chat_body
from app.client.transport import Asking
from engine.api.chat import ChatChunk, ModelList, ModelRow, TokenCount


class ChatRoutes(Asking):
    """Models, answers and tokens over any connection to a server."""

    def chat_models(self) -> tuple[ModelRow, ...]:
        """Models the server can load."""
        return self.get("/v1/models", ModelList).data

    def answer(self, body: Mapping[str, Any]) -> AnswerStream:
        """Stream the answer to a request of `chat_body`'s shape. Closing it stops the generation."""
        return AnswerStream(self.stream("/v1/chat/completions", ChatChunk, body))

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> AnswerStream:
        """Stream an answer to a conversation."""
        return self.answer(chat_body(model, messages, options))

    def count_tokens(self, model: str, text: str) -> int:
        """Tokens of a text as a local model counts them. Raises: ApiError, also for a model of another server."""
        return self.post("/tokenize", TokenCount, {"model": model, "content": text, "priority": "side"}).count
