"""From runner events to chat events."""

import asyncio

import pytest

from engine.chat import chat_pipeline
from engine.chat.chat_pipeline import (
    AnswerFinished,
    AnswerLogprobs,
    AnswerStarted,
    PreparedChat,
    ResponseReader,
    check_tools,
    read,
)
from engine.chat.query import ChatQuery
from engine.chat.render_child import Renderer
from engine.chat.render_protocol import RenderJob
from engine.chat.template_messages import as_dicts
from engine.chat.tools.dialects import BY_NAME
from engine.chat.types import (
    CallArguments,
    CallEnded,
    CallStarted,
    ChatTemplate,
    Message,
    NamedTool,
    ReasoningDelta,
    Rendered,
    TemplateTraits,
    TextDelta,
    ToolDefinition,
)
from engine.core.errors import InputFault
from engine.core.sampling import choose
from engine.core.types import Delta, Done, GenerationRequest, Started, Timings, TokenLogprob, Usage
from engine.server.openai.schemas import ChatMessage
from engine.server.openai.translate import to_messages
from tests.unit.engine.chat.conversations import TOOLS

HELLO = (Message(role="user", content="hi"),)
CALL = '<tool_call>{"name": "get_time", "arguments": {"city": "Rome"}}</tool_call>'


def prepared(dialect="hermes", prefill="", **query):
    return PreparedChat(
        request=GenerationRequest(prompt="p"),
        sampling=choose({}),
        rendered=Rendered(prompt="p", prefill=prefill, add_special=True),
        dialect=BY_NAME[dialect],
        query=ChatQuery(messages=HELLO, **query),
    )


def done(reason="stop", **fields):
    return Done(
        finish_reason=reason, usage=Usage(prompt_tokens=3, completion_tokens=5), timings=Timings(), **fields
    )


def token(text):
    return Delta(text=text, token_ids=(1,), logprobs=(TokenLogprob(1, text.encode(), -0.5),))


def run(chat, *events):
    closed = []

    async def source():
        try:
            for event in events:
                yield event
        finally:
            closed.append(True)

    async def everything():
        return [event async for event in read(ResponseReader(chat), source())]

    out = asyncio.run(everything())
    assert closed == [True], "the runner's stream must be left in any case"
    return out


def test_a_plain_answer():
    out = run(prepared(), Started(prompt_tokens=3, cached_tokens=2), Delta(text="Hel"), Delta(text="lo"), done())
    assert out[0] == AnswerStarted(prompt_tokens=3, cached_tokens=2)
    assert out[1:3] == [TextDelta("Hel"), TextDelta("lo")]
    assert out[3] == AnswerFinished(finish_reason="stop", usage=done().usage, timings=Timings())


def test_logprobs_are_those_of_visible_tokens():
    pieces = ["<think>", "hm", "</think>", "yes", "!"]
    out = run(prepared(), *map(token, pieces), done())
    told = [e.piece for event in out if isinstance(event, AnswerLogprobs) for e in event.entries]
    assert b"hm" not in told
    assert told[-2:] == [b"yes", b"!"]
    assert ReasoningDelta("hm") in out


def test_reasoning_tokens_are_counted_with_their_marks():
    parts = ["<think>", "h", "m", "</think>", "yes", "!"]
    chat = prepared(prefill="")
    out = run(chat, *(Delta(text=part, token_ids=(1,)) for part in parts), done())
    assert out[-1].usage == Usage(prompt_tokens=3, completion_tokens=5, reasoning_tokens=4)
    assert run(prepared(), Delta(text="yes", token_ids=(1, 2)), done())[-1].usage.reasoning_tokens == 0


