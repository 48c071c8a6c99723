"""A server on a computer with little memory: how far a context grows, what limits it, and what frees memory."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from devices.process_memory import process_memory
from tests.support import small_machine
from tests.support.models.shapes import scaled, write_shape
from tests.support.servers import RunningServer

pytestmark = pytest.mark.e2e

# 64 KiB of cache for a token: 4,096 tokens take 256 MiB.
TRAINED, START = 4096, 512
SHAPE = scaled("llama", layers=2, heads=32, kv_heads=32, head_dim=256, embd=64, ffn=64, vocab=2000, context=TRAINED)
MIB = 1 << 20
# The context was created with all cells to which it may grow.
RESERVES = sys.platform == "linux"
# Memory of the first model's process: enough for 1,792 tokens of context, but not for copies.
ROOM = 300 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("small")
    (home / "models").mkdir()
    write_shape(home / "models" / "first.gguf", SHAPE)
    write_shape(home / "models" / "second.gguf", SHAPE, seed=1)
    memory = home / "meminfo"
    small_machine.set_free(memory, 320 * MIB)
    env = {small_machine.VARIABLE: str(memory), "TESSERA_CACHE_PREFIX_MIB": "0"}
    running = RunningServer(home, program=small_machine.__name__, env=env)
    yield running
    running.stop()


@pytest.fixture
def client(server):
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=120
    ) as made:
        yield made


def load(client, model, **options):
    answer = client.post(f"/tessera/v1/models/{model}/load", json=options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def start(server, client):
    """Load the first model alone, with its first size."""
    for model in ("first", "second"):
        client.post(f"/tessera/v1/models/{model}/unload")
    small_machine.set_free(server.home / "meminfo", 320 * MIB)
    return load(client, "first", n_ctx=START)


def leave(server, pid, num_bytes):
    """Limit the memory of a model's process to `num_bytes`."""
    small_machine.set_free(server.home / "meminfo", num_bytes - process_memory(pid).anonymous_bytes)


def text(tokens):
    return [3 + (i * i * 7 + i) % 200 for i in range(tokens)]


def ask(client, tokens, **options):
    body = {"model": "first", "prompt": text(tokens), "max_tokens": 4, "ignore_eos": True, **options}
    return client.post("/v1/completions", json=body)


def cached(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def resizes(server):
    return re.findall(r"resized model=(\w+) n_ctx=(\d+) before=(\d+) through=(\w+)", server.log)


def test_the_size_that_a_refusal_names_is_reached(server, client):
    """Also if memory has no space for copies in addition to the largest cache; nothing is computed twice.

    On Linux, growing copies nothing; elsewhere the states go through a file.
    """
    loaded = start(server, client)
    assert (loaded["n_ctx"], loaded["max_ctx"]) == (START, TRAINED)
    assert cached(ask(client, 400)) == 0
    leave(server, loaded["pid"], ROOM)
    refused = ask(client, TRAINED - 100)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    largest = error["context_tokens"]
    assert START < largest < TRAINED
    assert (error["prompt_tokens"], error["loaded_context_tokens"]) == (TRAINED - 100, START)
    assert f"context has {START} and can grow to {largest} in the free memory" in error["message"]
    assert client.get("/v1/models/first").json()["context_length"] in range(largest - 1023, largest + 1)
    assert cached(ask(client, largest - 270)) == 400  # near it: the process itself may have grown a little
    assert resizes(server)[-1] == ("first", str(largest - 256), str(START), "reserve" if RESERVES else "file")
    assert not list((server.home / "cache").rglob("tmp*"))


def test_with_room_for_copies_no_file_is_written(server, client):
    loaded = start(server, client)
    ask(client, 400)
    leave(server, loaded["pid"], ROOM + 256 * MIB)
    assert cached(ask(client, 700)) == 400
    assert resizes(server)[-1][1:] == ("2048", str(START), "reserve" if RESERVES else "memory")


MESSAGES = [{"role": "user", "content": "LONG"}]
PROTOCOLS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4}),
    ("/v1/responses", {"input": "LONG", "max_output_tokens": 16}),
    ("/v1/messages", {"max_tokens": 4, "messages": MESSAGES}),
    ("/api/generate", {"prompt": "LONG", "options": {"num_predict": 4}}),
    ("/api/chat", {"messages": MESSAGES, "options": {"num_ctx": TRAINED, "num_predict": 4}}),
    ("/completion", {"prompt": "LONG", "n_predict": 4}),
    ("/v1/completions", {"prompt": "LONG", "max_tokens": 4}),
]
MORE_PROTOCOLS = [
    ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": 4}}),
    ("/api/generate", {"prompt": "LONG", "options": {"num_ctx": 700, "num_predict": 4}}),
    ("/api/generate", {"prompt": "hi", "context": [5] * 700, "options": {"num_predict": 4}}),
    ("/v1/completions", {"prompt": ["LONG", "LONG LONG"], "max_tokens": 4}),
]


@pytest.mark.parametrize(("path", "body"), [*PROTOCOLS, *MORE_PROTOCOLS])
def test_every_protocol_grows(server, client, path, body):
    """A prompt with more tokens than the context, without a size or with one that is too small or too large."""
    loaded = start(server, client)
    small_machine.set_free(server.home / "meminfo", 900 * MIB)
    long = json.loads(json.dumps(body).replace("LONG", "words " * 130))
    answer = client.post(path, json={"model": "first", "stream": False, **long})
    assert answer.status_code == 200, answer.text
    row = next(m for m in client.get("/tessera/v1/loaded").json()["models"] if m["id"] == "first")
    assert row["n_ctx"] > START
    assert row["pid"] == loaded["pid"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), PROTOCOLS)
