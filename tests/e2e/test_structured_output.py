"""The bundled model is bad at JSON; under a schema every one of its answers validates."""

import json
import re

import jsonschema
import openai
import pytest

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
