"""The thread governor on simulated machines, given by a time per step and the share of it that threads ran."""

from engine.runner.llama.batch.threads import BatchThreads, ThreadGovernor


class Machine:
    def __init__(self, most):
        self.governor = ThreadGovernor(most)
        self.now = 0.0
        self.counts = []

    def run(self, steps, cost):
        for i in range(steps):
            n = self.governor.threads
            self.counts.append(n)
            took, ran = cost(n, i)
            self.now += took
            self.governor.note(took, took * n * ran, self.now)


def quiet(n, i):
    return 0.010 / n * (1 + 0.05 * (i % 3)), 0.99


def contended(n, i):
    return (0.012, 0.95) if n == 1 else (0.300, 0.6)


def test_a_quiet_machine_keeps_all_threads():
    machine = Machine(4)
    machine.run(500, quiet)
    assert set(machine.counts) == {4}


def test_a_text_that_grows_is_no_other_program():
    machine = Machine(2)
    machine.run(50, quiet)
    machine.run(500, lambda n, i: (0.005 * (1 + i / 50), 0.98))
    assert set(machine.counts) == {2}


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
    machine.run(60, lambda n, i: (0.003, 0.98) if n == 4 else (0.2, 0.5) if n > 4 else (0.012 / n, 1.0))
    assert machine.governor.threads == 4


def test_one_core_has_no_choice():
    machine = Machine(1)
    machine.run(50, contended)
    assert set(machine.counts) == {1}


def test_a_width_that_is_new_takes_no_part_in_a_trial_of_another():
    threads = BatchThreads(2)
    threads.threads(1)
    for i in range(5):
        threads.note(1, 0.3, 0.3, threads.threads(1), now=float(i))
    assert threads.threads(1) == 1  # a trial with one thread has started
    assert threads.threads(24) == 2


def prompt_steps(threads, steps, cost, now=0.0):
    """The threads of each step of a long prompt; `cost`: threads to (seconds of a step, share that they ran)."""
    used = []
    for _ in range(steps):
        count = threads.threads(512)
        took, ran = cost(count)
        used.append(count)
        now += took
        threads.note(512, took, took * count * ran, count, now)
    return used


def test_a_prompt_on_a_busy_computer_takes_fewer_threads_where_these_are_faster():
    """The first step shows that the threads wait, the next is the trial; more threads are tried after a pause."""
    threads = BatchThreads(2)
    used = prompt_steps(threads, 8, lambda n: (1.0, 0.9) if n == 1 else (3.0, 0.5))
    assert used[:2] == [2, 1]
    assert used.count(2) <= 2


def test_a_prompt_keeps_all_threads_where_one_would_be_slower():
    threads = BatchThreads(2)
    used = prompt_steps(threads, 40, lambda n: (3.0, 0.9) if n == 1 else (2.0, 0.6))
    assert used.count(1) <= 8
    assert threads.is_starved


def test_a_step_with_a_fixed_number_of_threads_teaches_nothing_of_another():
    threads = BatchThreads(2)
    prompt_steps(threads, 4, lambda n: (1.0, 0.9) if n == 1 else (3.0, 0.5))
    assert threads.threads(512) == 1
    threads.note(512, 9.0, 9.0, 2, now=100.0)
    assert threads.threads(512) == 1


def test_a_busy_computer_is_presumed_before_the_first_step():
    """Otherwise the first prompt after a pause would take ten times as long; all threads return when it is idle."""
    threads = BatchThreads(2)
    threads.presume_busy(0.0)
    used = prompt_steps(threads, 8, lambda n: (1.0 / n, 0.98))
    assert used[0] == 1
    assert used[-1] == 2