def test_every_protocol_names_the_size(server, client, path, body, stream):
    rows = client.get("/tessera/v1/loaded").json()["models"]
    loaded = next((m for m in rows if (m["id"], m["n_ctx"]) == ("first", START)), None) or start(server, client)
    leave(server, loaded["pid"], ROOM)
    long = json.loads(json.dumps(body).replace("LONG", "words " * 600))
    refused = client.post(path, json={"model": "first", "stream": stream, **long})
    in_stream = path == "/v1/responses" and stream  # the first event is sent immediately, like OpenAI's
    assert refused.status_code == (200 if in_stream else 400), refused.text
    found = re.search(rf"has {START} and can grow to (\d+) in the free memory|> (\d+) maximum", refused.text)
    assert found, refused.text
    assert int(found[1] or found[2]) > START
    if "completion" in path and "chat" not in path:
        assert refused.json()["error"]["param"] == "prompt"


def test_a_prompt_longer_than_any_context_is_told_the_size_that_fits(server, client):
    """If memory holds less than the trained size, the maximum is smaller, with the reason."""
    first = start(server, client)
    leave(server, first["pid"], ROOM)
    error = ask(client, TRAINED + 100).json()["error"]
    assert START < error["context_tokens"] < TRAINED
    by_words = client.post("/v1/completions", json={"model": "first", "prompt": "words " * 20_000}).json()["error"]
    assert START < by_words["context_tokens"] < TRAINED
    small_machine.set_free(server.home / "meminfo", 900 * MIB)
    error = ask(client, TRAINED + 100).json()["error"]
    assert (error["prompt_tokens"], error["context_tokens"]) == (TRAINED + 100, TRAINED)
    assert f"was trained for {TRAINED}" in error["message"]
    # OpenAI's words, by which LiteLLM and agents recognize it and shorten the conversation
    assert f"This model's maximum context length is {TRAINED} tokens." in error["message"]


def test_what_would_have_to_be_unloaded_is_named_and_then_makes_room(server, client):
    """A pinned model stays loaded; an idle one without a pin is unloaded."""
    first = start(server, client)
    small_machine.set_free(server.home / "meminfo", 800 * MIB)
    load(client, "second", n_ctx=2048, pinned=True)
    leave(server, first["pid"], ROOM + 150 * MIB)
    error = ask(client, 2000).json()["error"]
    assert error["unload"] == ["second"]
    assert "Unload second to make room" in error["message"]
    message = {"model": "first", "max_tokens": 4, "messages": [{"role": "user", "content": "words " * 330}]}
    assert "maximum. Unload second to make room." in client.post("/v1/messages", json=message).text
    assert [m["id"] for m in client.get("/tessera/v1/loaded").json()["models"]] == ["first", "second"]
    load(client, "second", pinned=False)
    assert cached(ask(client, 2000)) == 0
    assert [m["id"] for m in client.get("/tessera/v1/loaded").json()["models"]] == ["first"]


def test_five_agents_share_a_context_that_holds_two(server, client):
    """All finish in turn; the log shows each request's waiting time, and little is computed twice."""
    small_machine.set_free(server.home / "meminfo", 800 * MIB)
    client.post("/tessera/v1/models/spark/load", json={"n_ctx": 1024})
    system = text(200)

    def agent(number):
        talk, seen = [*system, *(3 + (i * i + number) % 200 for i in range(120))], []
        for _ in range(3):
            body = {"model": "spark", "prompt": talk, "max_tokens": 24, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body).json()
            seen.append((answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]))
            talk += [3 + (i * 7 + number) % 200 for i in range(60)]
        return seen

    with ThreadPoolExecutor(5) as agents:
        found = list(agents.map(agent, range(5)))
    assert found == [[("length", 24)] * 3] * 5
    waits = re.findall(r"route=/v1/completions status=200 ms=\d+ waited_ms=(\d+)", server.log)[-15:]
    assert len(waits) == 15
    assert max(map(int, waits)) > 0


def test_a_context_that_the_user_set_is_a_limit(server, client):
    """It grows beyond only for a client that names a size."""
    settings = "/tessera/v1/models/first/load-settings"
    client.put(settings, json={"n_ctx": START})
    loaded = start(server, client)
    assert (loaded["n_ctx"], loaded["max_ctx"]) == (START, START)
    assert client.get("/v1/models/first").json()["context_length"] == START
    refused = ask(client, 600)
    assert (refused.status_code, refused.json()["error"]["context_tokens"]) == (400, START)
    ended = ask(client, 400, max_tokens=300).json()
    assert (ended["usage"]["total_tokens"], ended["choices"][0]["finish_reason"]) == (START, "length")
    named = {"model": "first", "prompt": "words " * 20, "options": {"num_ctx": 1024, "num_predict": 2}}
    assert client.post("/api/generate", json={**named, "stream": False}).status_code == 200
    assert cached(ask(client, 600)) == 400
    assert ask(client, 1100).json()["error"]["context_tokens"] == 1024
    client.put(settings, json={})
