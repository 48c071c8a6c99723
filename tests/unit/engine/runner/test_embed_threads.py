"""Embedding uses fewer threads while other programs use the cores, and more again when those have ended."""

from types import SimpleNamespace

import pytest

from engine.runner.llama.batch.embed import Embedder
from engine.runner.llama.batch.threads import ThreadGovernor

ROWS = 256


def embedder(set_to):
    made = object.__new__(Embedder)
    api = SimpleNamespace(llama_set_n_threads=lambda _context, *counts: set_to.append(counts))
    made._loaded, made._context, made._governor = SimpleNamespace(api=api), "context", ThreadGovernor(2)
    api.llama_synchronize = lambda _context: None
    return made


def steps(made, now, count, seconds, share, rows=ROWS):
    """Decodes that take `seconds[threads]`, whose threads ran this share of the time; returns the final time."""
    for _ in range(count):
        threads = made._governor.threads
        now += seconds[threads]
        made._note_step(rows, seconds[threads], share[threads] * threads * seconds[threads], now)
    return now


def test_a_busy_machine_gets_one_thread_and_a_quiet_one_all():
    set_to = []
    made = embedder(set_to)
    now = steps(made, 0.0, 12, {1: 0.1, 2: 1.0}, {1: 0.9, 2: 0.3})
    assert set_to[0] == (1, 1)
    assert made._governor.settled == 1
    steps(made, now + 60.0, 12, {1: 0.1, 2: 0.05}, {1: 1.0, 2: 1.0})
    assert set_to[-1] == (2, 2)
    assert made._governor.settled == 2


def test_a_small_model_begins_with_one_thread_and_tries_all_at_once():
    set_to = []
    made = embedder(set_to)
    made._governor.threads = 1  # as a small model's load leaves it
    now = steps(made, 0.0, 1, {1: 0.1, 2: 0.5}, {1: 0.9, 2: 0.5})
    assert set_to == [(2, 2)]
    steps(made, now, 1, {1: 0.1, 2: 0.5}, {1: 0.9, 2: 0.5})
    assert set_to == [(2, 2), (1, 1)]  # one slow step is enough to know
    quiet = embedder([])
    quiet._governor.threads = 1
    steps(quiet, 0.0, 6, {1: 0.1, 2: 0.05}, {1: 1.0, 2: 1.0})
    assert quiet._governor.settled == 2


def test_a_short_question_is_no_measure():
    set_to = []
    steps(embedder(set_to), 0.0, 40, {1: 0.1, 2: 1.0}, {1: 0.9, 2: 0.3}, rows=8)
    assert not set_to


@pytest.mark.parametrize(("small", "rows", "while_decoding"), [(True, 8, 1), (True, ROWS, 2), (False, 8, 2)])
def test_a_question_to_a_small_model_is_read_by_one_thread(small, rows, while_decoding):
    set_to, seen = [(2, 2)], []
    made = embedder(set_to)
    made._small = small
    made._note_step = lambda *_step: None  # a decode without duration gives no measurement
    made._batch = SimpleNamespace(size=rows, decode=lambda: seen.append(set_to[-1][0]) or 0)
    made._run()
    assert seen == [while_decoding]
    assert set_to[-1] == (2, 2)
