"""Arguments that a model nested too deep for Python's parser are text, wherever a call is written again."""

from engine.chat.template_messages import _arguments
from engine.chat.tools import call_rendering
from engine.chat.types import TemplateTraits, ToolCall
from engine.server.custom_tools import custom_input

DEEP = "[" * 100_000


def test_they_stay_text():
    call = ToolCall(id="c", name="look", arguments=DEEP)
    assert _arguments(call, TemplateTraits()) == {"arguments": DEEP}
    assert call_rendering._arguments(call) == {"arguments": DEEP}
    assert custom_input(DEEP) == DEEP
