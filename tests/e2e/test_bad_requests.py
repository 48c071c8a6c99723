"""Every bad request gets a 4xx that names the field, and the server keeps running."""

import json
import math
import socket
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

pytestmark = pytest.mark.e2e
MESSAGES = [{"role": "user", "content": "Hi"}]


def post(server, body, path="/v1/chat/completions", **kwargs):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"{server.url}{path}", content=data, timeout=60, **kwargs)


@pytest.fixture(autouse=True)
def still_well(server):
    yield
    answer = post(server, {"model": "spark", "messages": MESSAGES, "max_tokens": 2})
    assert answer.status_code == 200
    assert server.process.poll() is None


NUMBERS = {
    "temperature": [-1, 2**31, math.nan, math.inf, "x"],
    "top_p": [-1, 0, 2, math.nan, "x"],
    "top_k": [-2, 2**63, "x", 0.5],
    "min_p": [-1, 2, math.nan, "x"],
    "max_tokens": [-2, 2**31, 2**63, "x", 1.5],
    "max_completion_tokens": [-2, 2**63, "x"],
    "n": [-1, 0, 2**31, "x"],
    "seed": [2**63, "x", math.nan],
    "presence_penalty": [-3, 3, math.nan, "x"],
    "frequency_penalty": [-3, 3, math.nan, "x"],
    "repeat_penalty": [-1, 0, math.nan, "x"],
    "top_logprobs": [-1, 21, "x"],
    "typical_p": [0, 2, math.nan],
    "mirostat": [3, -1, "x"],
    "stop": [1, [1], ["x"] * 65],
    "logit_bias": [{"a": 1}, {"1": 101}, {"1": math.nan}, [1]],
    "messages": [[], "x", [{"role": "nobody", "content": "x"}], [{"content": "x"}], 5],
    "model": [5, None],
    "stream": ["yes", 1],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in NUMBERS.items() for v in values])
def test_a_bad_value_names_its_field(server, field, value):
    answer = post(server, {"model": "spark", "messages": MESSAGES, "logprobs": True, field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert field in (error["param"] or error["message"])
    assert answer.headers["x-should-retry"] == "false"


def test_null_means_the_default(server):
    body = {"model": "spark", "messages": MESSAGES, "temperature": None, "top_p": None, "stop": None, "n": None}
    assert post(server, {**body, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "spark"}',
    ],
)
def test_what_is_no_request_is_refused(server, body):
    answer = post(server, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_an_empty_question_is_answered_and_no_message_at_all_is_refused(server):
    ask = {"model": "spark", "messages": [{"role": "user", "content": ""}], "max_tokens": 1}
    assert post(server, ask).status_code == 200
    refused = post(server, {"model": "spark", "messages": []})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


def test_unknown_fields_are_reported_not_dropped_silently(server):
    answer = post(server, {"model": "spark", "messages": MESSAGES, "max_tokens": 2, "wibble": 1})
    assert answer.status_code == 200
    assert answer.headers["x-tessera-ignored"] == "wibble"


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "http://127.0.0.1/x.png", "ftp://x/y", "data:text/html;base64,aaaa", "x", 5]
)
def test_pictures_come_as_data_only(server, url):
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = post(server, {"model": "spark", "messages": [{"role": "user", "content": content}]})
    assert answer.status_code == 400
    assert "image_url" in answer.json()["error"]["param"]


def test_an_announced_gigabyte_is_refused_before_it_is_read(server):
    address = urlsplit(server.url)
    before = psutil.Process(server.process.pid).memory_info().rss
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n"
        )
        assert b" 413 " in connection.recv(4096)
    assert psutil.Process(server.process.pid).memory_info().rss - before < 20e6


def test_an_endless_chunked_body_is_cut_off(server):
    address = urlsplit(server.url)
    before = psutil.Process(server.process.pid).memory_info().rss
    block = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    answer = b""
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.settimeout(60)
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(100):
                connection.sendall(block)
            answer = connection.recv(4096)
        except ConnectionError:
            answer = b" 413 "
    assert b" 413 " in answer
    assert psutil.Process(server.process.pid).memory_info().rss - before < 150e6


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "localhost.evil.example"},
    ],
)
def test_foreign_pages_are_refused(server, headers):
    answer = post(
        server, {"model": "spark", "messages": MESSAGES}, headers={"content-type": "text/plain", **headers}
    )
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_unknown_routes_answer_in_the_same_shape(server):
    answer = httpx2.get(f"{server.url}/v1/nothing/here")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"]


def test_metrics_count_what_was_done(server):
    post(server, {"model": "spark", "messages": MESSAGES, "max_tokens": 2})
    text = httpx2.get(f"{server.url}/metrics").text
    assert 'tessera_generated_tokens_total{model="spark"}' in text
    assert "tessera_time_to_first_token_seconds_bucket" in text
    assert "tessera_inter_token_seconds_bucket" in text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": None}, "prompt"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[]]}, "input[0]"),
        ("/api/chat", {"messages": MESSAGES, "keep_alive": []}, "keep_alive"),
        ("/v1/completions", {"prompt": "word " * 20_000}, "prompt"),
        ("/v1/embeddings", {"input": "word " * 20_000}, "input"),
        ("/api/generate", {"prompt": "word " * 20_000, "stream": False}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 20_000}]}, "messages"),
    ],
    ids=range(8),
)
def test_the_named_field_is_one_of_the_request(server, path, body, param):
    answer = httpx2.post(f"{server.url}{path}", json={"model": "spark", **body}, timeout=60)
    assert answer.status_code == 400, answer.text
    told = answer.json() if path.startswith("/api") else answer.json()["error"]
    assert told["param"] == param


def test_an_answer_to_the_older_http_has_no_chunks(server):
    body = json.dumps({"model": "spark", "messages": MESSAGES, "max_tokens": 4, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), 30) as raw:
        raw.sendall(head.encode() + body)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    head, _, told = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert told.startswith(b"data: {")
    assert told.endswith(b"data: [DONE]\n\n")
