"""Models of other servers in every protocol: a real server, fake upstreams, and another Tessera."""

import contextlib
import json
import re
import socket
import threading

import httpx2
import pytest

from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.servers import RunningServer, wait_for

NAME = f"desk/{MODEL}"
TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    running = RunningServer(
        tmp_path_factory.mktemp("gateway"), env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def http(gateway):
    with httpx2.Client(
        base_url=gateway.url, headers={"authorization": f"Bearer {gateway.token}"}, timeout=60
    ) as client:
        yield client


@pytest.fixture
def desk(http):
    """A function that creates the upstream `desk`, with the rule that enables its models."""
    with contextlib.ExitStack() as stack:

        def make(kind="vllm", rule=True, **options):
            fake = FakeUpstream(kind, **options)
            stack.callback(fake.stop)
            body = {"url": fake.url + "/v1/"} | ({"key": fake.key} if fake.key else {})
            assert http.put("/tessera/v1/upstreams/desk", json=body).status_code == 200
            if rule:
                http.put("/tessera/v1/upstream-rules", json={"model": "desk/*", "upstream": "desk"})
            return fake

        yield make
        http.delete("/tessera/v1/upstreams/desk")


def ask(http, text, model=NAME, **body):
    messages = [{"role": "user", "content": text}]
    return http.post("/v1/chat/completions", json={"model": model, "messages": messages, **body})


def events(answer):
    lines = [x[6:] for x in answer.text.splitlines() if x.startswith("data: ") and x != "data: [DONE]"]
    return [json.loads(x) for x in lines]


def test_nothing_leaves_without_a_rule(http, desk):
    fake = desk(rule=False)
    answer = ask(http, "secret")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "no_upstream_rule"
    assert "tessera upstreams route" in answer.json()["error"]["message"]
    assert NAME not in [m["id"] for m in http.get("/v1/models").json()["data"]]
    for path in ("/v1/responses", "/v1/messages", "/api/chat", "/v1/completions", "/v1/embeddings"):
        messages = [{"role": "user", "content": "secret"}]
        body = {"model": NAME, "messages": messages, "input": "secret", "prompt": "secret", "max_tokens": 5}
        assert http.post(path, json=body).status_code >= 400
    assert ask(http, "hello", model="default", max_tokens=1).status_code == 200
    assert fake.seen == []
    # Removing the rule takes effect immediately, although the name was used before.
    http.put("/tessera/v1/upstream-rules", json={"model": "desk/*", "upstream": "desk"})
    assert ask(http, "hi").status_code == 200
    http.delete("/tessera/v1/upstream-rules", params={"model": "desk/*"})
    assert ask(http, "secret").status_code == 403
    assert len(fake.seen) == 1


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
def test_each_kind_answers_whole_and_streamed(http, desk, kind):
    fake = desk(kind)
    whole = ask(http, "think about it", temperature=0.5, top_k=3, repeat_penalty=1.1, seed=4)
    said = whole.json()
    message = said["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello from up there", "Hmm, well.")
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert "your rule: desk/* to desk" in said["tessera"]["ran_on"]
    assert whole.headers["x-tessera-ran-on"].startswith(f"Answered by desk ({fake.url})")
    told = fake.seen[-1][1]
    assert (told["model"], told["temperature"], told["seed"]) == (MODEL, 0.5, 4)
    if kind == "openai":
        assert "top_k" not in told
        assert "top_k, repeat_penalty" in said["tessera"]["notes"][0]
    else:
        assert (told["top_k"], told["repetition_penalty"]) == (3, 1.1)
    streamed = events(ask(http, "hello", stream=True, stream_options={"include_usage": True}))
    text = "".join(c["delta"].get("content") or "" for e in streamed for c in e["choices"])
    assert text == "Hello from up there"
    assert streamed[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_tool_call_in_every_protocol(http, desk, kind):
    desk(kind)
    asked = [{"role": "user", "content": "the weather"}]
    chat = ask(http, "the weather", tools=[{"type": "function", "function": TOOL}]).json()["choices"][0]
    assert chat["finish_reason"] == "tool_calls"
    call = chat["message"]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("call_7", {"name": "weather", "arguments": '{"city": "Oslo"}'})
    tool = {"name": "weather", "description": "", "input_schema": TOOL["parameters"]}
    anthropic = http.post(
        "/v1/messages", json={"model": NAME, "max_tokens": 50, "messages": asked, "tools": [tool]}
    ).json()
    assert anthropic["stop_reason"] == "tool_use"
    assert anthropic["content"][-1]["input"] == {"city": "Oslo"}
    responses = http.post(
        "/v1/responses", json={"model": NAME, "input": "the weather", "tools": [{"type": "function", **TOOL}]}
    ).json()
    assert [i["arguments"] for i in responses["output"] if i["type"] == "function_call"] == ['{"city": "Oslo"}']
    body = {"model": NAME, "messages": asked, "tools": [{"type": "function", "function": TOOL}], "stream": False}
    ollama = http.post("/api/chat", json=body).json()
    assert ollama["message"]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}


def test_the_other_routes(http, desk):
    fake = desk()
    messages = [{"role": "user", "content": "hi"}]
    for path, extra in (("/v1/messages", {"max_tokens": 9}), ("/v1/responses", {"input": "hi"}), ("/api/chat", {})):
        answer = http.post(path, json={"model": NAME, "messages": messages, "stream": True, **extra})
        assert answer.status_code == 200
        assert answer.headers["x-tessera-ran-on"]
        # Words that arrive together share an event; others have one each.
        pieces = re.findall(r'"(?:text|delta|content)": ?"((?:[^"\\]|\\.)*)"', answer.text)
        assert "up there" in "".join(pieces)
    bare = http.post("/v1/completions", json={"model": NAME, "prompt": "once", "max_tokens": 3}).json()
    assert bare["choices"][0] | {"logprobs": None} == {
        "index": 0, "text": "once upon a time", "logprobs": None, "finish_reason": "length",
    }  # fmt: skip
    vectors = http.post("/v1/embeddings", json={"model": NAME, "input": ["a", "b"]}).json()["data"]
    assert [v["embedding"][0] for v in vectors] == [0.0, 1.0]
    assert http.post("/v1/messages/count_tokens", json={"model": NAME, "messages": messages}).json() == {
        "input_tokens": 3
    }
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert ask(http, "hi", response_format=schema).status_code == 200
    assert fake.seen[-1][1]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    shown = [{"role": "user", "content": [{"type": "text", "text": "what is it"}, picture]}]
    http.post("/v1/chat/completions", json={"model": NAME, "messages": shown})
    assert fake.seen[-1][1]["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("kind", "said", "sent", "unsent"),
    [
        ("vllm", {}, {}, ()),
        ("vllm", {"top_k": 7, "min_p": 0.2, "repeat_penalty": 1.3}, {"top_k": 7, "min_p": 0.2,
         "repetition_penalty": 1.3}, ()),
        ("vllm", {"temperature": 0, "min_tokens": 2, "top_n_sigma": 1.5}, {"temperature": 0, "min_tokens": 2},
         ("top_n_sigma",)),
        ("openai", {"top_k": 7, "top_p": 0.5, "ignore_eos": True, "presence_penalty": 0}, {"top_p": 0.5,
         "presence_penalty": 0}, ("top_k", "ignore_eos")),
        ("sglang", {"seed": 5, "stop": ["x"], "logit_bias": {"3": 1}}, {"seed": 5, "stop": ["x"],
         "logit_bias": {"3": 1}}, ()),
    ],
)  # fmt: skip
def test_a_bare_prompt_is_sent_with_what_was_said_and_nothing_else(http, desk, kind, said, sent, unsent):
    fake = desk(kind)
    asked = {"model": NAME, "prompt": "once", "max_tokens": 3, **said}
    answer = http.post("/v1/completions", json=asked).json()
    path, body = fake.seen[-1]
    always = {"prompt": "once", "max_tokens": 3, "model": MODEL, "stream": True}
    assert (path, body) == ("/v1/completions", {**always, "stream_options": {"include_usage": True}, **sent})
    told = answer["tessera"]
    assert set(told["sampling"]) == set(said) & {
        "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
    }  # fmt: skip
    assert told.get("notes", [""])[0].partition(": ")[2].strip(".") == ", ".join(unsent)
    streamed = http.post("/v1/completions", json={**asked, "stream": True})
    assert ("Not sent" in streamed.text) == bool(unsent)
    http.post("/completion", json={"prompt": "once", "n_predict": 3, "model": NAME, **said})
    assert fake.seen[-1][1] == body


def test_a_raw_prompt_of_ollamas_is_sent_with_ollamas_own_defaults(http, desk):
    fake = desk("vllm")
    asked = {"model": NAME, "prompt": "once", "raw": True, "stream": False, "options": {"top_k": 3}}
    assert http.post("/api/generate", json=asked).json()["response"] == "once upon a time"
    sent = fake.seen[-1][1]
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["repetition_penalty"]) == (0.8, 3, 0.9, 1.1)


