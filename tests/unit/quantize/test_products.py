"""Products on several threads are those of one."""

import numpy as np
import pytest

from quantize.gptq.curvature import make_curvature
from quantize.gptq.products import cross, gram
from quantize.gptq.rows import craft_rows


@pytest.mark.parametrize("width", [7, 1024, 1501])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_are_those_of_numpy(width, threads):
    rng = np.random.default_rng(width)
    rows, other = rng.standard_normal((60, width), np.float32), rng.standard_normal((60, 33), np.float32)
    np.testing.assert_allclose(gram(rows), rows.T @ rows, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(cross(rows, other, threads), rows.T @ other, rtol=1e-4, atol=1e-4)


@pytest.mark.native
def test_rows_shared_out_among_threads_come_back_in_order():
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((2048, 256), np.float32)
    inputs = rng.standard_normal((600, 256), np.float32)
    curvature = make_curvature(inputs.T @ inputs / 600)
    alone = craft_rows(weights, ("Q4_K",), curvature, (1.0,))["Q4_K"]
    shared = craft_rows(weights, ("Q4_K",), curvature, (1.0,), threads=2)["Q4_K"]
    assert np.array_equal(alone.blocks, shared.blocks)
    assert np.array_equal(alone.errors, shared.errors)
