# ruff: noqa: E501 - models' texts are kept on one line, with the full-width bars of DeepSeek
"""Reasoning, text and calls as models really generate them: correct, malformed or none."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.tools.dialect import MarkerMatch, earliest
from engine.chat.tools.dialects import BY_NAME, DIALECTS, choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import CallEnded, CallStarted, ToolDefinition
from tests.support.examples import examples
from tests.unit.engine.chat.conversations import TOOLS, collect

CALL = ("get_weather", {"city": "Rome"})
WELL = '{"name": "get_weather", "arguments": {"city": "Rome"}}'


def parse(text, dialect="hermes", prefill="", tools=TOOLS, *, cut=False):
    whole = AnswerParser(BY_NAME[dialect], tools, prefill)
    result = collect(whole.feed(text) + whole.finish(cut=cut))
    single = AnswerParser(BY_NAME[dialect], tools, prefill)
    assert collect([e for c in text for e in single.feed(c)] + single.finish(cut=cut)) == result, "depends on cuts"
    return result


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{WELL}\n</tool_call>",
        f"<tool_call>{WELL}",  # never closed
        f"<tool_call>\n{WELL[:-1]}\n</tool_call>",  # a brace is missing
        "<tool_call>\n{'name': 'get_weather', 'arguments': {'city': 'Rome'}}\n</tool_call>",
        '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get_weather"}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "parameters": {"city": "Rome"}}\n</tool_call>',
        '<tool_call>\n{"name": "functions.Get-Weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        '<tool_call>\n{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "city": "Rome"}\n</tool_call>',
        f"<tool_call>\n[{WELL}]\n</tool_call>",
        f"<tool_call>\n```json\n{WELL}\n```\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        WELL,
        f"```json\n{WELL}\n```",
        f"[{WELL}]",
        f"\n\n{WELL}\n",
    ],
)
def test_one_call_in_many_spellings(text):
    text_said, reasoning, calls, malformed = parse(text)
    assert calls == [CALL]
    assert (text_said, reasoning, malformed) == ("", "", [])


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}'),
        ("mistral", '[TOOL_CALLS]get_weather{"city": "Rome"}'),
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abc"}]'),
        ("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}'),
        ("llama3", '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}'),
        ("llama3", '<|python_tag|>get_weather.call(city="Rome")'),
        ("llama3", '<function=get_weather>{"city": "Rome"}</function>'),
        ("lfm2", '<|tool_call_start|>[get_weather(city="Rome")]<|tool_call_end|>'),
        ("lfm2", "<|tool_call_start|>[get_weather('Rome')]<|tool_call_end|>"),
        ("lfm2", f"<|tool_call_start|>[{WELL}]<|tool_call_end|>"),
        ("phi", f"<|tool_call|>[{WELL}]<|/tool_call|>"),
        ("phi", f"functools[{WELL}]"),
        ("granite", f"<|tool_call|>[{WELL}]"),
        (
            "deepseek",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        (
            "deepseek",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜>',
        ),
        (
            "kimi-k2",
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>',
        ),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'),
        ("glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"),
        ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"),
        (
            "harmony",
            '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        ),
        (
            "minimax-m2",
            '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Rome</parameter></invoke></minimax:tool_call>',
        ),
        ("generic", f"<tool_call>{WELL}</tool_call>"),
        ("generic", f"<function_call>{WELL}</function_call>"),
    ],
)
def test_dialects(dialect, text):
    said, _, calls, malformed = parse(text, dialect)
    assert calls == [CALL]
    assert (said, malformed) == ("", [])


def test_a_name_at_the_end_of_an_answer_is_a_call_without_arguments():
    assert parse("[TOOL_CALLS]get_weather", "mistral")[2:] == ([("get_weather", {})], [])


@pytest.mark.parametrize(
    "names",
    [("read", "Read"), ("get-file", "get_file"), ("list_files", "List-Files"), ("functions.a", "a"), ("é", "É")],
)
def test_a_tool_is_called_by_its_own_name_where_others_are_alike(names):
    for order in (names, names[::-1]):
        tools = tuple(
            ToolDefinition(name=name, parameters={"type": "object", "properties": {name: {"type": "string"}}})
            for name in order
        )
        for name in names:
            json_call = f'<tool_call>{{"name": "{name}", "arguments": {{"x": 1}}}}</tool_call>'
            assert parse(json_call, tools=tools)[2] == [(name, {"x": 1})]
            bare = f'{{"name": "{name}", "arguments": {{"x": 1}}}}'
            assert parse(bare, tools=tools)[2] == [(name, {"x": 1})]
            # An argument without a name gets the name of the tool's only parameter, as this tool's schema allows.
            unnamed = f'<tool_call>{{"name": "{name}", "arguments": "text"}}</tool_call>'
            assert parse(unnamed, tools=tools)[2] == [(name, {name: "text"})]
            tagged = (
                f"<tool_call>\n<function={name}>\n<parameter={name}>\n7\n</parameter>\n</function>\n</tool_call>"
            )
            assert parse(tagged, "qwen-coder", tools=tools)[2] == [(name, {name: "7"})]
            mistral = f'[TOOL_CALLS]{name}[ARGS]{{"x": 1}}'
            assert parse(mistral, "mistral", tools=tools)[2] == [(name, {"x": 1})]
            python = f"<|tool_call_start|>[{name}(x=1)]<|tool_call_end|>"
            assert parse(python, "lfm2", tools=tools)[2] == [(name, {"x": 1})]


def test_a_misspelling_that_fits_two_tools_is_none_of_them():
    tools = (ToolDefinition(name="get-file"), ToolDefinition(name="get_file"), ToolDefinition(name="other"))
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    assert parse(call % "Get_File", tools=tools)[2] == [("Get_File", {})]
    assert parse(call % "functions.get_file", tools=tools)[2] == [("get_file", {})]
    assert parse(call % "'get-file' ", tools=tools)[2] == [("get-file", {})]
    assert parse(call % "OTHER", tools=tools)[2] == [("other", {})]
    assert parse('{"name": "Get_File", "arguments": {}}', tools=tools)[0] == '{"name": "Get_File", "arguments": {}}'


JSON_CALL = f"<tool_call>\n{WELL}\n</tool_call>"
# Texts that a block separates are paragraphs, however the model spaced them.
APART = {
    "a call": (f"Let me look.\n\n{JSON_CALL}\nDone.", "Let me look.\n\nDone."),
    "a call without white space": (f"Let me look.{JSON_CALL}Done.", "Let me look.\n\nDone."),
    "two calls": (f"A {JSON_CALL}\n{JSON_CALL} B", "A\n\nB"),
    "a call each": (f"A {JSON_CALL} B {JSON_CALL} C", "A\n\nB\n\nC"),
    "a call that is none": ("A <tool_call>\nnothing to read\n</tool_call> B", "A\n\nB"),
    "a call that a text follows in pieces": (f"A {JSON_CALL}\n\n \n B  C", "A\n\nB  C"),
    "a call first": (f"{JSON_CALL}\nDone.", "Done."),
    "a call last": (f"Let me look. {JSON_CALL}\n", "Let me look."),
}


@pytest.mark.parametrize("name", APART)
def test_texts_around_calls_are_paragraphs(name):
    text, said = APART[name]
    for size in (len(text), 3, 1):
        parser = AnswerParser(BY_NAME["hermes"], TOOLS)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert collect(events + parser.finish())[0] == said


def test_texts_around_reasoning_and_reasonings_around_text_are_paragraphs():
    parser = AnswerParser(BY_NAME["harmony"], TOOLS)
    analysis, final = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    text = (
        f"{analysis}A<|end|><|start|>assistant{analysis}B<|end|><|start|>assistant<|channel|>commentary<|message|>C"
    )
    events = parser.feed(f"{text}<|end|><|start|>assistant{final}D")
    said, reasoning, _, _ = collect(events + parser.finish())
    assert (said, reasoning) == ("C\n\nD", "A\n\nB")


def test_text_that_only_begins_like_a_call_keeps_the_space_before_it():
    said = parse("In Python >>>print\nshows a prompt.", "functionary-v3.2")[0]
    assert said == "In Python >>>print\nshows a prompt."


def test_parallel_calls_count_up_and_have_their_own_ids():
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    events = parser.feed(f"<tool_call>{WELL}</tool_call>\n<tool_call>{WELL}</tool_call>") + parser.finish()
    started = [event for event in events if isinstance(event, CallStarted)]
    assert [event.index for event in started] == [0, 1]
    assert len({event.id for event in started}) == 2


@pytest.mark.parametrize(
    ("dialect", "pattern"),
    [("hermes", r"call_[0-9a-f]{24}"), ("mistral", r"[A-Za-z0-9]{9}"), ("kimi-k2", r"functions\.get_weather:0")],
)
def test_ids_are_what_the_template_wants_back(dialect, pattern):
    import re

    texts = {
        "hermes": f"<tool_call>{WELL}</tool_call>",
        "mistral": f"[TOOL_CALLS][{WELL}]",
        "kimi-k2": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    }
    parser = AnswerParser(BY_NAME[dialect], TOOLS)
    first = next(e for e in parser.feed(texts[dialect]) if isinstance(e, CallStarted))
    assert re.fullmatch(pattern, first.id)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nI cannot do that.\n</tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"city": 1}</tool_call>',
        "<tool_call>oops",
    ],
)
def test_what_no_call_can_be_made_of_is_reported_not_said(text):
    said, _, calls, malformed = parse(text)
    assert (said, calls) == ("", [])
    assert len(malformed) == 1


def test_arguments_stream_before_the_call_is_complete():
    parser = AnswerParser(BY_NAME["qwen-coder"], TOOLS)
    events = parser.feed("<tool_call>\n<function=get_weather>\n<parameter=city>\nA long te")
    assert "".join(e.delta for e in events if hasattr(e, "delta")) == '{"city":"A long te'
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    events = parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "A long te')
    assert "".join(e.delta for e in events if hasattr(e, "delta")) == '{"city":"A long te'


def test_a_call_cut_by_its_length_is_left_open():
    parser = AnswerParser(BY_NAME["hermes"], TOOLS)
    events = parser.feed('<tool_call>{"name": "get_weather", "arguments": {"city": "Ro') + parser.finish(cut=True)
    assert not any(isinstance(event, CallEnded) for event in events)
    assert "".join(e.delta for e in events if hasattr(e, "delta")) == '{"city":"Ro'


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("3", 3), ("3.0", 3), ("three", "three"), ("null", None), ("true", True),
    ],
)  # fmt: skip
def test_tagged_values_take_the_type_the_schema_names(value, read):
    text = f"<function=get_weather>\n<parameter=city>\n3\n</parameter>\n<parameter=days>\n{value}\n</parameter>\n</function>"
    calls = parse(text, "qwen-coder")[2]
    assert calls == [("get_weather", {"city": "3", "days": read})]


def test_tagged_text_keeps_its_line_breaks_and_markup():
    body = '\n<b>one</b>\n\n  two \\ "three"\n'
    text = f"<function=get_weather>\n<parameter=city>\n{body}\n</parameter>\n</function>"
    assert parse(text, "qwen-coder")[2] == [("get_weather", {"city": body})]


@pytest.mark.parametrize(
    ("text", "prefill", "reasoning", "said"),
    [
        ("<think>\nhm\n</think>\n\nyes", "", "hm", "yes"),
        ("hm\n</think>\n\nyes", "<|im_start|>assistant\n<think>\n", "hm", "yes"),
        ("hm", "<think>", "hm", ""),
        ("<think></think>yes", "", "", "yes"),
        ("yes", "<think>\n\n</think>\n\n", "", "yes"),
        ("the <think> tag", "", "", "the <think> tag"),
        ("a </think b", "<think>", "a </think b", ""),
    ],
)
def test_reasoning(text, prefill, reasoning, said):
    assert parse(text, prefill=prefill)[:2] == (said, reasoning)


def test_a_call_inside_unclosed_reasoning_is_still_a_call():
    said, reasoning, calls, _ = parse(f"I should look.\n<tool_call>{WELL}</tool_call>", prefill="<think>\n")
    assert (said, reasoning, calls) == ("", "I should look.", [CALL])


def test_harmony_channels():
    text = (
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary<|message|>I will look."
        "<|end|><|start|>assistant<|channel|>final<|message|>Sunny.<|return|>"
    )
    said, reasoning, _, _ = parse(text, "harmony", prefill="<|start|>assistant")
    assert (said, reasoning) == ("I will look.\n\nSunny.", "think")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}', '{"name": "unknown_tool", "arguments": {}}', "[1, 2, 3]", "{ not json", "```python\nprint()\n```",
        "  leading and trailing  ", "a < b and <tool", "```json\n{}\n```", "",
    ],
)  # fmt: skip
def test_text_that_only_looks_like_a_call_is_text(text):
    said, _, calls, malformed = parse(text)
    assert (said, calls, malformed) == (text, [], [])


def test_a_call_that_an_answer_quotes_is_text_until_the_next_message():
    quoted = (
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Rome</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>"
    )
    answer = f" to=user<|message|>You call it so:\n{quoted}"
    assert parse(answer + "<|eot|>", "muse", "<|start|>assistant") == (f"You call it so:\n{quoted}", "", [], [])
    then = f"<|eom|><|start|>assistant to=get_weather<|message|>{quoted}<|eot|>"
    text, _, calls, malformed = parse(answer + then, "muse", "<|start|>assistant")
    assert (text, calls, malformed) == (f"You call it so:\n{quoted}", [CALL], [])


def test_tags_within_a_value_that_is_neither_object_nor_list_are_text():
    tool = ToolDefinition(
        name="label", description="", parameters={"properties": {"label": {"type": ["string", "null"]}}}
    )
    mark = "]<]minimax[>["
    text = (
        f'{mark}<tool_call>\n{mark}<invoke name="label">{mark}<label>{mark}<text>hi{mark}</text>{mark}</label>'
        f"{mark}</invoke>\n{mark}</tool_call>"
    )
    _, _, calls, _ = parse(text, "minimax-m3", tools=(tool,))
    assert calls == [("label", {"label": f"{mark}<text>hi{mark}</text>"})]


@given(st.text(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_without_tools_and_reasoning_text_is_untouched(text):
    parser = AnswerParser(BY_NAME["gigachat"], ())
    if "<|" in text:
        return
    assert collect(parser.feed(text) + parser.finish())[0] == text


@pytest.mark.parametrize("dialect", sorted({dialect.name for dialect in DIALECTS}))
def test_any_soup_of_markers_is_survived_and_cut_alike(dialect):
    import random

    chosen = BY_NAME[dialect]
    pieces = [
        "{",
        "}",
        '"name": "get_time", "arguments": {',
        '"city": "x"',
        "get_weather",
        "\n",
        "text ",
        "=",
        ">",
        "(",
        ")",
        "]",
    ]
    pieces += [s.start for s in chosen.sections] + [e for s in chosen.sections for e in s.ends] + list(chosen.drops)
    for form in chosen.forms:
        pieces += [v for v in msgspec.structs.asdict(form).values() if isinstance(v, str)]
    if chosen.reasoning:
        pieces += list(chosen.reasoning)
    if chosen.headers:
        pieces += [*chosen.headers.starts, chosen.headers.end, "analysis", " to=functions.get_time"]
    rng = random.Random(7)
    for _ in range(60):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 25)))
        parse(text, dialect)
        parse(text, dialect, cut=True)


def test_dialects_are_chosen_by_marks_and_default_to_the_generic_one():
    assert choose(None).name == "generic"
    assert choose("{{ messages }}").name == "generic"
    assert choose("… <tool_call> … <function=name>").name == "qwen-coder"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + "x" * 80_000,
        "<tool_call>" + "[" * 80_000,
        "<tool_call>" + '{"name": "get_time", "arguments": ' + "[" * 80_000,
        '{"name": "' + "x" * 80_000,
        "<function=get_weather><parameter=tags>" + "[" * 80_000,
        "<think>" + "<" * 80_000,
        "<tool_call" * 8_000,
        "\n" * 80_000,
        "```" + " " * 80_000,
    ],
    ids=range(9),
)
def test_long_nonsense_costs_time_in_proportion(text):
    import time

    spent = []
    for size in (len(text) // 8, len(text)):
        parser = AnswerParser(BY_NAME["qwen-coder"], TOOLS)
        began = time.process_time()
        parser.feed(text[:size])
        parser.finish()
        spent.append(time.process_time() - began)
    assert spent[1] < 40 * spent[0] + 0.5, "eight times the text may not cost much more than eight times the time"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("text <call", MarkerMatch(5, None)),  # <call> may follow, at any place in the text
        ("text <call id", MarkerMatch(5, "<call")),
        ("text <call>", MarkerMatch(5, "<call>")),
        ("text <", MarkerMatch(5, None)),
        ("text", None),
    ],
)
def test_a_longer_mark_that_may_follow_is_waited_for(text, found):
    assert earliest(text, ("<call", "<call>")) == found
