"""Continues a started answer with every family's own markers; forced calls end."""

import asyncio

import pytest

from engine.chat.chat_pipeline import Conversations, ResponseReader
from engine.chat.query import ChatQuery
from engine.chat.render_protocol import RenderJob
from engine.chat.tools.dialects import choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import CallEnded, CallStarted, ChatTemplate, Message
from engine.core.types import Constraint, Delta, ModelFacts
from tests.unit.engine.chat.conversations import NAMES, RENDERER, TOOLS, collect, source
from tests.unit.engine.chat.test_conversation import done, prepared

QUESTION = Message(role="user", content="Hello?")
# Families that mark their reasoning, with the text that ends it.
ENDS = {
    name: "<|end|><|start|>assistant<|channel|>final<|message|>"
    if family.name == "harmony"
    else family.reasoning.end
    for name in NAMES
    if (family := choose(source(name))).reasoning or family.name == "harmony"
}


def continued(name, reasoning, content):
    """The rendered template of a conversation whose last answer is to be continued."""
    answer = Message(role="assistant", content=content, reasoning=reasoning)
    job = RenderJob(
        template=ChatTemplate(source=source(name), bos="<s>", eos="</s>"),
        messages=(QUESTION, answer),
        continue_final=True,
        variables={"enable_thinking": True},
    )
    return RENDERER.render(job)


def read(name, rendered, text, size):
    parser = AnswerParser(choose(source(name)), TOOLS, rendered.prefill)
    events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
    return collect(events + parser.finish())


def test_most_families_are_here():
    assert len(ENDS) >= 35


@pytest.mark.parametrize("name", ENDS)
def test_reasoning_goes_on_with_its_spaces_and_ends_at_the_familys_own_mark(name):
    rendered = continued(name, "I'm", "")
    assert rendered.prompt.endswith("I'm")
    for size in (1, 1000):
        text, reasoning, calls, malformed = read(name, rendered, f" thinking{ENDS[name]}Hello, world!", size)
        assert (text, reasoning, calls, malformed) == ("Hello, world!", " thinking", [], [])


@pytest.mark.parametrize("name", ENDS)
def test_an_answer_behind_its_reasoning_goes_on_as_text(name):
    rendered = continued(name, "Done thinking.", "Hello,")
    assert ENDS[name] in rendered.prompt[rendered.prompt.rindex("Done thinking.") :]
    assert rendered.prompt.endswith("Hello,")
    own = choose(source(name)).reasoning
    if own is None or own.start != "<think>":
        assert "<think>" not in rendered.prefill
    for size in (1, 1000):
        text, reasoning, calls, _ = read(name, rendered, " world!", size)
        assert (text, reasoning, calls) == (" world!", "", [])


def test_a_message_to_a_tool_of_the_maker_is_reported_and_not_shown():
    text = (
        "<|channel|>analysis<|message|>I run it<|end|><|start|>assistant<|channel|>commentary to=python "
        '<|constrain|>code<|message|>print("hello")<|end|><|start|>assistant<|channel|>final<|message|>Done.'
    )
    for tools in (TOOLS, ()):
        for size in (1, 1000):
            parser = AnswerParser(choose(source("openai-gpt-oss-120b")), tools, "<|start|>assistant")
            events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
            assert collect(events + parser.finish()) == ("Done.", "I run it", [], ['print("hello")'])


CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>\n'
SAME = '<tool_call>\n{"name": "get_time", "arguments": {"days":1,"city":"Rome"}}\n</tool_call>\n'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>\n'


def forced(*texts, end=None):
    """(started, ended, finished) of a forced answer read token by token."""
    answer = ResponseReader(prepared(tools=TOOLS, tool_choice="required"))
    events = []
    for char in "".join(texts):
        events += answer.feed(Delta(text=char, token_ids=(1,)))
        if answer.done:
            return events, answer.stopped_early()
    events += answer.feed(end or done())
    return events[:-1], events[-1]


def counts(events):
    return sum(isinstance(e, CallStarted) for e in events), sum(isinstance(e, CallEnded) for e in events)


def test_a_forced_answer_ends_where_a_call_is_repeated():
    events, finished = forced(CALL, OTHER, SAME, CALL)
    assert counts(events) == (2, 2)
    assert finished.finish_reason == "tool_calls"
    assert any("repeated" in note for note in finished.notes)


@pytest.mark.parametrize("cut", range(1, len(OTHER) - 1))
def test_a_forced_call_that_is_cut_is_left_out_beside_a_whole_one_and_no_mark_is_text(cut):
    events, finished = forced(CALL, OTHER[:cut], end=done("length"))
    text, _, calls, malformed = collect(events)
    assert text == ""
    assert malformed == []
    assert all(arguments for _, arguments in calls)
    assert counts(events) in {(1, 1), (2, 2)}
    assert finished.finish_reason == "length"


def test_a_single_forced_call_that_is_cut_is_passed_on():
    events, _ = forced(CALL[:60], end=done("length"))
    assert counts(events) == (1, 0)


class _Checker:
    async def fit(self, constraint, _param):
        return constraint, ()


class _Renderer:
    async def render(self, template, messages, tools, **options):
        options.pop("by_client")
        return RENDERER.render(RenderJob(template=template, messages=messages, tools=tools, **options))


SPEAKING = [name for name in NAMES if choose(source(name)).content_opening]


@pytest.mark.parametrize("name", SPEAKING)
@pytest.mark.parametrize(
    ("reasoning", "content", "opening_is_awaited"),
    [
        ("", "Hello,", False),
        ("Done.", "Hello,", False),
        ("I'm", "", True),
        ("I write {opening} next, and", "", True),
        ("", "", True),
    ],
)
def test_an_output_format_waits_only_for_an_opening_that_the_prompt_does_not_hold(
    name, reasoning, content, opening_is_awaited
):
    opening = choose(source(name)).content_opening
    thought = reasoning.format(opening=opening)
    begun = (Message(role="assistant", content=content, reasoning=thought),) if thought or content else ()
    query = ChatQuery(
        messages=(QUESTION, *begun),
        continue_final=bool(begun),
        add_generation_prompt=not begun,
        output=Constraint(kind="json_schema", source='{"type":"object"}'),
    )
    facts = ModelFacts(
        architecture="llama", description="", n_params=1, size_bytes=1, n_vocab=1, n_ctx=1, n_ctx_train=1,
        n_parallel=1, n_embd=1, chat_template=source(name), bos="<s>", eos="</s>", add_bos=True, fim={},
        metadata={},
    )  # fmt: skip
    prepared_chat = asyncio.run(Conversations(_Renderer(), _Checker()).prepare(facts, query))
    awaited = ("", opening) if opening_is_awaited else None
    assert prepared_chat.request.constraint.preamble == awaited
    assert prepared_chat.request.constraint.preamble_open == opening_is_awaited
