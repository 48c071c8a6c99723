"""Joules of requests, from a simulated computer whose meter is noisy: what each truly drew is known."""

import random

import pytest

from engine.energy.ledger import Active, JouleLedger
from engine.runner.generation.effort import EffortBook

IDLE_W, CORES = 8.0, 4
NOISE = 0.05


class Request:
    draft = ()

    def __init__(self, number, prompt, answer):
        self.id, self.prompt, self.answer = number, prompt, answer
        self.own_s = self.all_s = self.true_j = 0.0
        self.n_generated = 0

    @property
    def over(self):
        return self.prompt == 0 and self.n_generated == self.answer


class Computer:
    """Steps of a runner in small pieces of time; reading prompts draws more than writing. A sample a second."""

    def __init__(self, seed=1, noise=NOISE):
        self.random = random.Random(seed)
        self.noise = noise
        self.ledger, self.book = JouleLedger(), EffortBook()
        self.now, self.sampled, self.energy, self.cpu_s, self.other_s = 0.0, 0.0, 0.0, 0.0, 0.0
        self.running, self.joules, self.true_j = [], {}, {}

    def rest(self, seconds):
        for _ in range(int(seconds)):
            self._pass(1.0, 0.0, 0.0)

    def _pass(self, seconds, watts, own_cpu, other_w=0.0, other_cpu=0.0):
        self.now += seconds
        self.energy += (IDLE_W + watts + other_w) * seconds
        self.cpu_s += own_cpu
        self.other_s += other_cpu
        if self.now - self.sampled >= 1.0:
            took = self.now - self.sampled
            metered = self.energy / took * (1 + self.random.gauss(0, self.noise))
            active = Active("m", self.cpu_s, works=bool(self.cpu_s))
            busy = self.cpu_s + self.other_s
            self.ledger.interval(self.now, took, {"cpu": metered}, busy, CORES, {7: active})
            self.ledger.told(7, self.book.all_s, {r.id: r.own_s for r in self.running})
            self.sampled, self.energy, self.cpu_s, self.other_s = self.now, 0.0, 0.0, 0.0

    def step(self, other_w=0.0):
        rows = []
        for request in self.running:
            count = min(64, request.prompt) or 1
            weight = count if request.prompt else 3
            rows.append((request, count, weight))
        whole = sum(weight for *_, weight in rows)
        seconds = 0.02 + 0.002 * whole
        watts = 24.0 if any(r.prompt for r in self.running) else 15.0
        for request, _count, weight in rows:
            request.true_j += watts * seconds * weight / whole
        self.book.step(seconds, ((r, count) for r, count, _ in rows))
        for request, count, _ in rows:
            if request.prompt:
                request.prompt -= count
                request.n_generated = 0
            else:
                request.n_generated += 1
        other = seconds * (CORES / 2) if other_w else 0.0
        self._pass(seconds, watts, seconds * CORES / 2, other_w, other)
        for request in [r for r in self.running if r.over]:
            self.running.remove(request)
            told = self.ledger.finished(7, request.id, request.own_s, request.all_s, self.now)
            self.joules[request.id], self.true_j[request.id] = told, request.true_j

    def serve(self, arrivals, other_w=0.0):
        waiting = sorted(arrivals, key=lambda pair: pair[0])
        begun = self.now
        while waiting or self.running:
            while waiting and begun + waiting[0][0] <= self.now:
                self.running.append(waiting.pop(0)[1])
            if self.running:
                self.step(other_w)
            else:
                self._pass(0.05, 0.0, 0.0)


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
    # It uses as many cores as the runner does and draws as much.
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
