"""llama-server's streams that outlive their connection, on the real server."""

import json
import socket

import httpx2
import pytest

from tests.support.servers import RunningServer, wait_for

HI = [{"role": "user", "content": "Tell me of the sea."}]


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        client.post("/v1/chat/completions", json={"model": "spark", "messages": HI, "max_tokens": 1})
        yield client


# Continues until it is stopped, however long a busy machine delays this program.
ENDLESS = {"max_tokens": 1_000_000, "context_shift": True}


def ask(**body):
    return {
        "model": "spark",
        "messages": HI,
        "max_tokens": 24,
        "ignore_eos": True,
        "stream": True,
        "seed": 5,
        **body,
    }


def leave_behind(http, name, path="/v1/chat/completions", headers=None, **body):
    """Request a stream, read its first bytes and disconnect; return the bytes."""
    named = {"x-conversation-id": name, **(headers or {})}
    with http.stream("POST", path, json=ask(**body), headers=named) as answer:
        assert answer.status_code == 200, answer.read()
        return next(answer.iter_raw())


def looked_up(http, *names, headers=None):
    answer = http.post("/v1/streams/lookup", json={"conversation_ids": list(names)}, headers=headers)
    assert answer.status_code == 200, answer.text
    return {told["conversation_id"]: told for told in answer.json()}


def read(http, name, start=0, headers=None):
    return http.get("/v1/stream", params={"conv_id": name, "from": start}, headers=headers)


def processing(http):
    return any(slot["is_processing"] for slot in http.get("/slots", params={"model": "spark"}).json())


def test_a_stream_is_made_to_its_end_without_its_reader_and_read_again_from_any_byte(http):
    name = "chat one::org/model:Q8_0"
    seen = leave_behind(http, name)
    rest = read(http, name, len(seen))
    assert rest.headers["content-type"].startswith("text/event-stream")
    whole = read(http, name).content
    assert whole == seen + rest.content
    assert whole.endswith(b"data: [DONE]\n\n")
    told = [json.loads(line[6:]) for line in whole.decode().splitlines() if line.startswith("data: {")]
    assert told[-1]["choices"][0]["finish_reason"] == "length"
    [told] = looked_up(http, "chat one", "nobody").values()
    assert (told["is_done"], told["total_bytes"]) == (True, len(whole))
    assert 0 < told["started_at"] <= told["completed_at"]
    assert read(http, name, len(whole) + 9).content == b""


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_every_protocol_that_streams_events(http, path):
    fields = {
        "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
        "/v1/messages": {"messages": HI, "max_tokens": 16},
    }.get(path, {"prompt": "Once", "max_tokens": 16})
    named = {"x-conversation-id": path}
    answer = http.post(path, json={"model": "spark", "stream": True, **fields}, headers=named)
    assert answer.status_code == 200, answer.text
    assert read(http, path).content == answer.content != b""


def test_stop_ends_the_answer_and_forgets_it(http):
    leave_behind(http, "long", **ENDLESS)
    assert not looked_up(http, "long")["long"]["is_done"]
    assert http.delete("/v1/stream", params={"conv_id": "long"}).status_code == 204
    assert looked_up(http, "long") == {}
    gone = read(http, "long")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "stream_not_found")
    wait_for(lambda: not processing(http), what="the end of the work")
    assert http.delete("/v1/stream", params={"conv_id": "long"}).status_code == 204


def test_asking_again_in_a_conversation_takes_the_place_of_what_runs(http):
    leave_behind(http, "twice", **ENDLESS)
    second = http.post("/v1/chat/completions", json=ask(max_tokens=3), headers={"x-conversation-id": "twice"})
    assert read(http, "twice").content == second.content
    wait_for(lambda: not processing(http), what="the end of the work")


def test_a_request_that_is_refused_says_so_with_its_status(http):
    named = {"x-conversation-id": "refused"}
    answer = http.post("/v1/chat/completions", json=ask(model="nobody"), headers=named)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert http.post("/v1/chat/completions", json=ask(max_tokens="x"), headers=named).status_code == 400
    answer = http.post(
        "/v1/chat/completions", json=ask(messages=[{"role": "user", "content": "a " * 4000}]), headers=named
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert b"context_length_exceeded" in read(http, "refused").content


@pytest.mark.parametrize("query", ["", "?conv_id=", "?conv_id=a&from=-1", "?conv_id=a&from=x"])
def test_wrong_questions_are_refused(http, query):
    assert http.get(f"/v1/stream{query}").status_code == 400
    assert http.post("/v1/streams/lookup", json={"conversation_ids": "all"}).status_code == 400
    assert http.get("/v1/streams").status_code == 404


def test_a_load_can_be_left(server, http):
    """The page is reloaded while the model loads."""
    token = {"authorization": f"Bearer {server.token}"}
    assert http.post("/tessera/v1/models/spark/unload", headers=token).status_code == 200
    body = json.dumps(ask(max_tokens=4)).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"x-conversation-id: early\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as raw:
        raw.sendall(head.encode() + body)
        wait_for(lambda: looked_up(http, "early"), 60, "the stream")
    assert read(http, "early").content.endswith(b"data: [DONE]\n\n")


def test_a_conversation_belongs_to_its_key(tmp_path):
    server = RunningServer(tmp_path, "--api-key", "one", "--api-key", "two")
    try:
        mine, yours = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        with httpx2.Client(base_url=server.url, timeout=60) as http:
            leave_behind(http, "shared", headers=mine)
            assert looked_up(http, "shared", headers=yours) == {}
            assert read(http, "shared", headers=yours).status_code == 404
            assert http.delete("/v1/stream", params={"conv_id": "shared"}, headers=yours).status_code == 204
            assert read(http, "shared", headers=mine).content.endswith(b"data: [DONE]\n\n")
    finally:
        server.stop()
