"""Sums of outer products equal numpy's."""

import numpy as np
import pytest

from quantize.gptq.hessian import add_gram, mirror


@pytest.mark.parametrize("width", [7, 1024, 1501])
def test_sums_of_outer_products_are_those_of_numpy(width):
    rows = np.random.default_rng(width).standard_normal((60, width), np.float32)
    sums = np.zeros((width, width), np.float32)
    for part in (rows[:20], rows[20:]):
        add_gram(sums, part)
    mirror(sums)
    np.testing.assert_allclose(sums, rows.T @ rows, rtol=1e-4, atol=1e-4)
