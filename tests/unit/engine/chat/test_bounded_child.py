"""A child's work is limited by what it computes, not by how long the machine makes it wait."""

import os
import signal
import sys
import threading
import time

import pytest

from devices import child as limited_child
from devices.child import BoundedChild, ChildFailed
from engine.chat.render_protocol import RenderJob, decode_answer, encode
from engine.chat.template import MEMORY_LIMIT_BYTES
from engine.chat.types import ChatTemplate, Message
from tests.support.unhindered import Stopwatch

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be stopped there"),
]
LIMIT_S = 1.0
ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"
# Writes nothing, so that the time limit ends it, not the memory limit.
SILENT = ENDLESS.replace("{{ a }}", "{% if a < 0 %}x{% endif %}")


@pytest.fixture
def child():
    made = BoundedChild("engine.chat.render_child", timeout_s=LIMIT_S, memory_bytes=MEMORY_LIMIT_BYTES)
    made.warm()
    yield made
    made.close()


def job(source):
    hello = (Message(role="user", content="Hi"),)
    return encode(RenderJob(template=ChatTemplate(source=source), messages=hello))


def test_a_child_that_gets_no_turn_is_waited_for(child):
    """Stopped by the system for twice its limit, as if a dozen other programs were running."""
    assert child.ask_blocking(job("{{ 1 }}"))
    os.kill(child.pid, signal.SIGSTOP)
    timer = threading.Timer(LIMIT_S * 2, os.kill, (child.pid, signal.SIGCONT))
    timer.start()
    assert decode_answer(child.ask_blocking(job("{{ messages[0].content }}!"))).rendered.prompt == "Hi!"
    timer.join()
    assert child.restarts == 0


def test_patience_ends(child):
    assert child.ask_blocking(job("{{ 1 }}"))
    os.kill(child.pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(ChildFailed) as caught:
        child.ask_blocking(job("{{ 1 }}"))
    assert caught.value.timed_out
    assert time.monotonic() - started >= LIMIT_S * 5


def test_a_child_that_computes_nothing_is_not_waiting_for_its_turn(child, monkeypatch):
    monkeypatch.setattr(limited_child, "_STALLED_S", LIMIT_S * 1.5)
    assert child.ask_blocking(job("{{ 1 }}"))
    os.kill(child.pid, signal.SIGSTOP)
    started = Stopwatch()
    with pytest.raises(ChildFailed) as caught:
        child.ask_blocking(job("{{ 1 }}"))
    assert caught.value.timed_out
    assert started.seconds() < LIMIT_S * 4


def test_a_child_that_computes_without_an_end_is_stopped(child):
    with pytest.raises(ChildFailed) as caught:
        child.ask_blocking(job(ENDLESS))
    assert caught.value.timed_out


@pytest.mark.parametrize("restored_after_s", [LIMIT_S * 2, LIMIT_S * 8])
def test_the_limit_holds_in_a_moment_without_descriptors(child, restored_after_s):
    """If its CPU time cannot be read, the watchdog continues with the clock."""
    resource = pytest.importorskip("resource")
    assert child.ask_blocking(job("{{ 1 }}"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    timer = threading.Timer(restored_after_s, resource.setrlimit, (resource.RLIMIT_NOFILE, before))
    timer.start()
    try:
        with pytest.raises(ChildFailed) as caught:
            child.ask_blocking(job(SILENT))
    finally:
        timer.join()
    assert caught.value.timed_out
