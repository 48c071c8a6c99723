"""Every call of OpenAI's Python client that the server speaks, sync and async. Run by test_client_sdks.py."""

import asyncio
import json
import sys

import openai
from pydantic import BaseModel

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
ASK = [{"role": "user", "content": "Hi"}]
FLAT = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]


class Place(BaseModel):
    city: str
    days: int


def sync(client: openai.OpenAI) -> None:
    assert "spark" in [m.id for m in client.models.list()]
    assert client.models.retrieve("spark").object == "model"

    whole = client.chat.completions.create(model="spark", messages=ASK, max_completion_tokens=20, seed=1)
    assert whole.choices[0].message.content == "Hello there"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 2

    chunks = list(
        client.chat.completions.create(
            model="spark", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there"
    assert chunks[-1].usage.completion_tokens == 2
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"

    called = client.chat.completions.create(model="spark", messages=ASK, tools=TOOLS)
    call = called.choices[0].message.tool_calls[0]
    assert called.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = client.chat.completions.create(
        model="spark", messages=[*ASK, called.choices[0].message, result], tools=TOOLS
    )
    assert after.choices[0].message.content == "It is sunny."

    with client.chat.completions.stream(model="spark", messages=ASK, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "tool_calls.function.arguments.done"} <= kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}

    parsed = client.chat.completions.parse(model="spark", messages=ASK, response_format=Place)
    assert parsed.choices[0].message.parsed == Place(city="Rome", days=3)
    with client.chat.completions.stream(model="spark", messages=ASK, response_format=Place) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == Place(city="Rome", days=3)

    assert client.completions.create(model="spark", prompt="Once", max_tokens=5).choices[0].text == "Hello there"
    pieces = client.completions.create(model="spark", prompt="Once", max_tokens=5, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == "Hello there"

    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        made = client.embeddings.create(model="spark", input=["one", "three"], **encoding)
        assert len(made.data) == 2, encoding
    short = client.embeddings.create(model="spark", input="one", dimensions=2)
    assert len(short.data[0].embedding) == 2

    responses(client)
    errors(client)
    raw(client)


def responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="spark", input="Hi", store=True)
    assert answer.output_text == "Hello there"
    again = client.responses.create(model="spark", input="And?", previous_response_id=answer.id)
    assert again.output_text == "More."
    assert client.responses.retrieve(answer.id).id == answer.id
    assert client.responses.input_items.list(answer.id).data
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("a deleted answer came back")
    with client.responses.stream(model="spark", input="Weather?", tools=FLAT) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert json.loads(final.output[0].arguments) == {"city": "Paris"}
    assert client.responses.parse(model="spark", input="Where?", text_format=Place).output_parsed.days == 3


def errors(client: openai.OpenAI) -> None:
    for call, kind, code in (
        ({"model": "nothing", "messages": ASK}, openai.NotFoundError, "model_not_found"),
        ({"model": "spark", "messages": ASK, "temperature": -1}, openai.BadRequestError, None),
        ({"model": "spark", "messages": ASK, "top_logprobs": 2}, openai.BadRequestError, None),
        (
            {"model": "spark", "messages": [{"role": "user", "content": "x" * (1 << 20)}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
    ):
        for stream in (False, True):
            try:
                made = client.chat.completions.create(**call, stream=stream)
                list(made)
            except kind as error:
                assert code is None or error.code == code, error.code
                assert error.message
            else:
                raise AssertionError(f"{sorted(call)} was accepted")


def raw(client: openai.OpenAI) -> None:
    """Routes that the client has no method for."""
    base = str(client.base_url).removesuffix("v1/")
    tokens = client.post(f"{base}tokenize", body={"model": "spark", "content": "abc"}, cast_to=dict)
    assert tokens["tokens"] == [97, 98, 99]
    text = client.post(f"{base}detokenize", body={"model": "spark", "tokens": [97, 98]}, cast_to=dict)
    assert text["content"] == "ab"
    ranked = client.post("/rerank", body={"model": "spark", "query": "q", "documents": ["a", "abc"]}, cast_to=dict)
    assert [r["index"] for r in ranked["results"]] == [1, 0]


async def asynchronous(client: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in client.models.list()]
    whole = await client.chat.completions.create(model="spark", messages=ASK)
    assert whole.choices[0].message.content == "Hello there"
    stream = await client.chat.completions.create(model="spark", messages=ASK, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "Hello there"
    async with client.chat.completions.stream(model="spark", messages=ASK, tools=TOOLS) as events:
        async for _ in events:
            pass
        final = await events.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "get_weather"
    parsed = await client.chat.completions.parse(model="spark", messages=ASK, response_format=Place)
    assert parsed.choices[0].message.parsed.city == "Rome"
    assert (await client.completions.create(model="spark", prompt="x")).choices[0].text == "Hello there"
    assert len((await client.embeddings.create(model="spark", input="one")).data[0].embedding) == 4
    assert (await client.responses.create(model="spark", input="Hi")).output_text == "Hello there"
    async with client.responses.stream(model="spark", input="Hi") as told:
        assert [e.type async for e in told][-1] == "response.completed"


def main() -> None:
    url, part = sys.argv[1] + "/v1", sys.argv[2]
    if part == "sync":
        sync(openai.OpenAI(base_url=url, api_key="unused", max_retries=0))
    else:
        asyncio.run(asynchronous(openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)))
    print("every call passed, openai", openai.__version__)


main()
