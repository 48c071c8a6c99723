"""A disk that is slow or hangs while a runner or a server ends: computed states are stored, with a time limit."""

import asyncio
import os
import signal
import sys
import time
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from engine.core.types import Delta, GenerationRequest, Started
from engine.runner import watchdog
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.runner_calls import CHAT, GREEDY
from tests.support.servers import RunningServer, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the slow files are found by /proc")
ROOT = Path(__file__).resolve().parents[2]
PROMPT = CHAT.format("Explain what a file is. " * 15)
# Python imports it at the start of every process; only runners change. Each write of a stored prefix sleeps first.
SITE = """
import os, sys, time

class Slow:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def write(self, data):
        time.sleep({pause_s})
        return self.file.write(data)

opened = os.fdopen

def fdopen(descriptor, mode="r", *more, **options):
    file = opened(descriptor, mode, *more, **options)
    return Slow(file) if os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(".part") else file

if "engine.runner.main" in sys.orig_argv:
    os.fdopen = fdopen
"""


@pytest.fixture
def slow(tmp_path):
    """The environment of processes whose disk takes this long for a part of a prefix."""

    def with_pause(pause_s):
        (tmp_path / "sitecustomize.py").write_text(SITE.format(pause_s=pause_s))
        return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    return with_pause


def stopped(model, folder, env=None, *, early=False):
    """Answer the prompt and stop the runner: its exit code, the cached tokens, the seconds of the stop, its stderr.

    `early`: the runner is stopped after the first token.
    """

    async def main():
        runner = await RunnerProcess.start("llama", str(model), env)
        store = {"cache_dir": str(folder), "cache_ram_bytes": 64 << 20, "cache_disk_bytes": 1 << 30}
        await runner.load(LoadSettings(path=str(model), n_threads=1, n_ctx=1024, **store))
        request = GenerationRequest(prompt=PROMPT, sampling=GREEDY, max_tokens=400 if early else 4, ignore_eos=True)
        async with aclosing(runner.generate(request)) as events:
            async for event in events:
                if isinstance(event, Started):
                    cached = event.cached_tokens
                if early and isinstance(event, Delta):
                    break
        began = time.monotonic()
        await runner.stop()
        return runner.died.exit_code, cached, time.monotonic() - began, runner.stderr_tail

    return asyncio.run(asyncio.wait_for(main(), 120))


def test_a_slow_disk_gets_the_time_to_store_what_was_computed(bundled_model, tmp_path, slow):
    code, _, seconds, told = stopped(bundled_model, tmp_path / "cache", slow(2.0))
    assert code == 0, told
    assert seconds > 3.0, "the disk was not slow"
    assert stopped(bundled_model, tmp_path / "cache")[1] >= 64


def test_a_disk_that_hangs_is_not_waited_for(bundled_model, tmp_path, slow, monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "DISK_S", 1.0)
    code, _, seconds, _ = stopped(bundled_model, tmp_path / "cache", slow(600))
    assert code == -signal.SIGKILL
    assert seconds < 60
    assert "bytes_not_stored=" in caplog.text


def test_what_was_read_for_an_unfinished_answer_is_stored_too(bundled_model, tmp_path):
    code, _, _, told = stopped(bundled_model, tmp_path / "cache", early=True)
    assert code == 0, told
    assert stopped(bundled_model, tmp_path / "cache")[1] >= 64


def asked(server):
    body = {"model": "spark", "prompt": PROMPT, "max_tokens": 1}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_server_with_a_slow_disk_finds_its_prefixes_after_a_restart(tmp_path, slow):
    server = RunningServer(tmp_path, env=slow(2.0))
    asked(server)
    server.stop()
    told = server.log
    server = RunningServer(tmp_path, env={})
    try:
        assert asked(server) > 64, told
    finally:
        server.stop()


def test_a_second_interrupt_does_not_wait_for_the_disk(tmp_path, slow):
    server = RunningServer(tmp_path, env=slow(600))
    asked(server)
    (runner,) = server.runners()
    server.process.send_signal(signal.SIGINT)
    wait_for(lambda: "storing prefixes" in server.log, what="the report of the runner")
    server.process.send_signal(signal.SIGINT)
    server.process.wait(60)
    assert not runner.is_running()
