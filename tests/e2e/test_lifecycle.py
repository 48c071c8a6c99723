"""Processes that die, and clients that leave."""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from tests.support.servers import RunningServer, runs, wait_for
from tests.support.unhindered import Stopwatch

pytestmark = pytest.mark.e2e

# Long enough to interfere with: eight choices of 900 tokens, whatever the text is.
LONG = {
    "model": "spark",
    "messages": [{"role": "user", "content": "Go on."}],
    "max_tokens": 900,
    "n": 8,
    "ignore_eos": True,
    "stream": True,
}
SHORT = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """For the tests that leave it as it was."""
    running = RunningServer(tmp_path_factory.mktemp("lifecycle"))
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path):
    running = RunningServer(tmp_path)
    yield running
    if running.process.poll() is None:
        running.stop()


def active(server):
    text = httpx2.get(f"{server.url}/metrics").text
    line = next(x for x in text.splitlines() if x.startswith("tessera_requests_active "))
    return float(line.split()[1])


def loaded(server):
    headers = {"authorization": f"Bearer {server.token}"}
    told = httpx2.get(f"{server.url}/tessera/v1/loaded", headers=headers, timeout=60).json()["models"]
    return [model["id"] for model in told if model["state"] == "loaded"]


def test_health_answers_at_once_and_the_idle_server_is_small(own_server):
    assert httpx2.get(f"{own_server.url}/health").status_code == 200
    memory = psutil.Process(own_server.process.pid).memory_info().rss
    assert memory < 120e6, f"{memory / 1e6:.0f} MB"


# Of the thread with the event loop. It was 70 while uvicorn checked for its end ten times per second.
MOST_WAKES, QUIET_S = 25, 5


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_an_idle_server_sleeps_and_its_answers_have_the_date_of_now(own_server):
    def wakes():
        status = Path(f"/proc/{own_server.process.pid}/status").read_text("ascii")
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[1])

    def sleeps():
        before = wakes()
        time.sleep(QUIET_S)
        return wakes() - before <= MOST_WAKES

    wait_for(sleeps, 90, "a server that sleeps when it has nothing to do")
    begun = int(time.time())
    date = httpx2.get(f"{own_server.url}/health").headers["date"]
    assert begun <= parsedate_to_datetime(date).timestamp() <= time.time()


def test_a_killed_runner_is_an_error_event_and_the_next_request_works(own_server):
    with httpx2.stream("POST", f"{own_server.url}/v1/chat/completions", json=LONG, timeout=60) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        (runner,) = own_server.runners()
        killed = Stopwatch(own_server.process.pid, runner.pid)
        runner.send_signal(signal.SIGKILL)
        error = next(line for line in lines if '"error"' in line)
        took = killed.seconds()
    body = json.loads(error.removeprefix("data:"))["error"]
    assert body["code"] == "runner_died"
    assert "killed" in body["message"]
    assert body["exit_code"] == -9
    assert took < 1.0
    after = httpx2.post(f"{own_server.url}/v1/chat/completions", json=SHORT, timeout=60)
    assert after.status_code == 200
    assert own_server.process.poll() is None


def test_a_model_that_keeps_dying_is_not_started_for_ever(own_server):
    for _ in range(3):
        assert httpx2.post(f"{own_server.url}/v1/chat/completions", json=SHORT, timeout=60).status_code == 200
        (runner,) = own_server.runners()
        runner.send_signal(signal.SIGKILL)
        wait_for(lambda: not loaded(own_server), what="the server's notice of the runner's end")
    refused = httpx2.post(f"{own_server.url}/v1/chat/completions", json=SHORT, timeout=60)
    assert refused.status_code == 503
    assert "3 times" in refused.json()["error"]["message"]


def test_killing_the_server_leaves_no_runner(own_server):
    httpx2.post(f"{own_server.url}/v1/chat/completions", json=SHORT, timeout=60)
    (runner,) = own_server.runners()
    os.kill(own_server.process.pid, signal.SIGKILL)
    own_server.process.wait()
    wait_for(lambda: not runs(runner.pid), what="the runner's end")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_generation(server, stream):
    httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
    (runner,) = server.runners()
    address = urlsplit(server.url)
    body = json.dumps({**LONG, "stream": stream}).encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        wait_for(lambda: active(server) > 0, what="the generation's start")
        left = Stopwatch(server.process.pid, runner.pid)
    wait_for(lambda: active(server) == 0, 60, "the generation's end")
    assert left.seconds() < 1.5
    assert httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60).status_code == 200


def test_a_hundred_disconnects_leave_nothing_behind(server):
    httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
    process = psutil.Process(server.process.pid)

    def leave():
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=LONG, timeout=60) as response:
            next(response.iter_raw())

    def ten_leave():
        workers = [threading.Thread(target=leave) for _ in range(10)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    ten_leave()
    wait_for(lambda: active(server) == 0, 60, "the end of the first generations")
    files, threads = process.num_fds(), process.num_threads()
    for _ in range(10):
        ten_leave()
    wait_for(lambda: active(server) == 0, 60, "the end of all generations")
    wait_for(lambda: process.num_fds() <= files + 2, what="closed connections")
    pool = min(32, (os.cpu_count() or 1) + 4)  # asyncio's limit: the pool grows if no thread is idle
    assert process.num_threads() <= threads + pool


def test_a_client_that_stops_reading_holds_nobody_up_and_is_let_go(server):
    httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
    process = psutil.Process(server.process.pid)
    files = process.num_fds()
    address = urlsplit(server.url)
    body = json.dumps({**LONG, "n": 2}).encode()  # leaves slots for others
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        wait_for(lambda: active(server) > 0, what="the generation's start")
        for _ in range(3):
            answer = httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60)
            assert answer.status_code == 200
    wait_for(lambda: active(server) == 0, 60, "the generation's end")
    wait_for(lambda: process.num_fds() <= files + 2, what="closed connections")
    assert httpx2.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=60).status_code == 200


def test_terminate_ends_in_good_order(own_server):
    httpx2.post(f"{own_server.url}/v1/chat/completions", json=SHORT, timeout=60)
    (runner,) = own_server.runners()
    own_server.stop()
    assert own_server.process.returncode in (0, -signal.SIGTERM)
    wait_for(lambda: not runs(runner.pid), what="the runner's end")
    assert not (own_server.home / "state" / "server.json").exists()


def test_a_used_port_is_named(server, tmp_path):
    port = str(urlsplit(server.url).port)
    with pytest.raises(RuntimeError, match=f"Port {port} on 127.0.0.1 is in use by .*pid"):
        RunningServer(tmp_path / "second", "--port", port) if (tmp_path / "second").mkdir() is None else None


def test_a_public_address_needs_a_key(tmp_path):
    with pytest.raises(RuntimeError, match="API key is required"):
        RunningServer(tmp_path, "--host", "0.0.0.0")
