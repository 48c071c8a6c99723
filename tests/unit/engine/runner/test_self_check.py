import numpy as np
import pytest

from engine.runner.llama.native.self_check import LARGEST_DIFFERENCE, difference
from engine.runner.llama.service import check_phase
from engine.runner.protocol import LoadSettings


def test_equal_rows_do_not_differ_and_unrelated_ones_do():
    rng = np.random.default_rng(0)
    one, other = rng.normal(3, 2, (2, 8000)).astype(np.float32)
    assert difference(one, one) == 0
    assert difference(one, other) == pytest.approx(2**0.5, abs=0.05)
    assert difference(one, np.roll(one, 1)) > LARGEST_DIFFERENCE
    assert difference(one, np.zeros_like(one)) > LARGEST_DIFFERENCE


def test_numeric_noise_is_none():
    rng = np.random.default_rng(0)
    one = rng.normal(0, 2, 8000).astype(np.float32)
    assert difference(one, one + rng.normal(0, 0.1, 8000)) < 0.1 * LARGEST_DIFFERENCE


def test_masked_tokens_are_left_out():
    one = np.asarray([1.0, 2.0, -np.inf, 3.0], np.float32)
    assert difference(one, one) == 0


@pytest.mark.parametrize(
    ("devices", "reference", "phase"),
    [
        (("Vulkan0",), "/cache/reference", "compiling"),
        (("SYCL0",), "/cache/reference", "compiling"),
        (("Vulkan0",), None, "check"),
        (("CUDA0",), "/cache/reference", "check"),
        ((), None, "check"),
    ],
)
def test_shaders_are_compiled_at_the_first_load_with_a_driver(devices, reference, phase):
    assert check_phase(LoadSettings(path="m", devices=devices, reference_path=reference)) == phase
