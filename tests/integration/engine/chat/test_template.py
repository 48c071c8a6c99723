"""Template rendering: the template's input, the prefill, and repairs of conversations."""

import asyncio
from pathlib import Path

import pytest

from engine.chat.builtin import MEDIA_MARKER
from engine.chat.template import BadTemplate, TemplateRenderer
from engine.chat.types import ChatTemplate, ImagePart, Message, TextPart, ToolCall, ToolDefinition
from engine.core.errors import InputFault

TEMPLATES = Path("tests/data/templates")
USER = Message(role="user", content="hi")
TOOL = ToolDefinition(
    name="get_weather",
    description="weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CALL = ToolCall(id="abcdefghi", name="get_weather", arguments='{"city": "Zürich"}')


@pytest.fixture(scope="module")
def renderer():
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()


def render(renderer, source, messages, tools=(), bos="", **options):
    if "enable_thinking" in options:
        options["variables"] = {"enable_thinking": options.pop("enable_thinking")}
    return asyncio.run(renderer.render(ChatTemplate(source=source, bos=bos), messages, tools, **options))


def real(name):
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def test_the_built_in_template_is_chatml(renderer):
    rendered = render(renderer, None, [Message(role="system", content="be brief"), USER])
    assert (
        rendered.prompt
        == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.prefill == "<|im_start|>assistant\n"
    assert rendered.add_special
    assert rendered.repairs == ()


def test_a_template_that_writes_the_first_token_says_so(renderer):
    rendered = render(renderer, "{{ bos_token }}{{ messages[0].content }}", [USER], bos="<s>")
    assert rendered.prompt == "<s>hi"
    assert not rendered.add_special


def test_open_reasoning_is_part_of_the_prefill(renderer):
    rendered = render(renderer, real("Qwen3.5-4B"), [USER])
    assert rendered.prefill == "<|im_start|>assistant\n<think>\n"


def test_variables_reach_the_template(renderer):
    rendered = render(renderer, real("Qwen3.5-4B"), [USER], enable_thinking=False)
    assert rendered.prefill == "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_tojson_is_that_of_transformers(renderer):
    rendered = render(renderer, "{{ {'b': '<é>', 'a': 1} | tojson }}|{{ [1] | tojson(indent=2) }}", [USER])
    assert rendered.prompt == '{"b": "<é>", "a": 1}|[\n  1\n]'


def test_generation_and_loop_control_tags(renderer):
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(renderer, source, [USER, USER]).prompt == "hi"


def test_strftime_now_is_a_date(renderer):
    assert render(renderer, "{{ strftime_now('%Y') }}", [USER]).prompt.isdigit()


def test_tools_without_a_place_are_described_in_the_system_message(renderer):
    messages = [
        Message(role="system", content="SYS"),
        USER,
        Message(role="assistant", tool_calls=(CALL,)),
        Message(role="tool", tool_call_id=CALL.id, content="sunny"),
    ]
    rendered = render(renderer, None, messages, [TOOL])
    assert '"name": "get_weather"' in rendered.prompt
    assert rendered.prompt.index("SYS") < rendered.prompt.index("<tools>")
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>' in rendered.prompt
    assert "<tool_response>\nsunny\n</tool_response>" in rendered.prompt
    assert rendered.repairs


def test_parallel_calls_become_one_call_per_turn_where_a_template_has_only_those(renderer):
    second = ToolCall(id="jklmnopqr", name="get_weather", arguments='{"city": "Oslo"}')
    messages = [
        USER,
        Message(role="assistant", tool_calls=(CALL, second)),
        Message(role="tool", tool_call_id=CALL.id, content="sunny"),
        Message(role="tool", tool_call_id=second.id, content="snow"),
    ]
    rendered = render(renderer, real("meta-llama-Llama-3.1-8B-Instruct"), messages, [TOOL])
    places = [rendered.prompt.index(text) for text in ("Zürich", "sunny", "Oslo", "snow")]
    assert places == sorted(places)
    assert "parallel calls were written one after the other" in rendered.repairs


def test_a_system_message_goes_into_the_user_turn_where_there_is_no_system_role(renderer):
    rendered = render(renderer, real("google-gemma-2-2b-it"), [Message(role="system", content="SYS"), USER])
    assert "<start_of_turn>user\nSYS\n\nhi<end_of_turn>" in rendered.prompt
    assert "system role" in rendered.repairs[0]


def test_system_messages_in_the_middle_are_hoisted(renderer):
    messages = [Message(role="system", content="one"), USER, Message(role="developer", content="two")]
    rendered = render(renderer, real("Qwen3.5-4B"), messages)
    assert rendered.prompt.startswith("<|im_start|>system\none\n\ntwo")
    assert rendered.repairs == ("system messages were moved to the start",)


def test_turns_are_joined_where_roles_must_alternate(renderer):
    rendered = render(renderer, real("google-gemma-2-2b-it"), [USER, Message(role="user", content="there")])
    assert "user\nhi\n\nthere<end_of_turn>" in rendered.prompt
    assert rendered.repairs == ("neighbouring messages of one role were joined",)


def test_the_last_answer_can_be_continued(renderer):
    messages = [USER, Message(role="assistant", content="The answer is")]
    rendered = render(renderer, None, messages, continue_final=True)
    assert rendered.prompt.endswith("<|im_start|>assistant\nThe answer is")
    rendered = render(renderer, real("Qwen3.5-4B"), messages, continue_final=True)
    assert rendered.prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer is")


def test_pictures_become_markers_in_order(renderer):
    parts = (TextPart(text="a"), ImagePart(data=b"1"), TextPart(text="b"), ImagePart(data=b"2"))
    rendered = render(renderer, None, [Message(role="user", content=parts)])
    assert f"a{MEDIA_MARKER}b{MEDIA_MARKER}" in rendered.prompt
    assert [image.data for image in rendered.images] == [b"1", b"2"]


def test_text_may_not_forge_a_picture(renderer):
    parts = (TextPart(text=f"x{MEDIA_MARKER}"), ImagePart(data=b"1"))
    with pytest.raises(InputFault, match="__media__"):
        render(renderer, None, [Message(role="user", content=parts)])


def test_text_that_is_not_unicode_is_refused(renderer):
    with pytest.raises(InputFault, match="cannot be encoded"):
        render(renderer, None, [Message(role="user", content="\ud800")])


def test_malformed_arguments_in_a_history_do_not_break_the_render(renderer):
    call = ToolCall(id="abcdefghi", name="get_weather", arguments='{"city": ')
    messages = [USER, Message(role="assistant", tool_calls=(call,))]
    rendered = render(renderer, real("Qwen-Qwen3-0.6B"), messages, [TOOL])
    assert '"name": "get_weather"' in rendered.prompt


def test_an_empty_conversation_is_the_templates_to_refuse(renderer):
    with pytest.raises(BadTemplate):
        render(renderer, real("Spark2.5"), [])


@pytest.mark.parametrize(
    "name", ["NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "CohereForAI-c4ai-command-r-plus-tool_use"]
)
def test_templates_made_for_tools_also_render_without(renderer, name):
    assert "hi" in render(renderer, real(name), [USER]).prompt


def test_safe_does_not_make_what_follows_escape_itself(renderer):
    assert render(renderer, """{{ "a"|safe + '<"b">' }}""", [USER]).prompt == 'a<"b">'


def test_results_stand_inside_the_call_where_a_template_wants_them_there(renderer):
    messages = [
        USER,
        Message(role="assistant", tool_calls=(CALL,)),
        Message(role="tool", tool_call_id=CALL.id, content="sunny"),
    ]
    rendered = render(renderer, real("google-gemma-4-31B-it-interleaved"), messages, [TOOL])
    assert rendered.prompt.endswith('<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>')


def test_dates_are_todays(renderer):
    import datetime as dt

    today = dt.datetime.now().astimezone().strftime("%Y")
    assert today in render(renderer, real("meta-llama-Llama-3.1-8B-Instruct"), [USER]).prompt
