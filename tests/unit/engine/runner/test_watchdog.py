"""A runner counts as stuck by what it computes: starved ones continue, stopped and endless ones are ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from devices import child
from devices.child import StallDetector
from engine.runner import process, watchdog
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.runner.watchdog import Watchdog
from tests.support.servers import wait_for

stops = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")

# Says hello; then, depending on its arguments, computes for this much CPU time, with heartbeats or silently.
CHILD = """
import os, sys, threading, time
from engine.runner import protocol
from engine.runner.protocol import claim_stdio

how, seconds = sys.argv[1], float(sys.argv[2])
channel = claim_stdio()
started = time.monotonic()

def compute():
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def beat():
    while True:
        time.sleep(0.1)
        channel.send(protocol.Heartbeat(step_s=time.monotonic() - started))

channel.send(protocol.Hello(version=protocol.VERSION, engine="test", pid=os.getpid()))
if how in ("step", "asleep in a step"):
    threading.Thread(target=beat, daemon=True).start()
if how in ("told to end", "saving", "saving nothing"):
    while not isinstance(channel.receive(), protocol.Shutdown):
        pass
for second in range(int(seconds) if how.startswith("saving") else 0):
    channel.send(protocol.Saving(written_bytes=second * (how == "saving"), left_bytes=1))
    time.sleep(0.5)
if how.startswith("saving"):
    os._exit(0)
if how.startswith("asleep"):
    time.sleep(600)
