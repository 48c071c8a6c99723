"""Hessians of groups that fit into memory, and the difference between predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantize.files.measurement_folder import SharedInputGroup
from quantize.measure.hessians import partition
from quantize.measure.kl_divergence import compare, kld_from, log_softmax
from quantize.measure.verify import bootstrap


def group(name, width, experts=1):
    return SharedInputGroup(name=name, members=(name,), width=width, experts=experts)


@given(st.lists(st.integers(1, 64), max_size=30), st.integers(1, 100_000))
def test_subsets_hold_every_group_once_in_order_and_fit_the_memory(widths, memory):
    groups = [group(str(i), width) for i, width in enumerate(widths)]

    subsets = partition(groups, memory)

    assert [g for s in subsets for g in s] == groups
    for subset in subsets:
        assert len(subset) == 1 or sum(g.moment_bytes for g in subset) <= memory


def test_experts_count_towards_the_memory():
    assert group("a", 2048, experts=128).moment_bytes == 128 * 2048 * 2048 * 4


@pytest.fixture(scope="module")
def logits():
    rng = np.random.default_rng(2)
    return [rng.standard_normal((50, 300)).astype(np.float32) * 4 for _ in range(2)]


def test_divergence_is_the_textbook_sum(logits):
    reference, other = (x.astype(np.float64) for x in logits)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (reference, other))
    following = np.arange(50, dtype=np.int32)

    found = compare(*logits, following)

    assert found.kld == pytest.approx((p * np.log(p / q)).sum(axis=1), rel=1e-5)
    assert kld_from(log_softmax(logits[0]), logits[1]) == pytest.approx(found.kld, rel=1e-4)
    assert found.nll == pytest.approx(-np.log(q[np.arange(50), following]), rel=1e-5)
    assert (found.same_top == (p.argmax(axis=1) == q.argmax(axis=1))).all()


def test_divergence_from_oneself_is_nothing_even_with_huge_logits():
    logits = np.array([[1e4, 0, -1e4], [80, 79, 78]], np.float32)

    found = compare(logits, logits)

    assert found.kld == pytest.approx([0, 0], abs=1e-9)
    assert found.same_top.all()


def test_intervals_hold_the_value_and_do_not_change_between_runs():
    means = list(np.random.default_rng(0).random(40))

    interval = bootstrap(means)

    assert interval.low < interval.value < interval.high
    assert interval.value == pytest.approx(np.mean(means))
    assert interval == bootstrap(means)
    # The classical interval of a mean, which resampling must approximate.
    half = 1.96 * np.std(means) / np.sqrt(len(means))
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.15)
