"""Tessera's automatic requests never go to an upstream, even if that lists every kind of model."""

import contextlib
import json
import os
import subprocess
import sys
import threading

import httpx2
import pytest

from app.client import Client
from app.code.integrations.endpoint import embedder, endpoint_of
from tests.support.fakes.fake_upstream import FakeUpstream
from tests.support.servers import ROOT, RunningServer, wait_for

pytestmark = pytest.mark.e2e

ROWS = [
    {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": 131072, "capabilities": capabilities}
    for name, capabilities in {
        "chat": ["completion", "chat", "tools", "vision", "reasoning", "fim"],
        "embed": ["embedding"],
        "rank": ["rerank"],
    }.items()
]
SECRET = "The private salary of Ms Zebrafinch is 91,250 euros a year."
OLD = {
    "id": "col_0123456789abcdef01234567",
    "name": "Old",
    "embedding_model": "desk/embed",
    "reranker": "desk/rank",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    (folder / "salaries.txt").write_text(f"{SECRET}\n" * 3)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, place):
    """A server with an old collection that names models of another server, without the user's consent."""
    home = tmp_path_factory.mktemp("leaving")
    (home / "config").mkdir()
    (home / "config" / "collections.json").write_text(json.dumps([{**OLD, "sources": [str(place)]}]))
    running = RunningServer(
        home, "--parallel", "1", env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=60
    ) as client:
        yield client


@pytest.fixture(scope="module")
def desk(http):
    """An upstream with loaded models; rules allow it for named models and for queued requests."""
    fake = FakeUpstream("vllm")
    fake.rows = ROWS
    assert http.put("/tessera/v1/upstreams/desk", json={"url": fake.url}).status_code == 200
    for rule in ({"model": "desk/*"}, {"model": "spark", "as_model": "chat", "queue": 0}):
        assert http.put("/tessera/v1/upstream-rules", json={"upstream": "desk", **rule}).status_code == 200
    http.put("/tessera/v1/upstream-rules", json={"upstream": "desk", "model": "aside", "as_model": "chat"})
    assert chat(http, "hello", "desk/chat").status_code == 200
    assert http.post("/v1/embeddings", json={"model": "desk/embed", "input": "hello"}).status_code == 200
    rerank = {"model": "desk/rank", "query": "hello", "documents": ["a", "b"]}
    assert http.post("/v1/rerank", json=rerank).status_code == 200
    assert chat(http, "hello", "spark", max_tokens=1).status_code == 200
    fake.seen.clear()
    yield fake
    fake.stop()


def chat(http, text, model, **body):
    messages = [{"role": "user", "content": text}]
    return http.post("/v1/chat/completions", json={"model": model, "messages": messages, **body})


def ready(http, path):
    """The collection, after all work on it has ended."""
    found = {}

    def settled():
        found.update(http.get(path).json())
        return found["state"] == "ready" and (found["problems"] or found["embedded"] == found["chunks"])

    wait_for(settled, what="the reading")
    return found


def test_collections_stay_here(http, desk, place):
    path = "/tessera/v1/collections"
    made = http.post(path, json={"name": "hr", "sources": [str(place)]}).json()
    for key in (made["id"], OLD["id"]):
        found = ready(http, f"{path}/{key}")
        assert (found["chunks"] > 0, found["embedded"], found["sent_to"]) == (True, 0, [])
        answer = http.post(f"{path}/{key}/search", json={"query": "salary of Ms Zebrafinch"}).json()
        assert answer["passages"]
        assert answer["reranked_by"] == ""
        asked = chat(http, "What is the salary of Ms Zebrafinch?", "spark", collection=key, max_tokens=8)
        assert asked.status_code == 200
    assert any(desk.url in problem for problem in found["problems"])
    sent = http.post("/v1/files", files={"file": ("a.txt", SECRET.encode())}, data={"purpose": "assistants"}).json()
    store = http.post("/v1/vector_stores", json={"name": "s", "file_ids": [sent["id"]]}).json()
    url = f"/v1/vector_stores/{store['id']}"
    wait_for(lambda: http.get(url).json()["status"] == "completed", what="the store")
    assert http.post(f"{url}/search", json={"query": "salary of Ms Zebrafinch"}).json()["data"]
    tool = {"type": "file_search", "vector_store_ids": [store["id"]]}
    body = {"model": "spark", "input": "salary of Ms Zebrafinch", "tools": [tool], "max_output_tokens": 8}
    assert http.post("/v1/responses", json=body).status_code == 200
    assert desk.seen == []


@pytest.mark.parametrize("model", ["desk/chat", "aside"])
def test_side_work_is_refused_where_a_rule_sends_its_model_away(http, desk, model):
    """Titles, summaries and prompt prefill are such requests."""
    refused = [chat(http, SECRET, model, priority="side", stream=stream) for stream in (False, True)]
    for path in ("/v1/completions", "/v1/fim/completions"):
        body = {"model": model, "prompt": SECRET, "suffix": "x", "priority": "side"}
        refused.append(http.post(path, json=body))
    refused.append(http.post("/tokenize", json={"model": model, "content": SECRET, "priority": "side"}))
    for answer in refused:
        assert answer.status_code == 403, answer.text
        assert answer.json()["error"]["code"] == "stays_here"
    assert desk.seen == []


def test_side_work_does_not_go_away_when_it_would_wait(http, desk):
    """One request at a time runs locally; the rule forwards queued requests, but not background ones."""

    def told(**more):
        with contextlib.suppress(httpx2.HTTPError):  # the model is unloaded in the end
            chat(http, SECRET, "spark", max_tokens=1_000_000, ignore_eos=True, context_shift=True, **more)

    def active():
        return sum(m["active"] for m in http.get("/tessera/v1/loaded").json()["models"] if m["id"] == "spark")

    threads = [threading.Thread(target=told, kwargs=more) for more in ({}, {}, {"priority": "side"})]
    try:
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_for(lambda count=count: active() == count or desk.seen, what=f"request {count}")
        assert desk.seen == []
    finally:
        for thread in threads:
            while thread.is_alive():
                http.post("/tessera/v1/models/spark/unload")
                thread.join(1)


def test_a_model_that_nobody_named_is_a_local_one(server, http, desk):
    http.post("/v1/embeddings", json={"model": "desk/embed", "input": "hello"})
    chat(http, "hello", "desk/chat")  # the most recently used model
    desk.seen.clear()
    assert http.post("/tokenize", json={"content": SECRET}).status_code == 200
    assert http.post("/embedding", json={"content": SECRET}).status_code == 200
    assert "desk" not in http.get("/props").json()["model_alias"]
    http.post("/infill", json={"input_prefix": SECRET, "input_suffix": "x", "n_predict": 4})
    assert chat(http, SECRET, "default", max_tokens=2).status_code == 200
    with Client(server.url, server.token) as client:
        assert endpoint_of(client).model == "spark"
        assert embedder(client) is None
    assert desk.seen == []


def test_a_server_that_is_named_needs_consent_to_its_address_and_is_shown(server, http, desk, place):
    path = "/tessera/v1/collections"
    body = {"name": "shared", "sources": [str(place)], "embedding_model": "desk/embed", "reranker": "desk/rank"}
    refused = http.post(path, json=body)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "remote_not_agreed"
    assert desk.url in refused.json()["error"]["message"]
    assert desk.seen == []
    made = http.post(path, json={**body, "allow_remote": True}).json()
    path = f"{path}/{made['id']}"
    found = ready(http, path)
    assert found["embedded"] == found["chunks"] > 0
    assert found["sent_to"] == [{"model": m, "server": desk.url} for m in ("desk/embed", "desk/rank")]
    answer = http.post(f"{path}/search", json={"query": "salary of Ms Zebrafinch"}).json()
    assert answer["reranked_by"] == "desk/rank"
    assert {at for at, _ in desk.seen} == {"/v1/embeddings", "/v1/rerank"}
    listed = subprocess.run(
        [sys.executable, "-m", "app", "collections", "list"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "TESSERA_HOME": str(server.home)},
    )  # fmt: skip
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("shared\t")]
    assert line.endswith(f"its text is sent to {desk.url}")

    desk.seen.clear()
    moved = FakeUpstream("vllm")
    moved.rows = ROWS
    try:
        assert http.put("/tessera/v1/upstreams/desk", json={"url": moved.url}).status_code == 200
        (place / "more.txt").write_text("A second secret of the same folder.")
        wait_for(lambda: http.get(path).json()["documents"] == 2, what="the new file")
        found = http.get(path).json()
        assert any(moved.url in problem for problem in found["problems"])
        answer = http.post(f"{path}/search", json={"query": "salary of Ms Zebrafinch"}).json()
        assert answer["ways"] == "words"
        assert answer["reranked_by"] == ""
        assert desk.seen == moved.seen == []
        assert http.post(path, json={"allow_remote": True}).json()["sent_to"][0]["server"] == moved.url
        wait_for(lambda: moved.seen, what="the vectors")
        assert http.post(path, json={"allow_remote": False}).json()["sent_to"] == []
    finally:
        moved.stop()
