"""Simulates a computer with a noisy meter; the true energy of each request is known."""

import random

from engine.energy.energy_accounting import Active, JouleLedger
from engine.runner.generation.step_accounting import StepTimes

IDLE_W, CORES = 8.0, 4
NOISE = 0.05
SPEED_POWER = 0.8


class Request:
    draft = ()

    def __init__(self, number, prompt, answer):
        self.id, self.prompt, self.answer = number, prompt, answer
        self.own_s = self.all_s = self.true_j = 0.0
        self.n_generated = 0
        self.read_at = 0.0

    @property
    def over(self):
        return self.prompt == 0 and self.n_generated == self.answer


class Computer:
    """Simulates a runner's steps in small time slices; prefill draws more power than decoding. One sample per s.

    With a number of `threads` other than two of the four cores, speed is proportional to threads ** SPEED_POWER and
    power to threads ** `watts_power`.
    """

    threads = CORES / 2

    def __init__(self, seed=1, noise=NOISE, watts_power=1.4):
        self.watts_power = watts_power
        self.random = random.Random(seed)
        self.noise = noise
        self.ledger, self.step_times = JouleLedger(), StepTimes()
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
            self.ledger.add_step_times(7, self.step_times.all_s, {r.id: r.own_s for r in self.running})
            self.sampled, self.energy, self.cpu_s, self.other_s = self.now, 0.0, 0.0, 0.0

    def step(self, other_w=0.0):
        rows = []
        for request in self.running:
            count = min(64, request.prompt) or 1
            weight = count if request.prompt else 3
            rows.append((request, count, weight))
        whole = sum(weight for *_, weight in rows)
        share = self.threads / (CORES / 2)
        seconds = (0.02 + 0.002 * whole) / share**SPEED_POWER
        watts = (24.0 if any(r.prompt for r in self.running) else 15.0) * share**self.watts_power
        for request, _count, weight in rows:
            request.true_j += watts * seconds * weight / whole
        self.step_times.step(seconds, ((r, count) for r, count, _ in rows))
        for request, count, _ in rows:
            if request.prompt:
                request.prompt -= count
                request.n_generated = 0
                request.read_at = self.now + seconds
            else:
                request.n_generated += 1
        other = seconds * (CORES / 2) if other_w else 0.0
        self._pass(seconds, watts, seconds * self.threads, other_w, other)
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