@pytest.mark.parametrize(
    ("text", "status", "code", "words"),
    [
        ("too long", 400, "context_length_exceeded", "50005 tokens"),
        ("overloaded", 429, "upstream_busy", "queue full"),
        ("broken", 502, "upstream_failed", "EngineCore died"),
        ("dies", 502, "upstream_broke_off", "encountered an issue"),
        ("cut", 502, "upstream_broke_off", "aborted"),
        ("garbage", 502, "upstream_broke_off", "unreadable"),
    ],
)
def test_what_goes_wrong_there_is_told_here(http, desk, text, status, code, words):
    desk()
    answer = ask(http, text)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert words in answer.json()["error"]["message"]
    if status == 502 and text != "broken":  # mid-stream: the text so far is kept, then the error follows
        streamed = events(ask(http, text, stream=True))
        assert "Hello" in json.dumps(streamed)
        assert streamed[-1]["error"]["code"] == code
    assert ask(http, "hi").status_code == 200


def test_sglangs_words_for_too_long(http, desk):
    desk("sglang")
    assert ask(http, "too long").json()["error"]["prompt_tokens"] == 50005


def test_a_client_that_leaves_stops_the_upstream(http, desk):
    fake = desk()
    body = {"model": NAME, "stream": True, "messages": [{"role": "user", "content": "forever"}]}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert next(answer.iter_raw())
    wait_for(lambda: fake.hung_up == 1, 60, "the upstream's notice")


