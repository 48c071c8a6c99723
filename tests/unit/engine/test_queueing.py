"""The simulation for docs/dev/scaling.md, compared with exact results of queueing theory."""

import math
import statistics

import pytest

from tests.bench.queueing import Load, Speed, cost, simulate


def repairmen(users, think_s, service_s):
    """Responses per second of a server with one request at a time (machine repairman, exponential times)."""
    ratio = service_s / think_s
    terms = [math.factorial(users) / math.factorial(users - n) * ratio**n for n in range(users + 1)]
    return (1 - terms[0] / sum(terms)) / service_s


@pytest.mark.parametrize(("users", "think_s"), [(1, 5.0), (4, 5.0), (12, 5.0), (40, 20.0)])
def test_one_slot_is_the_machine_repairman(users, think_s):
    found = simulate(Load(users, think_s, 100.0), Speed({1: 100.0}), slots=1, answers=30_000)
    rate = len(found.answers) / found.seconds
    assert rate == pytest.approx(repairmen(users, think_s, 1.01), rel=0.03)
    # Little's law: users = rate * (thinking + waiting for the answer).
    assert users == pytest.approx(rate * (think_s + statistics.mean(found.answers)), rel=0.03)


def test_slots_enough_for_all_wait_for_nobody():
    found = simulate(Load(8, 1.0, 50.0, fixed=True), Speed({1: 10.0, 8: 80.0}), slots=8)
    assert max(found.waits) == 0
    assert statistics.mean(found.answers) == pytest.approx(5.0, rel=0.01)


def test_more_servers_answer_sooner():
    one = simulate(Load(40, 5.0, 100.0), Speed({1: 30.0, 8: 100.0}), slots=8, servers=1)
    four = simulate(Load(40, 5.0, 100.0), Speed({1: 30.0, 8: 100.0}), slots=8, servers=4)
    assert statistics.mean(four.answers) < statistics.mean(one.answers) / 2


def test_speeds_between_the_measured_ones():
    speed = Speed({2: 20.0, 4: 30.0})
    assert [speed(n) for n in (1, 2, 3, 4, 9)] == [10.0, 20.0, 25.0, 30.0, 30.0]


def test_cost_by_hand():
    # 100 tok/s: a million take 2.78 h; 200 W at .30 cost .167; 4,383 of money over one year half used 1.00 an hour.
    assert cost(200, 0.30, 4383, 1, 100, 0.5) == pytest.approx(2.7778 * (0.06 + 1.0), rel=1e-3)
