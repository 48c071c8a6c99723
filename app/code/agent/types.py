"""What happens in an agent's session: calls, results, a plan; each is also a line of the transcript."""

from collections.abc import Callable
from typing import Literal

import msgspec

from app.tools.loop import Called, Returned

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