def test_tokens_come_as_they_are_made(http, desk):
    """Each word is released only after the previous one has arrived, so none is held back."""
    fake = desk()
    fake.turns = threading.Semaphore(0)
    body = {"model": NAME, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        for word in ("Hello", " from", " up", " there"):
            fake.turns.release()
            assert f'"content":"{word}"' in next(x for x in lines if '"content":"' in x and '"content":""' not in x)
        assert "data: [DONE]" in list(lines)


def test_keys_are_kept_apart_and_never_told(gateway, http, desk):
    desk(key="sk-canary-1", rule=True)
    assert ask(http, "hi").status_code == 200
    row = http.get("/tessera/v1/upstreams").json()["upstreams"][0]
    assert row["key"] == "file"  # no keyring is available
    file = gateway.home / "config" / "upstream-keys.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "sk-canary-1" not in (gateway.home / "config" / "upstreams.json").read_text()
    assert "sk-canary-1" not in json.dumps(http.get("/tessera/v1/upstreams").json()) + gateway.log
    refused = http.put("/tessera/v1/upstreams/desk/key", json={"key": "sk-wrong"}).json()
    assert refused["state"] == "refused"
    answer = ask(http, "hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_refuses_key")
    assert answer.headers["x-should-retry"] == "false"
    assert http.put("/tessera/v1/upstreams/desk/key", json={"key": "sk-canary-1"}).json()["state"] == "ok"
    assert ask(http, "hi").status_code == 200


def test_a_key_does_not_follow_its_upstream_to_another_origin(http, desk):
    desk(key="sk-canary-1", rule=True)
    url = http.get("/tessera/v1/upstreams").json()["upstreams"][0]["url"]
    same = http.put("/tessera/v1/upstreams/desk", json={"url": f"{url}/v1"}).json()
    assert (same["key"], same["state"]) == ("file", "ok")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(30)
        received = []

        def listen():
            connection, _ = elsewhere.accept()
            with connection:
                received.append(connection.recv(4096))

        listener = threading.Thread(target=listen)
        listener.start()
        moved = http.put(
            "/tessera/v1/upstreams/desk", json={"url": f"http://127.0.0.1:{elsewhere.getsockname()[1]}"}
        ).json()
        listener.join(60)
    assert moved["key"] is None
    assert received[0].startswith(b"GET ")
    assert b"sk-canary-1" not in received[0]


def test_an_upstream_that_is_gone(http, desk):
    fake = desk()
    assert ask(http, "hi").status_code == 200
    fake.stop()
    fake.stop = lambda: None
    for _ in range(2):
        answer = ask(http, "hi")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_unreachable") or (
            answer.status_code == 502
        )
    row = http.post("/tessera/v1/upstreams/desk/check").json()
    assert (row["state"], row["reason"]) == ("unreachable", "Connection refused")
    assert [m["name"] for m in row["models"]] == [MODEL]  # known models are kept


