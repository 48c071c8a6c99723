"""Joules of requests on a simulated computer with a noisy meter: the energy that each really used is known."""

import pytest

from engine.energy.energy_accounting import Active, JouleLedger
from tests.support.machines.simulated_computer import CORES, IDLE_W, Computer, Request


def several():
    return [
        (0.0, Request(1, 2000, 300)),
        (0.5, Request(2, 100, 500)),
        (3.0, Request(3, 4000, 100)),
        (4.0, Request(4, 10, 900)),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_several_at_once_get_what_they_drew_within_a_tenth(seed):
    computer = Computer(seed)
    computer.rest(30)
    computer.serve(several())
    assert computer.joules.keys() == {1, 2, 3, 4}
    for number, told in computer.joules.items():
        assert told == pytest.approx(computer.true_j[number], rel=0.10), number
    assert sum(computer.joules.values()) == pytest.approx(sum(computer.true_j.values()), rel=0.05)


def test_idle_power_is_nobodys():
    computer = Computer(noise=0.0)
    computer.rest(10)
    assert computer.ledger.idle_w("cpu") == pytest.approx(IDLE_W)
    computer.serve([(0.0, Request(1, 640, 200))])
    whole = computer.now - 10
    assert computer.joules[1] < (IDLE_W + 24) * whole - 0.9 * IDLE_W * whole


def test_another_program_pays_for_its_half():
    computer = Computer(noise=0.0)
    computer.rest(10)
    # It uses as many cores and as much power as the runner.
    computer.serve([(0.0, Request(1, 0, 400))], other_w=15.0)
    assert computer.joules[1] == pytest.approx(computer.true_j[1], rel=0.10)


def test_a_request_shorter_than_the_time_between_two_looks():
    computer = Computer(noise=0.0)
    computer.rest(10)
    computer.serve([(0.0, Request(1, 0, 200))])
    computer.serve([(0.0, Request(2, 0, 10))])
    assert computer.joules[2] == pytest.approx(computer.true_j[2], rel=0.10)


def test_cards_are_shared_by_those_who_use_them_and_the_whole_is_not_counted_beside_its_parts():
    ledger = JouleLedger()
    parts = {"cpu": 10.0, "gpu0": 20.0, "system": 60.0}
    for at in range(5):
        ledger.interval(at, 1.0, parts, 0.0, CORES, {})
    active = {1: Active("a", 1.0, frozenset({"gpu0"})), 2: Active("b", 3.0, frozenset({"gpu0"}))}
    ledger.interval(6, 1.0, {"cpu": 30.0, "gpu0": 120.0, "system": 190.0}, 4.0, CORES, active)
    assert ledger.finished(1, 9, 1.0, 1.0, 6) == pytest.approx(5 + 50)
    assert ledger.finished(2, 9, 1.0, 1.0, 6) == pytest.approx(15 + 50)


def test_without_a_meter_nothing_is_told():
    ledger = JouleLedger()
    ledger.interval(1.0, 1.0, {}, 1.0, CORES, {1: Active("m", 1.0)})
    assert ledger.finished(1, 1, 1.0, 1.0, 1.0) is None
    assert not ledger.measured


def test_tokens_per_joule_of_a_model():
    ledger = JouleLedger()
    assert ledger.tally("m").tokens_per_joule is None
    ledger.count("m", 10.0, 50)
    ledger.count("m", 30.0, 30)
    assert ledger.tally("m").tokens_per_joule == 2.0
