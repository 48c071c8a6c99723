"""The calls of an answer, carried out: one loop for the window, the terminal and the agent."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from app.answer_facts import ToolCall
from app.tools.types import ToolOutcome

# A model that wants more rounds of calls for one question is lost.
MAX_ROUNDS: Final = 12
MAX_CALLS: Final = 16


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


class Tools(Protocol):
    """What carries out one call; whatever is wrong with it becomes an answer the model can act on."""

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Carry out one call."""
        ...


def carried_out(
    tools: Tools, calls: Sequence[ToolCall], cancelled: threading.Event | None = None
) -> Iterator[Called | Returned]:
    """Make the calls one after the other: each as it begins, then its result. Every call gets a result."""
    for number, call in enumerate(calls):
        named = Called(call_id(call.id, number), call.name, call.arguments)
        yield named
        if cancelled is not None and cancelled.is_set():
            outcome = ToolOutcome("Cancelled by the person.", ok=False)
        elif number >= MAX_CALLS:
            outcome = ToolOutcome(f"At most {MAX_CALLS} calls are carried out in one turn.", ok=False)
        else:
            outcome = tools.call(call.name, call.arguments)
        yield Returned(named.call_id, outcome.text, outcome.ok)


def call_id(given: str, number: int) -> str:
    """What links a call with its result, where the model gave nothing."""
    return given or f"call_{number}"


def answer_message(content: Any, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """An answer as a request has it, with the calls that it makes."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id(call.id, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
    return message


def result_message(call: str, text: str) -> dict[str, Any]:
    """The result of a call as a request has it."""
    return {"role": "tool", "tool_call_id": call, "content": text}