def test_a_server_that_takes_connections_and_says_nothing(http):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        row = http.put("/tessera/v1/upstreams/deaf", json={"url": url}).json()
        assert (row["state"], row["reason"]) == ("unreachable", "no answer within 5 s")
    assert http.delete("/tessera/v1/upstreams/deaf").status_code == 204


def test_local_first_by_rule(gateway, http, desk):
    """The bundled model answers locally; a request that would queue goes to the upstream."""
    fake = desk()

    def told(text):
        with contextlib.suppress(httpx2.HTTPError):  # the model is unloaded in the end
            ask(http, text, "spark", **_LONG)

    here = ask(http, "hi", model="spark", max_tokens=2)
    assert "x-tessera-ran-on" not in here.headers
    rule = {"model": "spark*", "upstream": "desk", "as_model": MODEL, "queue": 0, "unfit": True}
    assert http.put("/tessera/v1/upstream-rules", json=rule).status_code == 200
    assert "x-tessera-ran-on" not in ask(http, "hi", model="spark", max_tokens=2).headers
    busy = [threading.Thread(target=told, args=(f"tell {n}",)) for n in range(8)]
    for thread in busy:
        thread.start()
    try:
        wait_for(lambda: _active(http) > 4, 60, "a queue")
        away = ask(http, "quick", model="spark")
        assert "when more than 0 wait here" in away.headers["x-tessera-ran-on"]
        assert fake.seen[-1][1]["model"] == MODEL
    finally:
        for thread in busy:
            while thread.is_alive():  # a waiting request may have loaded it again
                http.post("/tessera/v1/models/spark/unload")
                thread.join(1)


_LONG = {"max_tokens": 1_000_000, "ignore_eos": True, "context_shift": True}  # runs until it is stopped


def _active(http):
    return sum(m["active"] for m in http.get("/tessera/v1/loaded").json()["models"] if "@" not in m["id"])


def test_another_tessera(http, server):
    """The whole path twice: gateway, server, runner. The remote server requires a key if its user created one."""
    row = http.put("/tessera/v1/upstreams/far", json={"url": server.url, "key": server.token}).json()
    assert (row["kind"], row["state"]) == ("tessera", "ok")
    http.put("/tessera/v1/upstream-rules", json={"model": "far/*", "upstream": "far"})
    there = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json={
            "model": "spark",
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "max_tokens": 8,
        },
        timeout=60,
    ).json()
    model = next(m["name"] for m in row["models"] if "spark" in m["name"])
    here = ask(http, "Hello", model=f"far/{model}", temperature=0, max_tokens=8)
    assert here.json()["choices"][0]["message"]["content"] == there["choices"][0]["message"]["content"]
    counted = http.post(
        "/v1/messages/count_tokens",
        json={"model": f"far/{model}", "messages": [{"role": "user", "content": "Hello"}]},
    )
    assert counted.json()["input_tokens"] == there["usage"]["prompt_tokens"]
    # Models that the remote server itself forwards are not listed, so that no loop of servers can form.
    http.put("/tessera/v1/upstreams/self", json={"url": str(http.base_url), "key": "x"})
    rows = http.get("/tessera/v1/upstreams").json()["upstreams"]
    assert not [m for row in rows if row["name"] == "self" for m in row["models"] if "/" in m["name"]]
    for name in ("far", "self"):
        http.delete(f"/tessera/v1/upstreams/{name}")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("Desk", "http://a"), ("a/b", "http://a"), ("desk", "ftp://a"), ("desk", "http://"),
        ("desk", "http://u:p@a"), ("desk", "http://a\r\nx: y"), ("desk", "http://a:99999"), ("desk", "http://a/?k=1"),
    ],
)  # fmt: skip
def test_bad_names_and_addresses(http, name, url):
    assert 400 <= http.put(f"/tessera/v1/upstreams/{name}", json={"url": url}).status_code < 500


def test_bad_rules(http, desk):
    desk(rule=False)
    for rule in (
        {"model": "x", "upstream": "nowhere"},
        {"model": "x*", "upstream": "desk"},
        {"model": "desk/*", "upstream": "desk", "queue": 1},
        {"model": "x", "upstream": "desk", "queue": -1},
    ):
        assert http.put("/tessera/v1/upstream-rules", json=rule).status_code == 400
    assert http.delete("/tessera/v1/upstream-rules", params={"model": "none"}).status_code == 400
