"""Load settings take effect immediately if the model is idle, else after its last answer."""

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.support.servers import RunningServer, unfinished_answer, wait_for

pytestmark = pytest.mark.e2e

MODEL = "spark"
OURS = f"/tessera/v1/models/{MODEL}"
# All kinds of settings: how to set each, and its name in `pending`.
KINDS = {
    "context": ("PUT", "load-settings", {"n_ctx": 512}, "n_ctx"),
    "cache type": ("PUT", "load-settings", {"n_ctx": 512, "kv_type": "q8_0"}, "type_k"),
    "threads": ("PUT", "load-settings", {"n_ctx": 512, "kv_type": "q8_0", "n_threads": 1}, "n_threads"),
    "layers": ("PUT", "load-settings", {"n_ctx": 512, "kv_type": "q8_0", "n_gpu_layers": 0}, "n_gpu_layers"),
    "requests at once": ("PUT", "load-settings", {"n_ctx": 512, "kv_type": "q8_0", "n_parallel": 2}, "n_parallel"),
    "engine arguments": ("PUT", "engine_args", {"engine_args": {"ubatch_size": 256}}, "engine_args"),
    "device": ("POST", "pin", {"device": "cpu"}, "device"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, bundled_model):
    home = tmp_path_factory.mktemp("settings")
    (home / "models").mkdir()
    shutil.copy(bundled_model, home / "models" / "twin.gguf")
    running = RunningServer(home)
    yield running
    running.stop()


@pytest.fixture
def client(server):
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=60
    ) as made:
        yield made
        for path, body in (("load-settings", {}), ("engine_args", {"engine_args": {}})):
            assert made.put(f"{OURS}/{path}", json=body).status_code == 200
        made.put(f"{OURS}/sampling", json={"values": {}})
        made.post(f"{OURS}/pin", json={"device": None})
        made.post(f"{OURS}/unload")


def state(client):
    found = client.get("/tessera/v1/loaded").json()["models"]
    return next((m for m in found if m["id"] == MODEL), {"state": "not-loaded", "pid": None})


def ask(client, **options):
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2, **options}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def answering(server, client):
    return unfinished_answer(server, client, MODEL)


def test_what_is_set_while_the_model_answers_holds_after_the_answer(server, client):
    ask(client)
    before = state(client)
    with answering(server, client):
        pending = []
        for method, path, body, name in KINDS.values():
            applied = client.request(method, f"{OURS}/{path}", json=body).json()
            assert applied.get("applies") == "when_idle", applied
            pending.append(name)
            assert name in state(client)["pending"]
        drafted = client.post(f"{OURS}/load", json={"draft": "twin"}).json()
        assert "draft" in drafted.get("pending", ()), drafted
        told = client.post(f"{OURS}/load", json={}).json()
        assert told["pending"], "it says so instead of waiting"
        assert told["pid"] == before["pid"]
    wait_for(lambda: state(client)["state"] == "loaded" and state(client)["pid"] != before["pid"], 60)
    after = state(client)
    assert (after["n_ctx"], after["pending"], after["engine_args"]) == (512, [], {"ubatch_size": 256})
    settings = client.get(f"{OURS}/placement").json()["loaded"]["settings"]
    assert settings["draft_path"].endswith("twin.gguf")
    client.post(f"{OURS}/load", json={"draft": ""})


@pytest.mark.parametrize("busy", [False, True])
def test_sampling_and_pins_hold_without_a_load(server, client, busy):
    ask(client)
    before = state(client)
    with answering(server, client) if busy else contextlib.nullcontext():
        client.put(f"{OURS}/sampling", json={"values": {"temperature": 0.25}})
        kept = client.put(f"{OURS}/load-settings", json={"keep_loaded": True}).json()
        assert kept["applies"] == "now"
        assert (state(client)["pinned"], state(client)["pending"]) == (True, [])
    found = ask(client)["tessera"]["sampling"]["temperature"]
    assert (found["value"], found["source"], state(client)["pid"]) == (0.25, "user", before["pid"])


def test_a_request_that_comes_meanwhile_is_answered_with_the_new_settings(server, client):
    ask(client)
    before, answers = state(client), []
    with answering(server, client):
        client.put(f"{OURS}/load-settings", json={"n_ctx": 512})
        later = threading.Thread(target=lambda: answers.append(ask(client)))
        later.start()
    later.join(60)
    assert answers
    assert state(client)["pid"] != before["pid"]
    assert state(client)["n_ctx"] == 512


def test_a_runner_that_dies_with_settings_pending_is_replaced(server, client):
    ask(client)
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        runner = next(r for r in server.runners() if r.pid == state(client)["pid"])
        runner.suspend()
        assert client.put(f"{OURS}/load-settings", json={"n_ctx": 512}).json()["applies"] == "when_idle"
        runner.kill()
        assert any("error" in line for line in lines)
    ask(client)
    assert (state(client)["n_ctx"], state(client)["pending"]) == (512, [])


