"""The one loop over the calls of an answer: every call gets a result, whatever happens."""

import threading

from app.answer_facts import ToolCall
from app.tools.loop import MAX_CALLS, ToolCallEvent, ToolResultEvent, answer_message, carried_out, result_message
from app.tools.types import ToolOutcome


class Echo:
    def __init__(self, on_call=lambda: None):
        self.made, self.on_call = [], on_call

    def call(self, name, arguments):
        self.made.append((name, arguments))
        self.on_call()
        return ToolOutcome(f"{name} {arguments}", ok=name != "bad")


def test_a_call_is_announced_before_it_is_made_and_its_result_has_its_id():
    tools = Echo()
    events = carried_out(tools, [ToolCall("add", "{}", "c1"), ToolCall("bad", "")])
    assert (next(events), tools.made) == (ToolCallEvent("c1", "add", "{}"), [])
    assert list(events) == [
        ToolResultEvent("c1", "add {}", True),
        ToolCallEvent("call_1", "bad", ""),
        ToolResultEvent("call_1", "bad ", False),
    ]


def test_calls_beyond_the_limit_and_after_the_end_get_a_result_and_are_not_made():
    cancelled = threading.Event()
    tools = Echo()
    events = list(carried_out(tools, [ToolCall("add")] * (MAX_CALLS + 2), cancelled))
    assert len(tools.made) == MAX_CALLS
    assert [e.ok for e in events[-4:] if isinstance(e, ToolResultEvent)] == [False, False]
    tools = Echo(on_call=cancelled.set)
    results = [e for e in carried_out(tools, [ToolCall("add")] * 3, cancelled) if isinstance(e, ToolResultEvent)]
    assert (len(tools.made), [e.ok for e in results]) == (1, [True, False, False])


def test_the_messages_of_calls_and_results_share_their_ids():
    calls = [ToolCall("add", "{}", "c1"), ToolCall("add", "{}")]
    message = answer_message("Let me see.", calls)
    assert [call["id"] for call in message["tool_calls"]] == ["c1", "call_1"]
    results = [e for e in carried_out(Echo(), calls) if isinstance(e, ToolResultEvent)]
    assert [result_message(e.call_id, e.text)["tool_call_id"] for e in results] == ["c1", "call_1"]
    assert "tool_calls" not in answer_message("No.", [])
