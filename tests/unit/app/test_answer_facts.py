"""Facts of stored messages: those of every earlier version are read, and damage costs one fact, not the chat."""

import json

from app.answer_facts import NO_FACTS, AnswerFacts, ToolCall, decoded, encoded, facts_of
from engine.api.chat import Runaway, Timings, Usage
from engine.message_catalog.reasons import because

# As written by versions before this struct.
OLD = {
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {}},
    "timings": {"ttft_s": 0.25, "tok_s": 12},
    "first_s": 1,
    "finish_reason": "stop",
    "runaway": {"kind": "loop", "passage": "again", "times": 9},
    "ran_on": "Answered by desk.",
    "ran_on_detail": {"kind": "no_model", "values": {"model": "m"}},
    "grounds": {"id": "c", "name": "Sea", "mode": "none"},
    "tool_calls": [{"name": "add", "arguments": "{}", "id": "c1"}],
    "edited": True,
    "error": "It failed.",
    "error_code": "internal",
    "error_facts": {"prompt_tokens": 4},
    "pictures_sent": True,
    "pictures_left_out": True,
    "left_out": ["a.pdf"],
    "tool": "Calculator",
    "call_id": "c1",
    "ok": False,
    "seconds": 0.5,
}  # fmt: skip


def test_facts_of_older_versions_are_read():
    facts = decoded(json.dumps(OLD))
    assert facts.usage == Usage(prompt_tokens=3, completion_tokens=2, total_tokens=5)
    assert facts.timings == Timings(ttft_s=0.25, tok_s=12.0)
    assert facts.runaway == Runaway(kind="loop", passage="again", times=9)
    assert facts.ran_on_detail == because("no_model", model="m")
    assert facts.tool_calls == (ToolCall("add", "{}", "c1"),)
    assert not facts.ok
    unread = {name for name in OLD if getattr(facts, name, None) == getattr(NO_FACTS, name, None)}
    assert unread == {"error_facts"}  # never displayed
    assert decoded(encoded(facts)) == facts


def test_a_damaged_fact_costs_no_other():
    facts = facts_of({**OLD, "grounds": {"id": 3}, "usage": [], "tool_calls": "x"})
    assert (facts.grounds, facts.usage, facts.tool_calls) == (None, None, ())
    assert (facts.finish_reason, facts.call_id) == ("stop", "c1")
    for stored in ("", "[]", "null", "{", '{"usage": {"total_tokens": NaN}}'):
        assert decoded(stored) == NO_FACTS


def test_what_is_not_known_takes_no_place():
    assert encoded(NO_FACTS) == "{}"
    assert encoded(AnswerFacts(edited=True)) == '{"edited":true}'
