"""Models for an agent: one behind the server, and one that plays a recorded session again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.client import Answer
from app.code.agent.transcript import turns_of
from app.code.agent.types import AgentEvent


@dataclass
class ModelTurn:
    """One answer."""

    text: str = ""
    calls: Sequence[tuple[str, str, str]] = ()


@dataclass
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class Chats(Protocol):
    """What carries a chat to the server: the client, or the window's connection."""

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterator[Answer]:
        """Stream an answer."""
        ...


@dataclass
class ServerModel:
    """A model of the server; `options` go into every request."""

    client: Chats
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """Ask the server; deltas of calls are put together by their index.

        Raises: ApiError, ServerUnreachable.
        """
        text: list[str] = []
        calls: dict[int, _Call] = {}
        for answer in self.client.chat(self.model, messages, tools=tools, **self.options):
            text.append(answer.text)
            for delta in answer.tool_calls:
                call = calls.setdefault(int(delta.get("index", 0)), _Call())
                function = delta.get("function") or {}
                call.call_id = delta.get("id") or call.call_id
                call.name = function.get("name") or call.name
                call.arguments += function.get("arguments") or ""
        made = [(call.call_id or f"call_{i}", call.name, call.arguments) for i, call in sorted(calls.items())]
        return ModelTurn("".join(text), made)


class ReplayedModel:
    """Answers as in a recorded session, whatever it is asked: the calls happen again, with consent again."""

    def __init__(self, events: Iterator[AgentEvent]) -> None:
        self._turns = iter(turns_of(events))

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        """The next recorded answer; an empty one after the last."""
        del messages, tools
        text, calls = next(self._turns, ("", []))
        return ModelTurn(text, [(call.call_id, call.tool, call.arguments) for call in calls])
