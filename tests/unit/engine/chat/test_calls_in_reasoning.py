"""A call that a model only considers in its reasoning is not executed; a call in reasoning left open is."""

import pytest

from engine.chat.reasoning import open_markers
from engine.chat.tools.dialect import marks_of
from engine.chat.tools.dialects import BY_NAME, DIALECTS, choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import Message
from tests.unit.engine.chat.conversations import NAMES, TOOLS, collect, render, source, turn

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WEATHER = [("get_weather", {"city": "Rome"})]
# Templates of the families whose call markers count inside reasoning; the others ignore them there.
FAMILIES = {name: choose(source(name)) for name in NAMES}
WEIGHING = [name for name, family in FAMILIES.items() if family.breaks_reasoning and not family.bare_first]


def parse(dialect, text, prefill="", **how):
    whole = AnswerParser(dialect, TOOLS, prefill)
    result = collect(whole.feed(text) + whole.finish(**how))
    single = AnswerParser(dialect, TOOLS, prefill)
    assert collect([e for c in text for e in single.feed(c)] + single.finish(**how)) == result, "depends on cuts"
    return result


def calls_of(name):
    """(dialect, prefill that opens reasoning or nothing, its opening mark, its end, a template's text of calls)."""
    dialect = choose(source(name))
    prefill, generated, expected = turn(name)
    opened = open_markers(prefill, dialect.reasoning)
    breakers = marks_of(dialect, calls=True, reasoning=dialect.reasoning).breakers
    at = min(generated.find(mark) for mark in breakers if mark in generated)
    marks = opened or dialect.reasoning
    return dialect, prefill if opened else "", "" if opened else marks.start, marks.end, generated[at:], expected


@pytest.mark.parametrize("name", WEIGHING)
def test_a_weighed_call_of_every_family_is_reasoning(name):
    dialect, prefill, start, end, calls, _ = calls_of(name)
    text = f"{start}I could write {calls} but need not.{end}\n\nNo call needed."
    said, reasoning, made, malformed = parse(dialect, text, prefill)
    assert (said, made, malformed) == ("No call needed.", [], [])
    assert reasoning == f"I could write {calls} but need not."


@pytest.mark.parametrize("name", WEIGHING)
def test_a_weighed_call_does_not_hide_the_call_that_is_made(name):
    dialect, prefill, start, end, calls, expected = calls_of(name)
    text = f"{start}Perhaps {calls}{end}{calls}"
    _, reasoning, made, malformed = parse(dialect, text, prefill)
    assert (made, malformed) == (expected, [])
    assert reasoning.startswith("Perhaps ")


@pytest.mark.parametrize("name", WEIGHING)
def test_a_call_in_reasoning_that_is_never_closed_is_made(name):
    dialect, prefill, start, _, calls, expected = calls_of(name)
    text = f"{start}I look.\n{calls}"
    _, reasoning, made, malformed = parse(dialect, text, prefill)
    assert (reasoning, made, malformed) == ("I look.", expected, [])
    # It is unknown whether the end of the reasoning would have followed.
    assert parse(dialect, text, prefill, cut=True)[2] == []
    assert parse(dialect, text, prefill, ended=False)[2] == []


def test_nothing_of_a_weighed_call_is_sent_before_its_fate_is_known():
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    assert collect(parser.feed(f"<think>So: {CALL} and then")) == ("", "So:", [], [])
    assert collect(parser.feed("</think>Hello.")) == ("Hello.", f" {CALL} and then", [], [])
    assert collect(parser.finish()) == ("", "", [], [])


def test_several_weighed_calls_and_mentions():
    text = f"<think>A: {CALL}. B: {CALL}. Or only <tool_call> and <function=x>.</think>\nFine."
    said, reasoning, made, malformed = parse(BY_NAME["qwen-coder"], text)
    assert (said, made, malformed) == ("Fine.", [], [])
    assert reasoning.endswith("Or only <tool_call> and <function=x>.")


@pytest.mark.parametrize(
    "text",
    [f"Let me see. <think>Perhaps {CALL} but no.</think> Hello.", f"1 <think> {CALL} 2 </think> 3 {CALL[:11]}"],
)
def test_a_call_inside_a_block_that_begins_within_the_text_is_no_call(text):
    _, _, made, _ = parse(BY_NAME["hermes"], text)
    assert made == []


def test_a_mention_of_the_opening_mark_stops_no_call():
    said, _, made, _ = parse(BY_NAME["hermes"], f"The <think> tag is old. {CALL}")
    assert (said, made) == ("The <think> tag is old.", WEATHER)


@pytest.mark.parametrize("dialect", sorted({d.name for d in DIALECTS if d.reasoning}))
def test_a_closing_mark_that_closes_nothing_is_not_shown(dialect):
    end = BY_NAME[dialect].reasoning.end
    assert parse(BY_NAME[dialect], f"{end}\n\nHello.")[0] == "Hello."
    assert parse(BY_NAME[dialect], f"\n{end}{end}Hello.")[0] == "Hello."


def test_a_closing_mark_inside_a_sentence_is_text():
    assert parse(BY_NAME["hermes"], "Write </think> at the end.")[0] == "Write </think> at the end."


def test_a_family_without_reasoning_takes_the_marks_of_the_template():
    derived = "<|start_header_id|> <|python_tag|> \"parameters\" {{ content.split('[/THINK]') }}"
    assert choose(derived).name == "llama3"
    for template, start, end in (
        (derived, "<think>", "</think>"),
        ("functools {{ content.split('</think>') }}", "<think>", "</think>"),
        ("<function= </function> {{ content.split('[/THINK]') }}", "[THINK]", "[/THINK]"),
    ):
        dialect = choose(template)
        call = '<function=get_weather>{"city": "Rome"}</function>'
        said, reasoning, made, _ = parse(dialect, f"{start}I could {call} but no.{end}Hello.")
        assert (said, made, reasoning) == ("Hello.", [], f"I could {call} but no.")


@pytest.mark.slow
def test_templates_that_open_the_block_are_covered():
    opened = [n for n in WEIGHING if open_markers(render(n, [Message(role="user", content="x")]).prefill)]
    assert len(opened) > 5, "tests above must have met blocks that the template opened"


@pytest.mark.parametrize("dialect", ["generic", "granite", "phi"])
def test_families_whose_calls_never_break_reasoning(dialect):
    start = BY_NAME[dialect].sections[0].start
    call = f'{start}[{{"name": "get_weather", "arguments": {{"city": "Rome"}}}}]'
    assert parse(BY_NAME[dialect], f"<think>Perhaps {call}</think>Hello.")[::2] == ("Hello.", [])
