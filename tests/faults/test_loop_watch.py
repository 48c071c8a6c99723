"""A real server whose event loop is stuck ends, reports the stacks of its threads, and can be started again."""

import os
import signal
import subprocess
import sys
import threading
import time

import httpx2
import pytest

from tests.support.fakes.scripted import ScriptedServer
from tests.support.servers import RunningServer, wait_for

# The real server with a shorter limit, and a hook that blocks its loop.
HELD = """
import signal, sys, time
from engine.server import build_server
build_server.LoopWatch.__init__.__defaults__ = (6,)
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(60))
from app.cli.main import main
sys.argv = ["tessera", "serve", "--port", "0"]
main()
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    real = subprocess.Popen

    def held(command, **options):
        return real([sys.executable, "-c", HELD] if "serve" in command else command, **options)

    monkeypatch.setattr(subprocess, "Popen", held)
    running = RunningServer(tmp_path)
    yield running
    running.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_server_that_stands_still_ends_and_says_where_it_stood(server):
    assert httpx2.get(f"{server.url}/health", timeout=60).status_code == 200
    server.process.send_signal(signal.SIGUSR1)
    assert server.process.wait(90) == 70
    assert "has not run for 6 s" in server.log
    assert "most recent call first" in server.log


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_server_that_was_stopped_for_longer_goes_on(server):
    os.kill(server.process.pid, signal.SIGSTOP)
    time.sleep(9)
    os.kill(server.process.pid, signal.SIGCONT)
    assert httpx2.get(f"{server.url}/health", timeout=60).status_code == 200
    time.sleep(2)
    assert server.process.poll() is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_server_that_crashes_in_native_code_logs_what_its_threads_did(tmp_path):
    running = RunningServer(tmp_path)
    try:
        running.process.send_signal(signal.SIGSEGV)
        assert running.process.wait(60) == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in running.log
        assert "most recent call first" in running.log
    finally:
        running.stop()


def test_a_server_has_its_worker_threads_before_it_needs_them(tmp_path):
    def workers():
        return sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())

    others, wanted = workers(), min(32, (os.cpu_count() or 1) + 4)
    server = ScriptedServer(tmp_path / "home")
    try:
        wait_for(lambda: workers() - others == wanted, 60, "the worker threads of a server that nobody asks")
    finally:
        server.stop()
