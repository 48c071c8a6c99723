"""Events of an agent's session: calls, results, the plan; each is also a line of the transcript."""

from collections.abc import Callable
from typing import Literal

import msgspec

from app.tools.loop import ToolCallEvent, ToolResultEvent

PlanState = Literal["open", "doing", "done"]


class PlanItem(msgspec.Struct, frozen=True):
    """One step of the agent's plan."""

    text: str
    state: PlanState = "open"


class UserAsked(msgspec.Struct, frozen=True, tag="asked"):
    """The task, with its context."""

    text: str


class AssistantTextEvent(msgspec.Struct, frozen=True, tag="thought"):
    """Text of the model next to its calls, or its final response."""

    text: str


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """The current plan."""

    items: list[PlanItem]


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """An edit made without another prompt, because the user allowed edits for the session; `diff` is the change."""

    path: str
    diff: str


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """The files were saved before the next call; `tree` is the hash of all of them."""

    number: int
    tree: str


class Printed(msgspec.Struct, frozen=True, tag="printed"):
    """Output of a running command; the whole output is in the call's result, so the transcript omits it."""

    text: str


class CommandStarted(msgspec.Struct, frozen=True, tag="command started"):
    """A command starts; `command` is its argv for display. Not in the transcript, as the call is there."""

    command: str


class CommandEnded(msgspec.Struct, frozen=True, tag="command ended"):
    """A command ended; `exit_code` is None if it was stopped. Not in the transcript, as the result is there."""

    exit_code: int | None
    elapsed_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The reason why the session stopped."""

    reason: Literal["answered", "step limit", "cancelled", "failed"]
    detail: str = ""


AgentEvent = (
    UserAsked
    | AssistantTextEvent
    | ToolCallEvent
    | ToolResultEvent
    | Planned
    | Edited
    | Stepped
    | CommandStarted
    | Printed
    | CommandEnded
    | Ended
)
OnEvent = Callable[[AgentEvent], None]
