"""The parts of a request's time: each part once, tools between two requests, and nothing below zero."""

import pytest

from engine.core import request_timing
from engine.core.request_timing import MAX_ENTRIES, MOST_CALLS, Clock, TimeLog
from engine.core.types import Timings


@pytest.fixture
def now(monkeypatch):
    clock = {"now": 100.0}
    monkeypatch.setattr(request_timing.time, "monotonic", lambda: clock["now"])
    return clock


def test_the_parts_add_up(now):
    clock = Clock("req_1")
    clock.load_s, clock.network_s = 2.0, 0.5
    clock.generated("m", Timings(queue_s=0.25, prefill_s=1.0, decode_s=4.0))
    now["now"] += 8.0
    spent = TimeLog().add(clock, "/v1/chat/completions")
    parts = spent.load_s + spent.queue_s + spent.prefill_s + spent.decode_s + spent.network_s + spent.other_s
    assert parts == pytest.approx(spent.total_s) == 8.0
    assert spent.other_s == pytest.approx(0.25)


def test_sending_while_decoding_is_not_counted_twice(now):
    clock = Clock("req_1")
    clock.network_s = 3.0
    clock.generated("m", Timings(decode_s=4.0))
    now["now"] += 4.5
    spent = TimeLog().add(clock, "/")
    assert spent.network_s == 0.5
    assert spent.other_s == 0.0


def test_choices_that_ran_at_once_count_as_the_longest(now):
    clock = Clock("req_1")
    clock.generated("m", Timings(prefill_s=1.0, decode_s=2.0))
    clock.generated("m", Timings(prefill_s=0.5, decode_s=3.0))
    assert (clock.prefill_s, clock.decode_s) == (1.0, 3.0)


def test_tools_are_the_time_between_the_call_and_its_result(now):
    log = TimeLog()
    first = Clock("req_1")
    first.called = ["a", "b"]
    log.add(first, "/")
    now["now"] += 7.0
    second = Clock("req_2")
    second.results = ["older", "a", "b"]
    now["now"] += 1.0
    assert log.add(second, "/").tools_s == 7.0
    third = Clock("req_3")
    third.results = ["a", "b"]  # the history is sent again with every request
    assert log.add(third, "/").tools_s == 0.0


def test_a_result_after_hours_is_not_a_tool_that_ran_for_hours(now):
    log = TimeLog()
    first = Clock("req_1")
    first.called = ["a"]
    log.add(first, "/")
    now["now"] += 10_000.0
    second = Clock("req_2")
    second.results = ["a"]
    assert log.add(second, "/").tools_s == 0.0


def test_memory_is_bounded(now):
    log = TimeLog()
    for i in range(MAX_ENTRIES + 50):
        clock = Clock(f"req_{i}")
        clock.called = [f"call_{i}_{k}" for k in range(20)]
        log.add(clock, "/")
    assert len(log.newest()) == MAX_ENTRIES
    assert log.newest()[0].id == f"req_{MAX_ENTRIES + 49}"
    assert len(log._started_at) == MOST_CALLS
