"""The official Ollama client with scripted responses, and behaviour that its users rely on."""

import asyncio
import json
import threading
import time

import httpx2
import pytest

from engine.jobs.jobs import JobKind
from tests.support.fakes.scripted import TOKEN
from tests.support.late import ollama

HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def client(qwen):
    made = ollama.Client(host=qwen.url, headers={"authorization": f"Bearer {TOKEN}"})
    yield made
    made._client.close()


def pieces(text):
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def test_chat_whole_and_streamed(qwen, client):
    qwen.say("Hello", " there")
    answer = client.chat("spark", HI)
    assert answer.message.content == "Hello there"
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", 2)
    assert answer.prompt_eval_count == len(qwen.prompts()[0])
    qwen.say("Hello", " there")
    parts = list(client.chat("spark:latest", HI, stream=True))
    assert "".join(p.message.content for p in parts) == "Hello there"
    assert [p.done for p in parts][-2:] == [False, True]


def test_thinking_is_a_field_of_its_own(qwen, client):
    qwen.say(*pieces("<think>\nHm.\n</think>\n\nYes."))
    answer = client.chat("spark", HI, think=True)
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "Yes.")
    qwen.say("Yes.")
    client.chat("spark", HI, think=False)
    assert "<think>\n\n</think>" in qwen.prompts()[-1]


