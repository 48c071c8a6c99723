"""The governor on machines that are simulated as a time per step for each number of threads."""

from engine.runner.llama.threads import ThreadGovernor


class Machine:
    def __init__(self, most):
        self.governor = ThreadGovernor(most)
        self.now = 0.0
        self.counts = []

    def run(self, steps, cost):
        for i in range(steps):
            n = self.governor.threads
            self.counts.append(n)
            took = cost(n, i)
            self.now += took
            self.governor.note(took, self.now)


def quiet(n, i):
    return 0.010 / n * (1 + 0.05 * (i % 3))


def contended(n, i):
    return 0.012 if n == 1 else 0.300


def test_a_quiet_machine_keeps_all_threads():
    machine = Machine(4)
    machine.run(500, quiet)
    assert set(machine.counts) == {4}


def test_a_taken_core_is_noticed_within_a_few_steps():
    machine = Machine(2)
    machine.run(50, quiet)
    machine.run(40, contended)
    assert machine.counts[-20:].count(1) >= 18
    assert machine.counts[50:].count(2) <= 8


def test_threads_come_back_when_the_machine_is_quiet_again():
    machine = Machine(2)
    machine.run(50, quiet)
    machine.run(200, contended)
    machine.run(4000, quiet)
    assert machine.governor.threads == 2


def test_retrying_a_busy_machine_becomes_rare():
    machine = Machine(2)
    machine.run(50, quiet)
    machine.run(3000, contended)
    assert machine.counts[-1000:].count(2) <= 4


def test_with_many_cores_it_halves():
    machine = Machine(8)
    machine.run(50, quiet)
    machine.run(60, lambda n, i: 0.003 if n == 4 else 0.2 if n > 4 else 0.012 / n)
    assert machine.governor.threads == 4


def test_one_core_has_no_choice():
    machine = Machine(1)
    machine.run(50, contended)
    assert set(machine.counts) == {1}