def test_a_call_ends_with_tool_calls():
    out = run(prepared(tools=TOOLS), Delta(text=CALL), done())
    assert [type(event) for event in out] == [
        CallStarted,
        *[CallArguments] * (len(out) - 3),
        CallEnded,
        AnswerFinished,
    ]
    assert out[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("reason", ["length", "cancelled", "error"])
def test_other_ends_are_kept(reason):
    out = run(prepared(tools=TOOLS), Delta(text=CALL + " and"), done(reason))
    assert out[-1].finish_reason == reason


def test_one_call_is_enough_where_parallel_calls_are_off():
    events = [Delta(text=c, token_ids=(1,)) for c in CALL + CALL]
    out = run(prepared(tools=TOOLS, parallel_tool_calls=False), Started(prompt_tokens=7, cached_tokens=0), *events)
    assert sum(isinstance(event, CallStarted) for event in out) == 1
    assert out[-1].finish_reason == "tool_calls"
    assert (out[-1].usage.prompt_tokens, out[-1].usage.completion_tokens) == (7, len(CALL) - len("</tool_call>"))


def test_a_call_nobody_wanted_is_reported():
    out = run(prepared(tools=TOOLS, tool_choice="none"), Delta(text="a " + CALL), done())
    assert not any(isinstance(event, (CallStarted, CallArguments, CallEnded)) for event in out)
    assert out[-1].malformed == ('get_time{"city":"Rome"}',)
    assert out[-1].finish_reason == "stop"


def test_the_prefill_opens_reasoning():
    out = run(prepared(prefill="<think>\n"), Delta(text="hm</think>yes"), done())
    assert out[:2] == [ReasoningDelta("hm"), TextDelta("yes")]


@pytest.mark.parametrize(
    "query",
    [
        {"tools": (ToolDefinition(name="a b"),)},
        {"tools": (ToolDefinition(name=""),)},
        {"tools": (ToolDefinition(name='a"'),)},
        {"tools": (ToolDefinition(name="a" * 129),)},
        {"tools": (ToolDefinition(name="a"), ToolDefinition(name="a"))},
        {"tools": TOOLS, "tool_choice": NamedTool(name="other")},
        {"tool_choice": "required"},
    ],
)
def test_tools_that_cannot_work_are_refused(query):
    with pytest.raises(InputFault):
        check_tools(ChatQuery(messages=HELLO, **query))


@pytest.mark.parametrize("name", ["a", "get_weather", "mcp.server-1:tool/x", "größe"])
def test_names_that_clients_use_pass(name):
    check_tools(ChatQuery(messages=HELLO, tools=(ToolDefinition(name=name),)))


# The shape of TranslateGemma's template: it reads the languages from the single part of each question.
TRANSLATES = """{{ bos_token }}{%- if messages[0]['role'] != 'user' -%}
{{ raise_exception('Conversations must start with a user prompt.') }}{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}<start_of_turn>model
{{ message['content'] | trim }}<end_of_turn>
{% else -%}
{%- if message['content'] is string or message['content'] | length != 1 -%}
{{ raise_exception('User role must provide `content` as an iterable with exactly one item.') }}{%- endif -%}
{%- set part = message['content'][0] -%}
<start_of_turn>user
Translate {{ part['source_lang_code'] }} to {{ part['target_lang_code'] }}: {{ part['text'] | trim }}<end_of_turn>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}"""


def translated(parts, **variables):
    messages = to_messages([ChatMessage(role="user", content=parts)])
    template = ChatTemplate(source=TRANSLATES, bos="", eos="")
    job = RenderJob(template=template, messages=tuple(messages), variables=variables)
    return Renderer().render(job)


def test_a_part_names_the_languages_of_a_translation():
    part = {"type": "text", "text": "Hallo", "source_lang_code": "de", "target_lang_code": "fr", "other": "x"}
    rendered = translated([part])
    assert "Translate de to fr: Hallo" in rendered.prompt
    assert rendered.repairs == ()
    variables = {"source_lang_code": "de", "target_lang_code": "fr"}
    assert "Translate de to fr: Hallo" in translated("Hallo", **variables).prompt
    bare = translated([{"type": "text", "text": "Hallo"}])
    assert "Translate en-GB to en-GB: Hallo" in bare.prompt
    assert "source_lang_code" in bare.repairs[0]


def test_members_of_parts_reach_no_template_that_does_not_read_them():
    part = {"type": "text", "text": "Hi", "source_lang_code": "de", "cache_control": {"type": "ephemeral"}}
    [message] = to_messages([ChatMessage(role="user", content=[part])])
    traits = TemplateTraits(typed_content=True)
    [item] = as_dicts([message], traits, "{{ message.content[0].text }}")
    assert item["content"] == [{"type": "text", "text": "Hi"}]
    [plain] = to_messages([ChatMessage(role="user", content=[{**part, "source_lang_code": 1}])])
    assert plain.content == "Hi"


@pytest.mark.parametrize(
    ("asked", "source", "tokens"),
    [
        ({"reasoning_effort": "low"}, "", 1024),
        ({"reasoning_effort": "low", "thinking": True}, "", 1024),
        ({"reasoning_effort": "low", "thinking": False}, "", None),
        ({"reasoning_effort": "low"}, "{{ reasoning_effort }}", None),
        ({"reasoning_effort": "low", "reasoning_budget": 7}, "", 7),
        ({"reasoning_effort": "high"}, "", None),
        ({}, "", None),
    ],
)
def test_reasoning_is_bounded_by_the_request_unless_the_template_does_that(asked, source, tokens):
    assert chat_pipeline._tokens(ChatQuery(messages=(), **asked), source) == tokens
