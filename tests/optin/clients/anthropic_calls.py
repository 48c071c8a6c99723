"""Every call of Anthropic's Python client that the server speaks, sync and async. Run by test_client_sdks.py."""

import asyncio
import sys

import anthropic
from pydantic import BaseModel

TOOLS = [
    {
        "name": "get_weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
ASK = [{"role": "user", "content": "Hi"}]
BASE = {"model": "spark", "max_tokens": 50, "messages": ASK}


class Place(BaseModel):
    city: str
    days: int


def sync(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**BASE, system="Be brief.")
    assert whole.content[0].text == "Hello there"
    assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", 2)
    assert client.messages.count_tokens(model="spark", messages=ASK).input_tokens > 0

    events = list(client.messages.create(**BASE, stream=True))
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    with client.messages.stream(**BASE) as stream:
        assert "".join(stream.text_stream) == "Hello there"
        assert stream.get_final_message().stop_reason == "end_turn"

    thought = client.messages.create(**BASE, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in thought.content] == ["thinking", "text"]

    called = client.messages.create(**BASE, tools=TOOLS)
    use = called.content[0]
    assert (called.stop_reason, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    turns = [*ASK, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**BASE, "messages": turns}, tools=TOOLS)
    assert after.content[0].text == "It is sunny."
    with client.messages.stream(**BASE, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_message().content[0].input == {"city": "Paris"}
    assert "input_json" in kinds
    if hasattr(client.messages, "parse"):
        assert client.messages.parse(**BASE, output_format=Place).parsed_output == Place(city="Rome", days=3)
    else:
        client.messages.create(**BASE)

    for wrong, kind in (
        ({**BASE, "model": "nothing"}, anthropic.NotFoundError),
        ({**BASE, "max_tokens": 0}, anthropic.BadRequestError),
        ({**BASE, "messages": [{"role": "user", "content": "x" * (1 << 20)}]}, anthropic.BadRequestError),
    ):
        for stream in (False, True):
            try:
                list(client.messages.create(**wrong, stream=stream))
            except kind as error:
                assert error.body["type"] == "error", error.body
            else:
                raise AssertionError(f"{wrong['model']} {wrong['max_tokens']} was accepted")


async def asynchronous(client: anthropic.AsyncAnthropic) -> None:
    assert (await client.messages.create(**BASE)).content[0].text == "Hello there"
    assert (await client.messages.count_tokens(model="spark", messages=ASK)).input_tokens > 0
    async with client.messages.stream(**BASE) as stream:
        assert "".join([text async for text in stream.text_stream]) == "Hello there"
    async with client.messages.stream(**BASE, tools=TOOLS) as stream:
        assert (await stream.get_final_message()).content[0].input == {"city": "Paris"}


def main() -> None:
    url, part = sys.argv[1], sys.argv[2]
    if part == "sync":
        sync(anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0))
    else:
        asyncio.run(asynchronous(anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0)))
    print("every call passed, anthropic", anthropic.__version__)


main()