def test_a_tool_conversation(qwen, client):
    qwen.say(*pieces(CALL + "\n" + CALL.replace("Paris", "Rome")))
    parts = list(client.chat("spark", HI, tools=[WEATHER], stream=True))
    calls = [c for p in parts for c in p.message.tool_calls or ()]
    assert [dict(c.function.arguments) for c in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert not any("tool_call" in (p.message.content or "") for p in parts)
    qwen.say("Sunny in both.")
    answer = client.chat(
        "spark",
        [
            *HI,
            {"role": "assistant", "content": "", "tool_calls": [c.model_dump() for c in calls]},
            {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
            {"role": "tool", "tool_name": "get_weather", "content": "also sunny"},
        ],
        tools=[WEATHER],
    )
    assert answer.message.content == "Sunny in both."
    prompt = qwen.prompts()[-1]
    assert prompt.count("<tool_response>") == 2
    assert "also sunny" in prompt


def test_calls_have_ids_by_which_results_name_them(qwen):
    qwen.say(*pieces(CALL + "\n" + CALL.replace("Paris", "Rome")))
    body = {"model": "spark", "messages": HI, "tools": [WEATHER], "stream": False}
    calls = httpx2.post(f"{qwen.url}/api/chat", json=body).json()["message"]["tool_calls"]
    first, second = (call["id"] for call in calls)
    assert first != second
    qwen.say("Sunny in both.")
    results = [
        {"role": "tool", "tool_call_id": second, "content": "sunny in Rome"},
        {"role": "tool", "tool_call_id": first, "content": "sunny in Paris"},
    ]
    answered = [*HI, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    answer = httpx2.post(f"{qwen.url}/api/chat", json={**body, "messages": answered})
    assert answer.json()["message"]["content"] == "Sunny in both."
    assert "x-tessera-ignored" not in answer.headers


def test_format_constrains(qwen, client):
    qwen.say("{}")
    client.chat("spark", HI, format="json")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    qwen.say("{}")
    client.generate("spark", "x", format=schema)
    first, second = qwen.asked()
    assert first["constraint"]["kind"] == "json_object"
    assert second["constraint"]["kind"] == "json_schema"
    qwen.say("[]")
    client.chat("spark", HI, format={"type": "array", "maxItems": 10**6})
    assert qwen.asked()[-1]["constraint"]["kind"] == "json_schema"


def test_generate_in_the_template_and_raw(qwen, client):
    qwen.say("ok")
    assert client.generate("spark", "Say ok", system="Be brief.").response == "ok"
    qwen.say("ok")
    client.generate("spark", "Say ok", raw=True, options={"num_predict": 7, "stop": ["\n"], "seed": 3})
    templated, raw = qwen.asked()
    assert "<|im_start|>system\nBe brief." in templated["prompt"]
    assert (raw["prompt"], raw["max_tokens"], raw["stop"]) == ("Say ok", 7, ["\n"])
    assert raw["sampling"]["seed"] == 3
    assert raw["sampling"]["top_k"] == 40


def test_what_is_not_applied_is_refused_or_reported(qwen):
    refused = httpx2.post(f"{qwen.url}/api/generate", json={"model": "spark", "prompt": "x", "template": "{{ . }}"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    qwen.say("ok")
    body = {"model": "spark", "messages": HI, "stream": False, "options": {"num_gpu": 1}, "frobnicate": 1}
    answer = httpx2.post(f"{qwen.url}/api/chat", json=body)
    assert answer.headers["x-tessera-ignored"] == "frobnicate, options.num_gpu"


def test_load_unload_and_keep_alive(qwen, client):
    assert client.generate("spark", "", keep_alive="5m").done_reason == "load"
    [running] = client.ps().models
    assert (running.model, running.context_length) == ("spark:latest", 1024)
    assert 200 < qwen.state.pool.get("spark").expires_in_s <= 300
    client.generate("spark", "", keep_alive=-1)
    assert qwen.state.pool.get("spark").expires_in_s is None
    assert client.generate("spark", "", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    for spelled in ("0", "0s", "0m", "0h0m0s", "0us", "0ns", 0.0):
        client.generate("spark", "", keep_alive="5m")
        assert client.generate("spark", "", keep_alive=spelled).done_reason == "unload", spelled
        assert client.ps().models == []
    qwen.say("bye")
    client.chat("spark", HI, keep_alive=0)
    assert client.ps().models == []
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        client.chat("spark", HI, keep_alive="soon")


def test_num_ctx_does_not_reload_while_it_fits(qwen, client):
    client.generate("spark", "")
    pid = qwen.state.pool.get("spark").runner.pid
    for num_ctx in (512, 1024, 100_000):  # the last is more than the model was trained for
        qwen.say("ok")
        client.chat("spark", HI, options={"num_ctx": num_ctx})
    assert qwen.state.pool.get("spark").runner.pid == pid


def test_lists_and_details(client):
    assert [m.model for m in client.list().models] == ["spark:latest"]
    shown = client.show("spark")
    assert shown.modelinfo["general.architecture"] == shown.details.family
    assert "completion" in shown.capabilities
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("nothing")
    assert caught.value.status_code == 404


def test_embeddings_in_both_forms(client):
    assert list(client.embed("spark", ["a", "bb"]).embeddings[1])[:2] == [1.0, 2.0]
    assert list(client.embeddings("spark", "abc").embedding)[:2] == [1.0, 3.0]
    for nothing in (client.embed("spark", []), client.embed("spark", "")):
        assert (nothing.embeddings, nothing.prompt_eval_count) == ([], 0)


def test_second_names(qwen, client):
    client.copy("spark", "tiles")
    assert {m.model for m in client.list().models} == {"spark:latest", "tiles:latest"}
    qwen.say("hi")
    assert client.chat("tiles", HI).message.content == "hi"
    client.delete("tiles")
    with pytest.raises(ollama.ResponseError, match="tiles"):
        client.chat("tiles", HI)
    client.create("also", from_="spark")
    client.delete("also")
    with pytest.raises(ollama.ResponseError, match="template"):
        client.create("other", from_="spark", template="{{ .Prompt }}")


def test_changing_the_disk_needs_the_token(qwen):
    anyone = ollama.Client(host=qwen.url)
    for change in (lambda: anyone.pull("x"), lambda: anyone.delete("spark"), lambda: anyone.copy("spark", "y")):
        with pytest.raises(ollama.ResponseError) as caught:
            change()
        assert caught.value.status_code == 401
    anyone._client.close()


def test_pull_tells_its_progress_and_its_failure(qwen, client):
    def work(params, control):
        control.report("downloading", 5, 10)
        if params["model"] == "bad":
            raise ValueError("no such thing")
        return {}

    qwen.state.jobs.register(JobKind.PULL, work)
    assert [p.status for p in client.pull("good", stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError, match="not fetched"):
        list(client.pull("bad", stream=True))
    assert client.pull("good").status == "success"


def test_errors_in_a_stream_are_lines(qwen, client):
    big = [{"role": "user", "content": "x" * (1 << 20)}]
    with pytest.raises(ollama.ResponseError, match="The prompt has 1048626 tokens") as caught:
        list(client.chat("spark", big, stream=True))
    assert caught.value.status_code == 400
    qwen.say("half", " of it", die=9)
    with pytest.raises(ollama.ResponseError, match="process ended"):
        list(client.chat("spark", HI, stream=True))


def test_async_client(qwen):
    qwen.say("Hello")

    async def ask():
        client = ollama.AsyncClient(host=qwen.url)
        try:
            return [p.message.content async for p in await client.chat("spark", HI, stream=True)]
        finally:
            await client._client.aclose()

    result = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(ask())))
    thread.start()
    thread.join()
    assert "".join(result[0]) == "Hello"


@pytest.mark.parametrize(
    "body",
    [
        {"model": "spark", "messages": HI, "options": {"temperature": -1}},
        {"model": "spark", "messages": HI, "options": {"num_ctx": 0}},
        {"model": "", "messages": HI},
        {"messages": HI},
        {"model": "spark", "messages": HI, "format": "xml"},
        {"model": "spark", "messages": [{"role": "user", "content": "x", "images": ["!!"]}]},
        {"model": "spark", "messages": [{"role": "user", "content": ""}]},
        {"model": "spark", "messages": HI, "tools": [{"function": {}}]},
    ],
)
def test_bad_requests_are_texts_with_a_code(qwen, body):
    answer = httpx2.post(f"{qwen.url}/api/chat", json=body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)
    assert answer.json()["code"] == "invalid_request"


@pytest.mark.parametrize("value", [512.0, 512, None])
def test_options_may_have_a_point_where_the_number_is_whole(qwen, value):
    """Clients in languages without integers write 512.0."""
    qwen.say("Hi")
    options = dict.fromkeys(("num_ctx", "num_predict", "top_k", "seed", "repeat_last_n"), value)
    answer = httpx2.post(
        f"{qwen.url}/api/chat", json={"model": "spark", "messages": HI, "stream": False, "options": options}
    )
    assert answer.status_code == 200, answer.text
    assert value is None or qwen.asked()[-1]["max_tokens"] == 512


@pytest.mark.parametrize("value", [512.5, "512", True, [512], 1e400])
def test_options_that_are_not_whole_numbers_are_refused(qwen, value):
    body = {"model": "spark", "messages": HI, "options": {"num_ctx": value}}
    answer = httpx2.post(f"{qwen.url}/api/chat", content=json.dumps(body).replace("Infinity", "1e400"))
    assert answer.status_code == 400
    assert "num_ctx" in answer.json()["error"]


def test_an_answer_that_was_begun_is_continued(qwen, client):
    qwen.say(" fine")
    answer = client.chat("spark", [*HI, {"role": "assistant", "content": "I am"}])
    assert qwen.prompts()[-1].endswith("I am")
    assert answer.message.content == " fine"


def test_an_unload_waits_for_the_answers_that_run(qwen, client):
    words = [f"word{number} " for number in range(20)]
    qwen.say(*words, delay_s=0.05)
    answer = iter(client.chat("spark", HI, stream=True))
    read = [next(answer).message.content]
    assert client.generate("spark", "", keep_alive=0).done_reason == "unload"
    read += [line.message.content for line in answer]
    assert "".join(read).split() == "".join(words).split()
    deadline = time.monotonic() + 60
    while client.ps().models:
        assert time.monotonic() < deadline
        time.sleep(0.1)
