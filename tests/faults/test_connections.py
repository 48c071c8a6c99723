"""Clients that connect and hold: the server answers others, its log stays short, silent connections end."""

import os
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from engine.server import log_rate_limit
from tests.support.servers import RunningServer, wait_for
from tests.support.unhindered import Stopwatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
REPOSITORY = Path(__file__).resolve().parents[2]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
KINDS = {"silent": b"", "half a head": HEAD, "half a body": HEAD + b"Content-Length: 1000\r\n\r\n{"}
NUM_DESCRIPTORS = 160


def started(home, head_s):
    """A server with a limit for descriptors and a timeout for request heads."""
    (home / "sitecustomize.py").write_text(
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({NUM_DESCRIPTORS}, {NUM_DESCRIPTORS}))\n"
        "if 'serve' in sys.argv:\n"
        "    import engine.server.connections as connections\n"
        f"    connections.HEAD_S, connections.UNREAD_S = {head_s}, 2.0\n"
    )
    return RunningServer(home, env={"PYTHONPATH": f"{home}{os.pathsep}{REPOSITORY}"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = started(tmp_path_factory.mktemp("connections"), 2.0)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """The holder keeps it until it makes space, not until a limit passes."""
    running = started(tmp_path_factory.mktemp("patient"), 600.0)
    yield running
    running.stop()


def address(server):
    url = httpx.URL(server.url)
    return url.host, url.port


def opened(server, stack, what, count):
    for _ in range(count):
        connection = socket.create_connection(address(server), 60)
        stack.callback(connection.close)
        with suppress(OSError):  # it made room for another one already
            connection.sendall(what)
        stack.enter_context(suppress(OSError))
    return stack


@pytest.mark.parametrize("what", KINDS.values(), ids=KINDS.keys())
def test_connections_that_say_nothing_lock_nobody_out_and_fill_no_log(patient, what):
    with ExitStack() as stack:
        opened(patient, stack, what, 2 * NUM_DESCRIPTORS)
        for _ in range(5):
            asked = Stopwatch(patient.process.pid)
            assert httpx.get(f"{patient.url}/health", timeout=60).status_code == 200
            assert asked.seconds() < 2
    assert len(patient.log) < 100_000


@pytest.mark.parametrize("what", [b"", HEAD], ids=["silent", "half a head"])
def test_a_head_has_a_time_limit_also_behind_an_answer(server, what):
    for first in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        if first and not what:
            continue  # connections are kept alive for the silence after a response
        with socket.create_connection(address(server), 60) as connection:
            if first:
                connection.sendall(first)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(what)
            told = b""
            while piece := connection.recv(4096):
                told += piece
        assert not what or b"HTTP/1.1 408" in told, told


def test_a_head_has_a_size_limit(server):
    with socket.create_connection(address(server), 60) as connection:
        with suppress(OSError):
            connection.sendall(HEAD)
            for _ in range(200):
                connection.sendall(b"X-More: " + b"a" * 1000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


def test_requests_that_all_want_an_answer_get_one(patient):
    """More concurrent connections than descriptors: the rest are asked to retry later."""
    with httpx.Client(limits=httpx.Limits(max_connections=1)) as one:
        assert one.get(f"{patient.url}/health").status_code == 200
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(address(patient), 60)) for _ in range(200)]
        answers = []
        for connection in connections:
            with suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answers.append(connection.recv(20)[:12])
        assert answers.count(b"HTTP/1.1 200") > 50
        assert set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}


@pytest.mark.timeout(400)
def test_an_answer_that_is_not_taken_ends(server):
    """A client that requests much and reads nothing frees the model after a time."""
    body = b'{"model":"spark","prompt":"Once","max_tokens":900,"stream":true,"logprobs":5,"ignore_eos":true}'
    request = HEAD.replace(b"chat/completions", b"completions") + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(address(server))
            connection.sendall(request)
        wait_for(lambda: server.log.count("route=/v1/completions") == 2, 300, "the end of both answers")
    assert "tessera_requests_active 0" in httpx.get(f"{server.url}/metrics", timeout=60).text


def test_a_log_of_its_own_is_shortened_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(log_rate_limit, "FILE_BYTES", 10_000)
    monkeypatch.setattr(log_rate_limit, "TAIL_BYTES", 1_000)
    file = tmp_path / "server.log"
    with file.open("a+b") as opened_file:
        descriptor = opened_file.fileno()
        for number in range(2_000):
            os.write(descriptor, b"line %d\n" % number)
        assert log_rate_limit.shorten(descriptor)
        assert not log_rate_limit.shorten(descriptor)
        os.write(descriptor, b"after\n")
    text = file.read_text()
    assert text.startswith("[the log was shortened]\nline ")
    assert text.endswith("line 1999\nafter\n")
    assert len(text) < 1_100


def test_the_same_line_is_not_written_for_ever(caplog):
    import logging

    sparing = log_rate_limit.LogRateLimit()
    record = logging.LogRecord("a", logging.WARNING, "", 0, "out of descriptors", (), None)
    assert sum(sparing.filter(record) for _ in range(50_000)) == 1000
    other = logging.LogRecord("a", logging.WARNING, "", 0, "something else", (), None)
    assert sparing.filter(other)


def test_a_websocket_is_answered_and_the_log_says_nothing_but_the_request(server):
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    key = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = httpx.get(f"{server.url}/v1/realtime", headers={**upgrade, **key})
    assert answer.status_code == 404
    assert "WebSocket" not in server.log
    assert "upgrade" not in server.log