def test_settings_taken_back_in_time_change_nothing(server, client):
    ask(client)
    before = state(client)
    with answering(server, client):
        client.put(f"{OURS}/load-settings", json={"n_threads": 1})
        back = client.put(f"{OURS}/load-settings", json={}).json()
        assert back["applies"] == "now"
        assert state(client)["pending"] == []
    ask(client)
    assert state(client)["pid"] == before["pid"]


def test_what_is_set_while_the_model_is_idle_holds_at_once(client):
    ask(client)
    for kind, (method, path, body, _) in KINDS.items():
        before = state(client)["pid"]
        applied = client.request(method, f"{OURS}/{path}", json=body).json()
        assert (applied.get("applies"), applied.get("unloaded")) == ("now", True), kind
        ask(client)
        assert (state(client)["pending"], state(client)["pid"] != before) == ([], True), kind
    assert (state(client)["n_ctx"], state(client)["engine_args"]) == (512, {"ubatch_size": 256})
    settings = client.get(f"{OURS}/placement").json()["loaded"]["settings"]
    assert (settings["type_k"], settings["n_threads"], settings["n_parallel"]) == ("q8_0", 1, 2)
    client.post(f"{OURS}/unload")
    again = client.put(f"{OURS}/load-settings", json={"n_ctx": 256}).json()
    assert again["applies"] == "at_load"


def test_a_larger_context_alone_does_not_wait(client):
    """The context grows during the answer; a smaller one requested at a cold start is supported."""
    loaded = client.post(f"{OURS}/load", json={"n_ctx": 256}).json()
    assert (loaded["n_ctx"], loaded["max_ctx"]) == (256, 1024)
    with client.stream(
        "POST",
        "/v1/completions",
        json={"model": MODEL, "prompt": "Once", "max_tokens": 150, "ignore_eos": True, "stream": True},
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        grown = client.post(f"{OURS}/load", json={"n_ctx": 512}).json()
        assert any("[DONE]" in line for line in lines)
    assert (grown["n_ctx"], grown["pid"]) == (512, loaded["pid"])
    whole = ask(client, prompt="word " * 600)
    assert whole["usage"]["prompt_tokens"] > 512
    assert (state(client)["n_ctx"], state(client)["pid"]) == (1024, loaded["pid"])


@pytest.mark.parametrize("then", [{"n_ctx": 512, "n_parallel": 2}, {"n_ctx": 384}])
def test_what_is_set_while_the_context_grows_is_not_lost(server, client, then):
    """A context grows between two steps; meanwhile another setting arrives, or a smaller size."""
    client.post(f"{OURS}/load", json={"n_ctx": 256})
    path, before = f"{OURS}/load-settings", state(client)["pid"]

    def put(body):
        sent = browsers.submit(client.put, path, json=body)
        wait_for(lambda: client.get(path).json()["user"] == body)
        return sent

    with ThreadPoolExecutor(2) as browsers:
        with unfinished_answer(server, client, MODEL, tokens=150):
            answers = [put({"n_ctx": 512}), put(then)]
        assert answers[1].result().json()["applies"] == "when_idle"
    wait_for(lambda: state(client)["state"] == "loaded" and state(client)["pid"] != before)
    assert (state(client)["n_ctx"], state(client)["pending"]) == (then["n_ctx"], [])
    settings = client.get(f"{OURS}/placement").json()["loaded"]["settings"]
    assert settings["n_parallel"] == then.get("n_parallel", settings["n_parallel"])


def test_clients_are_told_what_the_context_can_be(client):
    """The maximum size of this model on this computer, whether loaded or not, next to the loaded size."""

    def told():
        row = client.get(f"/v1/models/{MODEL}", headers={"anthropic-version": "2023-06-01"}).json()
        props = client.get("/props", params={"model": MODEL}).json()
        shown = client.post("/api/show", json={"model": MODEL}).json()
        studio = client.get(f"/api/v0/models/{MODEL}").json()
        largest = {row["context_length"], row["max_model_len"], row["meta"]["n_ctx"], row["max_input_tokens"]}
        largest |= {props["default_generation_settings"]["n_ctx"], shown["context_length"]}
        largest.add(studio["max_context_length"])
        loaded = {row["loaded_context_length"], props["n_ctx_loaded"], shown["loaded_context_length"]}
        return largest, loaded | {studio.get("loaded_context_length")}

    client.post(f"{OURS}/unload")
    assert told() == ({1024}, {None})
    client.post(f"{OURS}/load", json={"n_ctx": 256})
    assert told() == ({1024}, {256})