compute()
os._exit(0)
"""


def spending(*readings):
    """Stall time over these readings of CPU time."""
    left = iter(readings)
    return StallDetector(0, lambda _pid: next(left))


@pytest.mark.parametrize(
    ("what", "readings", "threads", "verdicts"),
    [
        ("at work, nobody else there", (0, 200, 400, 590), 2, (False, False, False, False)),
        ("more than all its threads can", (0, 250, 500, 610), 2, (False, False, False, True)),
        ("starved", (0, 5, 10, 15), 2, (False, False, False, False)),
        ("as little as heartbeats take", (0, 0.05, 0.1, 0.15), 2, (False, False, False, True)),
        ("a step that stops in its middle", (0, 200, 200, 200), 2, (False, False, False, False)),
        ("one thread turns in a circle", (0, 100, 200, 302), 1, (False, False, False, True)),
        ("it may not be looked at", (None, None, None, None), 2, (False, False, False, True)),
    ],
)
def test_what_was_computed_decides_once_the_limit_is_over(what, readings, threads, verdicts):
    still = spending(*readings)
    found = tuple(still.over(waited, 300, threads) for waited in (2, 100, 200, 302))
    assert found == verdicts, what


def test_a_step_that_stops_in_its_middle_is_ended_once_nothing_was_computed_for_the_limit():
    still = spending(0, 200, 200, 200)
    assert [still.over(waited, 300, 2) for waited in (2, 100, 399, 401)] == [False, False, False, True]


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which threads wait for a CPU")
def test_a_process_that_gets_no_cpu_has_not_stalled_and_one_that_sleeps_has():
    """This process runs while it asks, so it wants a CPU, whatever its CPU time says."""
    ours = StallDetector(os.getpid(), lambda _pid: 0.0)
    assert [ours.over(waited, 300, stalled_s=2) for waited in (2, 301, 400)] == [False, False, False]
    assert ours.over(1801, 300, stalled_s=2, longest_s=1800), "not for ever"
    with subprocess.Popen(("sleep", "600")) as sleeper:
        try:
            wait_for(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_SLEEPING, 60, "its sleep")
            asleep = StallDetector(sleeper.pid, lambda _pid: 0.0)
            assert [asleep.over(waited, 300, stalled_s=2) for waited in (2, 301)] == [False, True]
        finally:
            sleeper.kill()


def test_a_new_wait_counts_anew():
    still = spending(0, 400, 401, 402)
    assert still.over(2, 300) is False
    assert still.over(302, 300) is True
    still.begin()
    assert still.over(2, 300) is False
    assert still.over(302, 300) is False


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({"n_threads": 4, "n_threads_batch": 8}, 8),
        ({"n_threads": 8, "devices": ("Vulkan0",), "n_gpu_layers": 20}, 1),
        ({"n_threads": 8, "devices": (), "n_gpu_layers": 0}, 8),
        ({"n_threads": 8, "provider": "OpenVINOExecutionProvider"}, 1),
    ],
)
def test_threads_that_count_are_those_that_compute(settings, threads):
    async def main():
        dog = Watchdog(0, lambda _reason: None, lambda _pid: 0.0)
        dog.loads(LoadSettings(path="x", **settings))
        dog.stop()
        return dog._threads

    assert asyncio.run(main()) == threads


async def starve(pid):
    """Let the process run a fifth of the time, until it ends."""
    child = psutil.Process(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        while child.status() != psutil.STATUS_ZOMBIE:
            child.suspend()
            await asyncio.sleep(0.4)
            child.resume()
            await asyncio.sleep(0.1)


def ended(monkeypatch, how, seconds, *, starved=False, stop=False):
    """How a child with this behaviour ends: its exit code, the reason, and the seconds until then."""
    child = (sys.executable, "-c", CHILD, how, str(seconds))
    monkeypatch.setattr(process, "runner_command", lambda _engine: child)

    async def main():
        runner = await RunnerProcess.start("test", "")
        begun = time.monotonic()
        starving = asyncio.create_task(starve(runner.pid)) if starved else None
        if stop:
            await runner.stop()
        await runner._exit_task
        if starving:
            starving.cancel()
        return runner.died.exit_code, runner.died, time.monotonic() - begun

    return asyncio.run(asyncio.wait_for(main(), 90))


@stops
@pytest.mark.process
@pytest.mark.parametrize(("how", "limit"), [("step", "STALL_S"), ("silent", "SILENCE_S")])
def test_a_starved_runner_that_computes_is_let_work(monkeypatch, how, limit):
    monkeypatch.setattr(watchdog, limit, 3.0)
    code, _, seconds = ended(monkeypatch, how, 2.0, starved=True)
    assert code == 0
    assert seconds > 4, "it was not starved, so the clock alone would have let it work too"


@pytest.mark.process
@pytest.mark.parametrize(("how", "limit"), [("step", "STALL_S"), ("silent", "SILENCE_S")])
def test_a_runner_that_computes_without_end_is_ended(monkeypatch, how, limit):
    monkeypatch.setattr(watchdog, limit, 1.5)
    code, died, seconds = ended(monkeypatch, how, 600.0)
    assert code != 0
    assert "stuck" in str(died)
    assert seconds > 1.5


@pytest.mark.process
@pytest.mark.parametrize(("how", "limit"), [("asleep in a step", "STALL_S"), ("asleep", "SILENCE_S")])
def test_a_runner_that_computes_nothing_is_ended(monkeypatch, how, limit):
    monkeypatch.setattr(watchdog, limit, 1.5)
    monkeypatch.setattr(child, "MIN_FRACTION", 0.2)  # ten heartbeats per second take more of such a short limit
    code, died, _ = ended(monkeypatch, how, 0.0)
    assert code != 0
    assert "stuck" in str(died)


@stops
@pytest.mark.process
def test_a_starved_runner_that_was_told_to_end_may_finish(monkeypatch):
    monkeypatch.setattr(process, "SHUTDOWN_S", 1.5)
    monkeypatch.setattr(watchdog, "PATIENCE", 30)  # a busy machine starves it further
    code, _, seconds = ended(monkeypatch, "told to end", 0.5, starved=True, stop=True)
    assert code == 0
    assert seconds > 1.5, "it was not starved"


@pytest.mark.process
@pytest.mark.parametrize(("how", "seconds"), [("asleep", 0.0), ("told to end", 600.0)])
def test_one_that_was_told_to_end_and_does_not_is_ended(monkeypatch, how, seconds):
    monkeypatch.setattr(process, "SHUTDOWN_S", 0.5)
    code, _, waited = ended(monkeypatch, how, seconds, stop=True)
    assert code != 0
    assert waited < 60


@pytest.mark.process
def test_one_that_stores_prefixes_may_go_on_while_its_disk_takes_bytes(monkeypatch):
    """It computes nothing for more than twice the limit."""
    monkeypatch.setattr(process, "SHUTDOWN_S", 2.0)
    code, _, seconds = ended(monkeypatch, "saving", 10, stop=True)
    assert code == 0
    assert seconds > 4.0


@pytest.mark.process
@pytest.mark.parametrize(("how", "limit"), [("saving nothing", "DISK_S"), ("saving", "SAVE_S")])
def test_one_whose_disk_takes_nothing_or_too_long_is_ended(monkeypatch, how, limit):
    monkeypatch.setattr(process, "SHUTDOWN_S", 0.5)
    monkeypatch.setattr(watchdog, limit, 1.0)
    code, _, _ = ended(monkeypatch, how, 60, stop=True)
    assert code != 0
