"""The solver compared with an exhaustive search."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.plan.plan import solve
from tests.support.examples import examples

item = st.lists(
    st.tuples(st.integers(1, 60), st.floats(0, 1, allow_subnormal=False) | st.sampled_from([0.0, 0.25, 0.5])),
    min_size=1,
    max_size=4,
).map(lambda rows: ([b for b, _ in rows], [c for _, c in rows]))


def brute_force(items, capacity):
    combos = itertools.product(*[range(len(sizes)) for sizes, _ in items])
    fitting = (
        sum(costs[k] for k, (_, costs) in zip(combo, items, strict=True))
        for combo in combos
        if sum(sizes[k] for k, (sizes, _) in zip(combo, items, strict=True)) <= capacity
    )
    return min(fitting, default=None)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(item, min_size=1, max_size=6), st.integers(1, 240))
def test_finds_the_least_cost(items, capacity):
    found, best = solve(items, capacity), brute_force(items, capacity)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.num_bytes <= capacity
    assert abs(found.cost - best) <= 1e-9
    assert found.gap == 0
    assert len(found.options) == len(items)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(item, min_size=1, max_size=20), st.integers(1, 600), st.integers(0, 200))
def test_more_room_never_costs_more(items, capacity, more):
    small, large = solve(items, capacity), solve(items, capacity + more)
    if small is not None:
        assert large is not None
        assert large.cost <= small.cost + 1e-9


def test_an_8b_shape_is_solved_in_a_fraction_of_a_second():
    rng = np.random.default_rng(0)
    bytes_of = [84, 98, 110, 136, 144, 176, 210, 272, 512]
    error_of = [0.09, 0.045, 0.03, 0.0075, 0.0065, 0.0018, 0.0005, 3e-5, 0.0]
    items = []
    for _ in range(36):
        for rows, cols in [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), *[(12288, 4096)] * 3]:
            alpha = 0.02 * np.exp(rng.standard_normal())
            costs = [float(alpha * e * np.exp(0.1 * rng.standard_normal())) for e in error_of]
            items.append(([rows * cols // 256 * b for b in bytes_of], costs))
    started = time.thread_time()
    found = solve(items, 4_000_000_000)
    # Usually 0.03 s; the limit only detects a search that explodes.
    assert time.thread_time() - started < 5
    assert found is not None
    assert found.gap == 0
    assert 0.999 < found.num_bytes / 4_000_000_000 <= 1
