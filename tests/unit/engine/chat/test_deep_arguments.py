"""Calls and their results as a template gets them; arguments nested too deep for Python's parser stay text."""

from engine.chat.template_messages import _arguments, as_dicts
from engine.chat.tools import call_rendering
from engine.chat.types import Message, TemplateTraits, ToolCall
from engine.server.custom_tools import custom_input

DEEP = "[" * 100_000


def test_they_stay_text():
    call = ToolCall(id="c", name="look", arguments=DEEP)
    assert _arguments(call, TemplateTraits()) == {"arguments": DEEP}
    assert call_rendering._arguments(call) == {"arguments": DEEP}
    assert custom_input(DEEP) == DEEP


def test_a_result_carries_the_id_and_the_name_of_its_call():
    call = ToolCall(id="c1", name="look", arguments="{}")
    turns = [Message(role="assistant", tool_calls=(call,)), Message(role="tool", tool_call_id="c1", content="here")]
    _, result = as_dicts(turns, TemplateTraits(), "")
    assert (result["tool_call_id"], result["name"], result["content"]) == ("c1", "look", "here")
