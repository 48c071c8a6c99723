"""The positions of checkpoints, and that a stored state contains them."""

import numpy as np
import pytest

from engine.runner.llama.cache.checkpoints import (
    BEFORE_END,
    SHORTEST,
    SPACING,
    Checkpoint,
    checkpoint_lengths,
    within,
)
from engine.runner.llama.cache.prefix_store import PrefixStore


@pytest.mark.parametrize(
    ("n_prompt", "n_cached", "branch", "expected"),
    [
        (1000, 0, 0, [1000 - BEFORE_END - 512, 1000 - BEFORE_END]),
        (1000, 0, 300, [300, 1000 - BEFORE_END - 512, 1000 - BEFORE_END]),
        (1000, 700, 300, [1000 - BEFORE_END]),
        (1000, 995, 300, [995]),
        (60, 0, 30, []),
        (SHORTEST + BEFORE_END, 0, 0, [SHORTEST]),
        (1, 0, 0, []),
    ],
)
def test_checkpoint_lengths(n_prompt, n_cached, branch, expected):
    assert checkpoint_lengths(n_prompt, n_cached, branch, 512) == expected


def test_a_long_prompt_has_checkpoints_inside():
    found = checkpoint_lengths(3 * SPACING, 0, 0, 512)
    assert {SPACING, 2 * SPACING} < set(found)
    assert found == sorted(found)


def test_the_last_one_before_a_length_is_taken():
    saved = [Checkpoint(n, np.zeros(1, np.uint8)) for n in (100, 200, 300)]
    assert within(saved, 250) is saved[1]
    assert within(saved, 200) is saved[1]
    assert within(saved, 99) is None


def test_a_stored_state_keeps_its_marks_over_a_restart(tmp_path):
    tokens = np.arange(300, dtype=np.int32)
    state, early, late = (np.full(n, n % 251, np.uint8) for n in (500, 40, 60))
    store = PrefixStore(10_000, 100_000, tmp_path, "f")
    store.put((), tokens, state, [(100, early), (280, late)])
    store.persist()
    store.close()
    again = PrefixStore(10_000, 100_000, tmp_path, "f")
    other = np.concatenate([tokens[:290], np.full(50, 7, np.int32)])
    entry, length = again.best(other, (), whole_only=True)
    assert length == 280
    data = again.load(entry)
    assert np.array_equal(data[: entry.state_bytes], state)
    assert np.array_equal(entry.mark(data, 280), late)
    assert np.array_equal(entry.mark(data, 100), early)
    assert entry.mark(data, 99) is None
    assert again.best(other, (), whole_only=False)[1] == 290


def test_a_longer_state_without_marks_does_not_stand_for_a_shorter_one():
    store = PrefixStore(10_000, 0, None, "f")
    tokens = np.arange(300, dtype=np.int32)
    store.put((), tokens, np.zeros(100, np.uint8))
    assert store.covers(tokens[:200], (), whole_only=False)
    assert not store.covers(tokens[:200], (), whole_only=True)
    assert not store.holds(tokens[:200], (), whole_only=True)
    store.put((), tokens[:200], np.zeros(90, np.uint8), whole_only=True)
    assert store.covers(tokens[:200], (), whole_only=True)
