"""All templates included with llama.cpp: render a turn with reasoning, text and calls, and parse it again."""

import json
import random

import pytest

from engine.chat.tools.dialects import choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import Message, ToolCall
from tests.unit.engine.chat.conversations import NAMES, QUESTION, TEMPLATES, TOOLS, collect, render, source, turn

GOLDEN = json.loads((TEMPLATES / "golden.json").read_text(encoding="utf-8"))


def parse(name, pieces, prefill):
    parser = AnswerParser(choose(source(name)), TOOLS, prefill)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return collect(events + parser.finish())


def test_every_template_has_a_golden_entry():
    assert sorted(GOLDEN) == NAMES
    assert len(NAMES) == 70


@pytest.mark.parametrize("name", NAMES)
def test_calls_come_back_as_they_were(name):
    prefill, generated, expected = turn(name)
    text, reasoning, calls, malformed = parse(name, [generated], prefill)
    assert calls == expected
    assert malformed == []
    golden = GOLDEN[name]
    assert {"dialect": choose(source(name)).name, "text": text, "reasoning": reasoning} == {
        key: golden[key] for key in ("dialect", "text", "reasoning")
    }


@pytest.mark.parametrize("name", NAMES)
def test_openings_and_repairs_are_as_recorded(name):
    messages = [
        Message(role="system", content="SYSTEM"),
        QUESTION,
        Message(
            role="assistant", tool_calls=(ToolCall(id="abcdefgh1", name="get_time", arguments='{"city":"Rome"}'),)
        ),
        Message(role="tool", tool_call_id="abcdefgh1", content="RESULT"),
        Message(role="user", content="AGAIN"),
    ]
    rendered = render(name, messages)
    assert [rendered.prefill, list(rendered.repairs)] == [GOLDEN[name]["prefill"], GOLDEN[name]["repairs"]]
    positions = [rendered.prompt.find(word) for word in ("SYSTEM", "QUESTION", "Rome", "RESULT", "AGAIN")]
    assert -1 not in positions, "nothing of the conversation may be lost"
    assert "get_weather" in rendered.prompt, "the tools must be told"


@pytest.mark.parametrize("name", NAMES)
def test_every_way_of_cutting_gives_the_same_answer(name):
    prefill, generated, _ = turn(name)
    whole = parse(name, [generated], prefill)
    assert parse(name, list(generated), prefill) == whole
    for seed in range(2):
        rng = random.Random(seed)
        cuts = sorted(rng.choices(range(len(generated)), k=rng.randint(2, 60)))
        pieces = [generated[a:b] for a, b in zip([0, *cuts], [*cuts, len(generated)], strict=True)]
        assert parse(name, pieces, prefill) == whole


ONE_PER_DIALECT = {choose(source(name)).name: name for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PER_DIALECT.values(), ids=ONE_PER_DIALECT)
def test_cutting_in_two_at_every_place(name):
    prefill, generated, _ = turn(name)
    whole = parse(name, [generated], prefill)
    for at in range(1, len(generated)):
        assert parse(name, [generated[:at], generated[at:]], prefill) == whole, at


@pytest.mark.parametrize("name", NAMES)
def test_every_way_of_stopping_early_is_survived(name):
    prefill, generated, expected = turn(name)
    for at in range(0, len(generated), 11):
        for cut in (True, False):
            parser = AnswerParser(choose(source(name)), TOOLS, prefill)
            events = parser.feed(generated[:at]) + parser.finish(cut=cut)
            names = [event.name for event in events if type(event).__name__ == "CallStarted"]
            assert len(names) <= len(expected)
            if not cut:
                assert all(isinstance(arguments, dict) for _, arguments in collect(events)[2])
