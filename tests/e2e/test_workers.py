"""engine_args.rpc: llama.cpp's own RPC servers on loopback, as real processes with the bundled model."""

import os
import signal
import socket
import subprocess
import sys

import httpx2
import psutil
import pytest

from tests.support.servers import ROOT, RunningServer, free_port, wait_for


class Worker:
    def __init__(self, home):
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.runner.llama.rpc_worker", str(self.port), "1"],
            cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(home)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_for(lambda: self.process.poll() is not None or self.listens(), 60, "the worker's port")
        assert self.process.poll() is None, self.process.stdout.read()

    def listens(self):
        return any(c.status == "LISTEN" for c in psutil.Process(self.process.pid).net_connections("inet"))

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def workers(tmp_path):
    made = [Worker(tmp_path), Worker(tmp_path)]
    yield made
    for worker in made:
        worker.stop()


@pytest.fixture
def http(tmp_path_factory):
    server = RunningServer(tmp_path_factory.mktemp("workers-home"))
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=110
    ) as client:
        client.log = lambda: server.log
        yield client
    server.stop()


def ask(http, **more):
    messages = [{"role": "user", "content": "Tell me about rain"}]
    body = {"model": "spark", "messages": messages, "max_tokens": 24, "temperature": 0, **more}
    return http.post("/v1/chat/completions", json=body)


def use(http, *workers):
    rpc = [f"127.0.0.1:{port}" for port in workers]
    return http.put("/tessera/v1/models/spark/engine_args", json={"engine_args": {"rpc": rpc} if rpc else {}})


@pytest.mark.slow
def test_a_model_over_two_workers_says_what_it_says_here(http, workers):
    here = ask(http).json()["choices"][0]["message"]["content"]
    kept = use(http, *(w.port for w in workers))
    assert kept.status_code == 200, kept.text
    away = ask(http)
    assert away.status_code == 200, away.text
    assert away.json()["choices"][0]["message"]["content"] == here
    loaded = http.get("/tessera/v1/loaded").json()["models"][0]
    assert loaded["backend"] == "RPC0,RPC1"
    for worker in workers:  # both hold a part, and are reachable only from this computer
        process = psutil.Process(worker.process.pid)
        listening = [c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
        assert any(c.status == "ESTABLISHED" for c in process.net_connections("inet"))
    # After one is killed, the request ends with an error, the server lives, and the next load reports it missing.
    workers[0].process.send_signal(signal.SIGKILL)
    workers[0].process.wait()
    lost = ask(http)
    assert lost.status_code >= 400
    again = ask(http)
    assert again.status_code >= 400
    assert f"no worker answers at 127.0.0.1:{workers[0].port}" in again.text
    assert use(http).status_code == 200
    assert ask(http).json()["choices"][0]["message"]["content"] == here


def test_workers_that_are_not_there_and_addresses_beyond_this_computer(http):
    port = free_port()
    missing = use(http, port)
    assert missing.status_code == 400
    assert f"no worker answers at 127.0.0.1:{port}" in missing.text
    for address in ("10.0.0.2:50052", "127.0.0.1:x", "localhost:1"):
        answer = http.put("/tessera/v1/models/spark/engine_args", json={"engine_args": {"rpc": [address]}})
        assert answer.status_code == 400
    assert ask(http, max_tokens=2).status_code == 200


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app", "worker", "--port", str(port)],
            cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert "choose another: --port" in done.stderr
