"""One key's prompts are invisible to other keys: in cached tokens of any protocol, and after a restart."""

import json

import httpx2
import pytest

from engine.core.keys import KeyStore
from tests.support.fakes.fake_upstream import MODEL, FakeUpstream
from tests.support.servers import RunningServer, wait_for

SECRET = "Customer record. The card number on file is 51844662. " * 5 + "Please summarise."
ASKED = [{"role": "user", "content": SECRET}]


def chat(http, path="/v1/chat/completions", **body):
    answer = http.post(path, json={"model": "spark", "max_tokens": 1, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def events(answer):
    return [json.loads(x[6:]) for x in answer.text.splitlines() if x.startswith("data: {")]


def of_openai(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def completions(http):
    return of_openai(chat(http, "/v1/completions", prompt=SECRET).json()["usage"])


def streamed(http):
    """Cached tokens in every event that reports them: progress, usage and timings."""
    told = events(
        chat(http, messages=ASKED, stream=True, stream_options={"include_usage": True}, return_progress=True,
             timings_per_token=True)
    )  # fmt: skip
    progress = [e["prompt_progress"]["cache"] for e in told if "prompt_progress" in e]
    usage = [of_openai(e["usage"]) for e in told if e.get("usage")]
    timings = [e["timings"].get("cache_n", 0) for e in told if e.get("timings")]
    assert usage
    return max(progress + usage + timings)


def anthropic(http):
    told = events(chat(http, "/v1/messages", messages=ASKED, stream=True))
    usages = [
        e.get("usage") or e["message"]["usage"] for e in told if e["type"] in {"message_start", "message_delta"}
    ]
    return max(usage.get("cache_read_input_tokens") or 0 for usage in usages)


def responses(http):
    told = chat(http, "/v1/responses", input=SECRET, max_output_tokens=16).json()["usage"]
    return told["input_tokens_details"]["cached_tokens"]


def background(http):
    """A background response reports its usage in a later query."""
    made = chat(http, "/v1/responses", input=SECRET, max_output_tokens=16, background=True).json()
    path, found = f"/v1/responses/{made['id']}", {}

    def ended():
        found.update(http.get(path).json())
        return found["status"] not in {"queued", "in_progress"}

    wait_for(ended, what="the answer")
    return found["usage"]["input_tokens_details"]["cached_tokens"]


def native(http):
    told = chat(http, "/completion", prompt=SECRET, n_predict=1).json()
    return max(told["tokens_cached"], told["timings"]["cache_n"])


WAYS = [completions, streamed, anthropic, responses, background, native]


def test_a_key_reads_nothing_of_another_key(tmp_path):
    store = KeyStore(tmp_path / "config" / "api-keys.json")
    server = RunningServer(tmp_path, "--api-key", "fixed")
    victims = {}

    def with_key(key):
        return httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"} if key else {})

    try:
        for way in WAYS:
            victims[way] = store.add(f"victim {way.__name__}", ("chat",))
            with with_key(victims[way]) as one, with_key(store.add(way.__name__, ("chat", "manage"))) as other:
                way(one)
                assert way(other) == 0, way.__name__
                assert way(one) > 64, way.__name__  # its own prefix is found again
                assert way(other) > 64, way.__name__
        with with_key("fixed") as fixed, with_key(server.token) as own:
            assert completions(fixed) == completions(own) == 0
            assert completions(own) > 64
            own.headers["x-api-key"] = victims[completions][:-1]  # an invalid second key
            assert completions(own) > 64
    finally:
        server.stop()
    told = "\n".join([server.log, *sorted(str(file) for file in tmp_path.rglob("*.kv"))])
    server = RunningServer(tmp_path)
    try:  # prefixes on disk have owners, too
        with with_key(store.add("new", ("chat",))) as new, with_key(victims[completions]) as old:
            assert completions(new) == 0
            assert completions(old) > 64, told
        for key in store.all():
            store.remove(key.name)
        with with_key("") as anyone, with_key("none of ours") as other, with_key(server.token) as own:
            assert completions(anyone) == 0
            assert completions(other) > 64  # without keys, all requests have one owner
            assert completions(own) > 64
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_another_server_keeps_keys_apart_or_its_count_is_not_told(tmp_path, kind):
    """vLLM gets a salt per key. Other servers see all requests as one client, so their counts are not passed on."""
    store = KeyStore(tmp_path / "config" / "api-keys.json")
    fake = FakeUpstream(kind)
    server = RunningServer(tmp_path, env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"})
    try:
        with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {server.token}"}) as http:
            http.put("/tessera/v1/upstreams/desk", json={"url": fake.url})
            http.put("/tessera/v1/upstream-rules", json={"model": "desk/*", "upstream": "desk"})
            body = {"model": f"desk/{MODEL}", "messages": ASKED}
            told = [http.post("/v1/chat/completions", json=body).json()["usage"]]
            for name in ("one", "other"):
                http.headers["authorization"] = f"Bearer {store.add(name, ('chat',))}"
                told.append(http.post("/v1/chat/completions", json=body).json()["usage"])
        salts = [sent.get("cache_salt") for _, sent in fake.seen]
        assert [of_openai(usage) for usage in told] == ([4, 4, 4] if kind == "vllm" else [4, 0, 0])
        assert len(set(salts)) == (3 if kind == "vllm" else 1)
        assert salts[0] is None
    finally:
        server.stop()
        fake.stop()
