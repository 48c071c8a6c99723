"""What happens in an agent's session: calls, results, a plan; each is also a line of the transcript."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

PlanState = Literal["open", "doing", "done"]


class PlanItem(msgspec.Struct, frozen=True):
    """One step the agent means to take."""

    text: str
    state: PlanState = "open"


class UserAsked(msgspec.Struct, frozen=True, tag="asked"):
    """The task, with the context that went with it."""

    text: str


class Thought(msgspec.Struct, frozen=True, tag="thought"):
    """Text of the model beside its calls, or its final answer."""

    text: str


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A tool call as the model made it; `arguments` is the JSON text it wrote."""

    call_id: str
    tool: str
    arguments: str


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """What the tool gave back to the model. `ok` False: refused, failed or not understood."""

    call_id: str
    text: str
    ok: bool


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """The plan as it is now."""

    items: list[PlanItem]


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """An edit that was allowed for the session and is made without asking: what it changes."""

    path: str
    diff: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Why the session stopped."""

    reason: Literal["answered", "step limit", "cancelled", "failed"]
    detail: str = ""


AgentEvent = UserAsked | Thought | Called | Returned | Planned | Edited | Ended
OnEvent = Callable[[AgentEvent], None]


class ToolOutcome(msgspec.Struct, frozen=True):
    """A tool's answer to the model."""

    text: str
    ok: bool = True


class ToolRefused(Exception):
    """A call that is not carried out; the text goes back to the model."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_openai(self) -> dict[str, Any]:
        """The form of chat completions."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
