"""From runner events to chat events."""

import asyncio

import pytest

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
from engine.chat.tools.dialects import BY_NAME
from engine.chat.types import (
    CallArguments,
    CallEnded,
    CallStarted,
    Message,
    NamedTool,
    ReasoningDelta,
    Rendered,
    TextDelta,
    ToolDefinition,
)
from engine.core.errors import InputFault
from engine.core.sampling import choose
from engine.core.types import Delta, Done, GenerationRequest, Started, Timings, TokenLogprob, Usage
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
