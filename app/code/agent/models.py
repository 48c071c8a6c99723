"""Models for an agent: one behind the server, and one that plays a recorded session again."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.answer_facts import ToolCall
from app.client import Answer, WholeAnswer
from app.code.agent.transcript import turns_of
from app.code.agent.types import AgentEvent


@dataclass
class ModelTurn:
    """One answer."""

    text: str = ""
    calls: Sequence[ToolCall] = ()


class Chats(Protocol):
    """What carries a chat to the server: the client, or the window's connection."""

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterable[Answer]:
        """Stream an answer."""
        ...


@dataclass
class ServerModel:
    """A model of the server; `options` go into every request."""

    client: Chats
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """Ask the server. Raises: ApiError, ServerUnreachable."""
        whole = WholeAnswer()
        for chunk in self.client.chat(self.model, messages, tools=tools, **self.options):
            whole.take(chunk)
        return ModelTurn(whole.content, whole.tools.calls)


class ReplayedModel:
    """Answers as in a recorded session, whatever it is asked: the calls happen again, with consent again."""

    def __init__(self, events: Iterator[AgentEvent]) -> None:
        self._turns = iter(turns_of(events))

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """The next recorded answer; an empty one after the last."""
        del messages, tools
        text, calls = next(self._turns, ("", []))
        return ModelTurn(text, [ToolCall(call.tool, call.arguments, call.call_id) for call in calls])
