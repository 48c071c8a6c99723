"""Every call of Ollama's Python client that the server speaks, sync and async. Run by test_client_sdks.py."""

import asyncio
import sys
from importlib.metadata import version

import ollama
from pydantic import BaseModel

ASK = [{"role": "user", "content": "Hi"}]


class Place(BaseModel):
    city: str
    days: int


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    return f"sunny in {city}"


def sync(client: ollama.Client) -> None:
    assert "spark:latest" in [m.model for m in client.list().models]
    assert client.show("spark").modelinfo["general.architecture"]

    whole = client.chat("spark", ASK, options={"num_ctx": 2048, "temperature": 0})
    assert (whole.message.content, whole.done, whole.done_reason) == ("Hello there", True, "stop")
    assert whole.eval_count == 2
    parts = list(client.chat("spark", ASK, stream=True, keep_alive="5m"))
    assert "".join(p.message.content or "" for p in parts) == "Hello there"
    assert parts[-1].done
    assert "spark:latest" in [m.model for m in client.ps().models]

    thought = client.chat("spark", ASK, think=True)
    assert (thought.message.thinking, thought.message.content) == ("Hm.", "Hello there")

    called = client.chat("spark", ASK, tools=[get_weather])
    function = called.message.tool_calls[0].function
    assert (function.name, function.arguments) == ("get_weather", {"city": "Paris"})
    turns = [*ASK, called.message, {"role": "tool", "content": "sunny", "tool_name": "get_weather"}]
    assert client.chat("spark", turns, tools=[get_weather]).message.content == "It is sunny."
    calls = [p.message.tool_calls for p in client.chat("spark", ASK, tools=[get_weather], stream=True)]
    assert next(c for c in calls if c)[0].function.arguments == {"city": "Paris"}

    formed = client.chat("spark", ASK, format=Place.model_json_schema())
    assert Place.model_validate_json(formed.message.content) == Place(city="Rome", days=3)

    assert client.generate("spark", "Hi").response == "Hello there"
    assert "".join(p.response for p in client.generate("spark", "Hi", stream=True, raw=True)) == "Hello there"

    assert len(client.embed("spark", ["one", "three"]).embeddings) == 2
    assert len(client.embeddings("spark", "one").embedding) == 4

    client.copy("spark", "second")
    assert client.chat("second", ASK).message.content == "Hello there"
    client.create("third", from_="spark")
    client.delete("second")
    client.delete("third")

    for name, status in (("nothing", 404), ("second", 404)):
        try:
            client.chat(name, ASK)
        except ollama.ResponseError as error:
            assert error.status_code == status
            assert name in error.error
        else:
            raise AssertionError(f"{name} was accepted")


async def asynchronous(client: ollama.AsyncClient) -> None:
    assert (await client.list()).models
    assert (await client.chat("spark", ASK)).message.content == "Hello there"
    stream = await client.chat("spark", ASK, stream=True)
    assert "".join([p.message.content or "" async for p in stream]) == "Hello there"
    assert (await client.generate("spark", "Hi")).response == "Hello there"
    assert len((await client.embed("spark", "one")).embeddings[0]) == 4
    called = await client.chat("spark", ASK, tools=[get_weather])
    assert called.message.tool_calls[0].function.arguments == {"city": "Paris"}


def main() -> None:
    url, part, token = sys.argv[1:4]
    headers = {"authorization": f"Bearer {token}"}
    if part == "sync":
        sync(ollama.Client(host=url, headers=headers))
    else:
        asyncio.run(asynchronous(ollama.AsyncClient(host=url, headers=headers)))
    print("every call passed, ollama", version("ollama"))


main()
