"""ggml's own rounding through ctypes: equal to an independent implementation, safe against bad arguments."""

import gguf
import numpy as np
import pytest

from quantize.ggml_types import BLOCK_SIZES
from quantize.native import blocks
from quantize.native.blocks import dequantize_rows, quantize_rows, type_traits

pytestmark = pytest.mark.native

PYTHON_QUANTIZERS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "TQ1_0", "TQ2_0")
EVERY_QUANTIZED = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "IQ4_NL"),
)


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(7)
    return (rng.standard_normal((24, 512)) * np.exp(rng.standard_normal((24, 1)))).astype(np.float32)


@pytest.mark.parametrize("qtype", PYTHON_QUANTIZERS)
def test_quantizing_equals_an_independent_implementation(weights, qtype):
    expected = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[qtype]).view(np.uint8)

    assert np.array_equal(expected, quantize_rows(weights, qtype))


@pytest.mark.parametrize("qtype", EVERY_QUANTIZED)
def test_dequantizing_equals_an_independent_implementation(weights, qtype):
    importance = np.linspace(0.5, 2, 512, dtype=np.float32)
    packed = quantize_rows(weights, qtype, importance)

    expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[qtype])

    assert np.array_equal(expected, dequantize_rows(packed, qtype, 512))


@pytest.mark.parametrize("qtype", EVERY_QUANTIZED)
def test_row_sizes_equal_the_header_readers_table(qtype):
    values, size = next((v, b) for t, (v, b) in BLOCK_SIZES.items() if t.name == qtype)

    assert (values, size) == (type_traits(qtype).block_values, type_traits(qtype).block_bytes)
    assert 512 // values * size == type_traits(qtype).row_bytes(512)


@pytest.mark.parametrize("qtype", ["Q4_K", "IQ4_XS", "Q6_K"])
def test_threads_do_not_change_a_byte(qtype, monkeypatch):
    """Five parts, the last one smaller."""
    monkeypatch.setattr(blocks, "_CHUNK_VALUES", 1 << 17)
    rng = np.random.default_rng(3)
    many = rng.standard_normal((525, 1024)).astype(np.float32)
    importance = rng.random(1024).astype(np.float32)

    alone = quantize_rows(many, qtype, importance)

    assert np.array_equal(alone, quantize_rows(many, qtype, importance, threads=2))
    assert np.array_equal(dequantize_rows(alone, qtype, 1024), dequantize_rows(alone, qtype, 1024, threads=2))


def test_importance_moves_precision_to_where_it_counts(weights):
    importance = np.ones(512, np.float32)
    importance[:32] = 1000

    plain = dequantize_rows(quantize_rows(weights, "Q3_K"), "Q3_K", 512) - weights
    steered = dequantize_rows(quantize_rows(weights, "Q3_K", importance), "Q3_K", 512) - weights

    assert (steered[:, :32] ** 2).sum() < 0.9 * (plain[:, :32] ** 2).sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: (w[0], "Q4_K"), "matrix"),
        (lambda w: (w.astype(np.float64), "Q4_K"), "float32"),
        (lambda w: (w[:, :100], "Q4_K"), "multiple of 256"),
        (lambda w: (w, "Q9_X"), "unknown"),
        (lambda w: (np.full_like(w, np.nan), "Q4_K"), "finite"),
        (lambda w: (np.full_like(w, np.inf), "IQ4_XS"), "finite"),
        (lambda w: (w, "IQ2_XXS"), "importance"),
        (lambda w: (w, "Q4_K", np.ones(100, np.float32)), "importance"),
        (lambda w: (w, "Q4_K", np.full(512, -1, np.float32)), "importance"),
        (lambda w: (w, "Q4_K", np.full(512, np.nan, np.float32)), "importance"),
    ],
    ids=[
        "one row",
        "float64",
        "ragged row",
        "unknown type",
        "NaN",
        "infinity",
        "no importance",
        "short importance",
        "negative importance",
        "NaN importance",
    ],
)
def test_bad_arguments_never_reach_native_code(weights, change, message):
    with pytest.raises(ValueError, match=message):
        quantize_rows(*change(weights))


def test_rows_of_the_wrong_size_are_not_expanded():
    with pytest.raises(ValueError, match="144 bytes"):
        dequantize_rows(np.zeros((2, 100), np.uint8), "Q4_K", 256)
    with pytest.raises(ValueError, match="uint8"):
        dequantize_rows(np.zeros((2, 144), np.int8), "Q4_K", 256)


def test_no_rows_are_no_work():
    assert quantize_rows(np.empty((0, 256), np.float32), "Q4_K").shape == (0, 144)
    assert dequantize_rows(np.empty((0, 144), np.uint8), "Q4_K", 256).shape == (0, 256)
