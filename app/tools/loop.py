"""Run the tool calls of a response; used by window, terminal and agent."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from app.answer_facts import ToolCall, WebSource
from app.tools.types import ToolOutcome

# A model that needs more rounds of calls for one prompt will not succeed.
MAX_ROUNDS: Final = 12
MAX_CALLS: Final = 16


class ToolCallEvent(msgspec.Struct, frozen=True, tag="called"):
    """A tool call from the model; `arguments` is its JSON text."""

    call_id: str
    tool: str
    arguments: str


class ToolResultEvent(msgspec.Struct, frozen=True, tag="returned"):
    """Tool result sent to the model. `ok` is False if the call was refused, failed or unparsable."""

    call_id: str
    text: str
    ok: bool
    sources: tuple[WebSource, ...] = ()


class Tools(Protocol):
    """Runs one call; an error becomes a result that the model can act on."""

    def call(self, name: str, arguments: str) -> ToolOutcome:
        """Run one call."""
        ...


def carried_out(
    tools: Tools, calls: Sequence[ToolCall], cancelled: threading.Event | None = None
) -> Iterator[ToolCallEvent | ToolResultEvent]:
    """Run the calls in order; yield each call when it starts, then its result. Every call gets a result."""
    for number, call in enumerate(calls):
        event = ToolCallEvent(call_id(call.id, number), call.name, call.arguments)
        yield event
        if cancelled is not None and cancelled.is_set():
            outcome = ToolOutcome("Cancelled by the person.", ok=False)
        elif number >= MAX_CALLS:
            outcome = ToolOutcome(f"At most {MAX_CALLS} calls are carried out in one turn.", ok=False)
        else:
            outcome = tools.call(call.name, call.arguments)
        yield ToolResultEvent(event.call_id, outcome.text, outcome.ok, outcome.sources)


def call_id(sent_id: str, number: int) -> str:
    """Id that links a call with its result; generated if the model gave none."""
    return sent_id or f"call_{number}"


def answer_message(content: Any, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """A response as an assistant message for the next request, with its calls."""
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
    """The result of a call as a message for the next request."""
    return {"role": "tool", "tool_call_id": call, "content": text}
