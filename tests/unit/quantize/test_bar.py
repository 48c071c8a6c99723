"""One progress bar for a whole job: it follows the forecast, never goes back and adapts to the measured pace."""

import pytest

from quantize.job import phases as bar_module
from quantize.job.phases import JobProgress
from quantize.measurements import Progress

PHASES = {"hash": 10.0, "measure": 100.0, "round": 50.0, "write": 10.0, "verify": 30.0}


def at(phase, done=0.0, total=1.0):
    return Progress(phase=phase, done=done, total=total)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bar_module.time, "monotonic", lambda: now[0])
    return now


def test_phases_count_by_the_time_they_should_take(clock):
    seen = []
    bar = JobProgress(seen.append)
    bar(Progress(phase="convert", done=1.0, total=4.0, left_s=3.0))
    assert (seen[-1].share, seen[-1].left_s) == (None, None)  # nothing is known about the model yet
    bar.expect(PHASES)
    for phase, done, share in [
        ("hash", 1.0, 0.05), ("survey", 0.0, 0.05), ("alpha", 1.0, 0.55), ("plan", 0.0, 0.55),
        ("round", 0.5, 0.675), ("write", 1.0, 0.85), ("verify", 1.0, 1.0),
    ]:  # fmt: skip
        bar(at(phase, done))
        assert seen[-1].share == pytest.approx(share), phase
    bar(at("write", 0.0))  # llama.cpp's preset is written after Tessera's file
    assert seen[-1].share == 1.0
    assert seen[-1].left_s == pytest.approx(0.0)


@pytest.mark.parametrize("slower", [0.5, 1.0, 4.0])
def test_the_time_left_follows_the_pace(clock, slower):
    seen = []
    bar = JobProgress(seen.append)
    bar.expect(PHASES)
    bar(at("hash"))
    assert seen[-1].left_s == pytest.approx(200.0)
    clock[0] = slower * 110.0
    bar(at("round", 0.0))
    assert seen[-1].left_s == pytest.approx(90.0 * slower, rel=0.2)
