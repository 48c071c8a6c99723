"""The error of rounding a product's inputs to 8 bits: the prediction from the peaks of blocks, and the real one."""

import numpy as np
import pytest

from quantize.files.measurement_folder import SharedInputGroup
from quantize.measure.hessians import PEAK_BLOCKS, HessianAccumulator
from quantize.measure.rounding_error import filled, input_error
from quantize.native.blocks import dequantize_rows, quantize_rows

WIDTH, TOKENS = 512, 400


def in_8_bits(inputs, block):
    if block == 32:
        return dequantize_rows(quantize_rows(inputs, "Q8_0", None), "Q8_0", WIDTH)
    blocks = inputs.reshape(len(inputs), -1, block)
    step = np.abs(blocks).max(axis=2, keepdims=True) / 127
    return (np.rint(blocks / step) * step).reshape(inputs.shape).astype(np.float32)


@pytest.fixture(scope="module", params=["even", "with outliers"])
def inputs(request):
    rng = np.random.default_rng(4)
    values = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    if request.param == "with outliers":
        values[:, 70] *= 40
        values[::50] *= 10
    return values


@pytest.fixture(scope="module")
def peaks(inputs):
    sums = HessianAccumulator([SharedInputGroup(name="a", members=("a",), width=WIDTH)])
    for window, rows in enumerate(np.split(inputs, 2)):
        sums.add("a", window, range(0), [(0, rows)])
    return {block: (found[0] / TOKENS).astype(np.float32) for block, found in sums.peaks["a"].items()}


@pytest.mark.parametrize(("qtype", "block"), [("Q8_0", 32), ("Q5_1", 32), ("Q4_K", 256), ("IQ3_XXS", 256)])
def test_it_is_what_rounding_the_inputs_does(inputs, peaks, qtype, block):
    weights = np.random.default_rng(5).standard_normal((64, WIDTH)).astype(np.float32)
    seen = (((in_8_bits(inputs, block) - inputs) @ weights.T) ** 2).sum() / TOKENS

    found = input_error(weights, qtype, peaks)

    assert set(peaks) == set(PEAK_BLOCKS)
    # Next to an outlier, many values are far below a step and lose only themselves: the prediction is up to a
    # quarter too high.
    assert 0.97 * seen < found < 1.25 * seen


def test_long_blocks_with_outliers_spoil_more(inputs, peaks):
    weights = np.ones((4, WIDTH), np.float32)

    assert input_error(weights, "Q4_K", peaks) > input_error(weights, "Q4_1", peaks) > 0


def test_a_table_that_is_only_looked_up_has_none():
    assert input_error(np.ones((4, WIDTH), np.float32), "Q4_K", {}) == 0


def test_every_way_of_rounding_has_its_share():
    model = {"stock": {"Q4_K": 4.0}, "rows": {"Q4_K": 3.0}, "gptq": {"Q4_K": 1.0}}

    found = filled({"stock": {"Q4_K": 2.0}, "inputs": {"Q4_K": 0.25}}, model)

    assert found == {"stock": {"Q4_K": 2.25}, "rows": {"Q4_K": 1.75}, "gptq": {"Q4_K": 0.75}}
