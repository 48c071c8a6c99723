"""Models for an agent: one of the server, and one that replays a recorded session."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.answer_facts import ToolCall
from app.client import ChatDelta, ChatResponse
from app.code.agent.loop import ModelTurn
from app.code.agent.transcript import group_turns
from app.code.agent.types import AgentEvent


class Chats(Protocol):
    """Sends a chat to the server: the client, or the window's connection."""

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterable[ChatDelta]:
        """Stream a response."""
        ...


@dataclass
class ServerModel:
    """A model of the server; `options` are added to every request."""

    client: Chats
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """Generate a response on the server. Raises: ApiError, ServerUnreachable."""
        whole = ChatResponse()
        for chunk in self.client.chat(self.model, messages, tools=tools, **self.options):
            whole.take(chunk)
        return ModelTurn(whole.content, whole.tools.calls)


class ReplayedModel:
    """Replays the responses of a recorded session whatever the input; tool calls run again, with consent again."""

    def __init__(self, events: Iterator[AgentEvent]) -> None:
        self._turns = iter(group_turns(events))

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """The next recorded response; an empty one after the last."""
        del messages, tools
        text, calls = next(self._turns, ("", []))
        return ModelTurn(text, [ToolCall(call.tool, call.arguments, call.call_id) for call in calls])
