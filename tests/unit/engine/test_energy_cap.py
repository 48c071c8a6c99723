"""A limit in watts on a simulated computer with a noisy, late meter: excess, delay and lost speed."""

import random
import statistics

import pytest

from engine.energy.power_cap import LEAST_DUTY, CapController

IDLE_W, THREAD_W, UNCORE_W = 8.0, 6.0, 3.0


class Computer:
    """Steps use UNCORE_W and THREAD_W per thread; the meter shows it after a lag of `late_s`, with noise."""

    def __init__(self, cap_w, threads=8, seed=0, noise=0.05, late_s=0.5):
        self.controller = CapController(cap_w, threads)
        self.random, self.noise, self.late_s = random.Random(seed), noise, late_s
        self.seen_w = IDLE_W
        self.others_w = 0.0
        self.true_w, self.work = [], []

    def second(self, *, works=True):
        pace = self.controller.pace
        duty = pace.duty if works else 0.0
        true = IDLE_W + self.others_w + duty * (UNCORE_W + THREAD_W * pace.threads)
        self.seen_w += (true - self.seen_w) * min(1.0, 1.0 / max(self.late_s, 1.0))
        self.controller.look(1.0, self.seen_w * (1 + self.random.gauss(0, self.noise)), duty)
        self.true_w.append(true)
        self.work.append(duty * pace.threads)

    def run(self, seconds, **given):
        for _ in range(seconds):
            self.second(**given)


@pytest.mark.parametrize("late_s", [0.5, 2.0])
@pytest.mark.parametrize("cap_w", [20.0, 30.0, 45.0])
@pytest.mark.parametrize("seed", range(4))
def test_power_comes_under_the_cap_soon_and_stays_there(cap_w, seed, late_s):
    computer = Computer(cap_w, seed=seed, late_s=late_s)
    computer.run(5, works=False)
    begun = len(computer.true_w)
    computer.run(60)
    power = computer.true_w[begun:]
    # The first readings must show the power of a step; then:
    settling = next(s for s in range(60) if all(w <= 1.1 * cap_w for w in power[s : s + 5]))
    assert settling <= 6
    overshoot = max(statistics.fmean(power[s : s + 3]) for s in range(8, 58)) / cap_w
    assert overshoot <= (1.1 if late_s < 1 else 1.15)
    assert statistics.fmean(power[20:]) <= 1.03 * cap_w
    assert statistics.fmean(power[20:]) >= 0.85 * cap_w, "work was held back for nothing"


def test_fewer_threads_before_long_rests():
    computer = Computer(20.0, noise=0.0)
    computer.run(5, works=False)
    computer.run(40)
    assert computer.controller.pace.threads <= 2
    assert computer.controller.pace.duty > 0.5


def test_another_programs_power_makes_room_and_takes_it():
    computer = Computer(45.0, noise=0.02)
    computer.run(5, works=False)
    computer.run(30)
    free = statistics.fmean(computer.work[-10:])
    computer.others_w = 15.0
    computer.run(30)
    assert statistics.fmean(computer.true_w[-15:]) <= 1.05 * 45.0
    assert statistics.fmean(computer.work[-10:]) < 0.8 * free
    computer.others_w = 0.0
    computer.run(40)
    assert statistics.fmean(computer.work[-10:]) > 0.85 * free


def test_a_cap_above_everything_holds_nothing_back():
    computer = Computer(200.0)
    computer.run(5, works=False)
    computer.run(20)
    assert (computer.controller.pace.threads, computer.controller.pace.duty) == (8, 1.0)


def test_a_cap_below_what_the_computer_draws_at_rest_leaves_a_trickle():
    computer = Computer(5.0, noise=0.0)
    computer.run(5, works=False)
    computer.run(30)
    assert (computer.controller.pace.threads, computer.controller.pace.duty) == (1, LEAST_DUTY)
