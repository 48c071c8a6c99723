"""Structured output: the bundled model is bad at JSON, but under a schema all its answers validate."""

import json
import re

import httpx2
import jsonschema
import pytest

from tests.support.late import openai

pytestmark = pytest.mark.e2e

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def ask(client, **options):
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    return client.chat.completions.create(model="spark", messages=messages, max_tokens=300, **options).choices[0]


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_every_complete_answer_validates(client, temperature):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(4):
        choice = ask(client, response_format=wanted, temperature=temperature, seed=seed)
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_members_that_a_schema_does_not_name_are_not_written(client):
    """Schemas of client model classes and tools do not mention additionalProperties."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "at": {"$ref": "#/$defs/Place"}},
        "required": ["name", "at"],
        "$defs": {"Place": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}},
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    place = {"type": "function", "function": {"name": "keep", "parameters": schema}}
    for seed in range(3):
        choice = ask(client, response_format=wanted, temperature=2, seed=seed)
        written = json.loads(choice.message.content)
        assert list(written) == ["name", "at"]
        assert set(written["at"]) <= {"city"}
        called = ask(
            client, tools=[place], tool_choice="required", parallel_tool_calls=False, temperature=2, seed=seed
        )
        arguments = json.loads(called.message.tool_calls[0].function.arguments)
        assert list(arguments) == ["name", "at"]
        assert set(arguments["at"]) <= {"city"}


def test_a_regular_expression(client):
    choice = ask(client, response_format={"type": "regex", "regex": "[A-Z][a-z]{2,8}, [0-9]{1,3}"}, seed=1)
    assert re.fullmatch("[A-Z][a-z]{2,8}, [0-9]{1,3}", choice.message.content)


def test_gbnf_as_llama_server_takes_it(client):
    choice = ask(client, extra_body={"grammar": 'root ::= ("yes" | "no") "!"'}, seed=1)
    assert choice.message.content in {"yes!", "no!"}


def test_text_completions_take_the_same_fields(client):
    fields = {"response_format": {"type": "regex", "regex": "[a-f]{6}"}}
    answer = client.completions.create(model="spark", prompt="hex: ", max_tokens=50, extra_body=fields)
    assert re.fullmatch("[a-f]{6}", answer.choices[0].text)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="spark", prompt="hex: ", extra_body={"grammar": "nonsense"})
    assert caught.value.param == "grammar"


def test_a_forced_call_is_made_and_valid(client):
    for seed in range(3):
        choice = ask(client, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert choice.finish_reason == "tool_calls"
        call = choice.message.tool_calls[0].function
        assert call.name == "get_weather"
        assert json.loads(call.arguments)["city"] in {"Rome", "Oslo"}
        assert choice.message.content is None


def test_constrained_and_free_answers_run_side_by_side(server):
    import asyncio

    async def both():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            messages = [{"role": "user", "content": "Hello"}]
            free = client.chat.completions.create(model="spark", messages=messages, max_tokens=60)
            bound = client.chat.completions.create(
                model="spark",
                messages=messages,
                max_tokens=60,
                response_format={"type": "regex", "regex": "[0-9]{5}"},
            )
            return await asyncio.gather(free, bound)

    free, bound = asyncio.run(both())
    assert re.fullmatch("[0-9]{5}", bound.choices[0].message.content)
    assert not re.fullmatch("[0-9]{5}", free.choices[0].message.content)


WHITE = {"type": "object", "properties": {"a": {"const": True}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("choice", ["required", "named", "beside a format"])
def test_a_forced_call_does_not_write_white_space_for_ever(client, choice):
    tool = {"type": "function", "function": {"name": "f", "parameters": WHITE}}
    options = {"tool_choice": "required"}
    if choice == "named":
        options = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    elif choice != "required":
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": WHITE, "strict": True}}
        options = {"tool_choice": "auto", "response_format": form}
    for seed in range(3):
        said = ask(client, tools=[tool], parallel_tool_calls=False, temperature=1, seed=seed, **options)
        assert said.finish_reason in {"tool_calls", "stop"}
        calls = said.message.tool_calls
        assert json.loads(calls[0].function.arguments if calls else said.message.content) == {"a": True}


def test_a_tool_may_mention_control_tokens(client):
    parameters = {
        "type": "object",
        "description": "Stops at <|im_end|>.",
        "properties": {"<|im_start|>": {"enum": ["<|im_end|>", "</s>"], "description": "<|im_end|>"}},
        "required": ["<|im_start|>"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": parameters}}
    for strict in (False, True):
        tool["function"]["strict"] = strict
        said = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=1)
        arguments = json.loads(said.message.tool_calls[0].function.arguments)
        assert arguments["<|im_start|>"] in {"<|im_end|>", "</s>"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters}}
    said = ask(client, tools=[tool], response_format=form, parallel_tool_calls=False, seed=1)
    assert said.finish_reason in {"stop", "tool_calls"}


@pytest.mark.parametrize("words", [20, 400])
def test_a_pattern_that_costs_more_than_a_step_may_ends_no_answer_with_an_error(server, words):
    pattern = rf"^$|(^(?:\S+\s+){{0,{words - 1}}}\S+$)"
    member = {"type": "string", "pattern": pattern, "maxLength": 25 * words}
    schema = {"type": "object", "properties": {"a": member}, "required": ["a"], "additionalProperties": False}
    body = {
        "model": "spark",
        "messages": [{"role": "user", "content": "Give an example."}],
        "max_tokens": 40,
        "seed": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    }
    whole = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
    assert whole.status_code == 200, whole.text
    choice, notes = whole.json()["choices"][0], whole.json()["tessera"].get("notes", [])
    stopped_early = any("stops early" in note for note in notes)
    assert stopped_early == (words == 400)
    assert choice["message"]["content"].startswith('{"a')
    if stopped_early:
        assert choice["finish_reason"] == "length"
        streamed = httpx2.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True}).text
        events = [line for line in streamed.splitlines() if line.startswith("data: ")]
        assert not any('"error"' in event for event in events)
        assert any("stops early" in event for event in events)
        assert events[-1] == "data: [DONE]"
