"""Weights stored as floats of 8 bits: without scales, and with scales of blocks."""

import numpy as np
import pytest

from quantize.convert.checkpoint import Checkpoint, bf16_to_f32, f32_to_bf16
from quantize.errors import BadWeights
from tests.support.models.few_bit_folders import (
    BASE,
    COLUMNS,
    ROWS,
    SMALL_FLOATS,
    Stored,
    cast,
    e4m3,
    rng,
    small_float,
    write,
)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
@pytest.mark.parametrize("stated", ["bfloat16", "float16", "float32", "float8_e4m3fn", None])
def test_weights_cast_to_8_bit_floats_are_the_stored_values(stated, dtype, tmp_path):
    """Uploads without scales and without settings; norms and biases are cast too."""
    tensors, _, _, value = cast(dtype)
    code = next(c for c in range(128) if small_float(c, *SMALL_FLOATS[dtype][:2]) == 1.25)
    tensors["model.norm.weight"] = (dtype, np.full(COLUMNS, code, np.uint8))
    tensors[f"{BASE}.bias"] = (dtype, np.full(ROWS, code, np.uint8))
    tensors["lm_head.weight"] = ("F16", np.ones((4, COLUMNS), np.float16))
    source = Checkpoint(write(tmp_path / "model", tensors, {"torch_dtype": stated} if stated else {}))
    assert sorted(source.names) == sorted(tensors)

    def floats(name, rows):
        found = source.rows(name, 0, rows)
        return bf16_to_f32(found) if found.dtype == np.uint16 else found.astype(np.float32)

    assert np.array_equal(floats(f"{BASE}.weight", ROWS), value)
    assert (floats("model.norm.weight", 1) == 1.25).all()
    assert floats(f"{BASE}.bias", 1).tolist() == [[1.25] * ROWS]
    assert source.info(f"{BASE}.bias").shape == (ROWS,)
    assert source.formats == {"FP8": 3}


@pytest.mark.parametrize("name", ["weight_scale", "scale_weight", "input_scale"])
def test_8_bit_floats_with_scales_elsewhere_are_not_taken_as_they_are(name, tmp_path):
    tensors, _, _, _ = cast("F8_E4M3")
    tensors[f"model.layers.1.self_attn.q_proj.{name}"] = ("F32", np.ones(1, np.float32))
    source = Checkpoint(write(tmp_path / "model", tensors, {}))
    with pytest.raises(BadWeights, match="its scale is missing"):
        list(source.names)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "fp8"},
        {"quant_method": "modelopt", "weight_block_size": None},
        {"config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [128, 128]}}}},
        {"config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": "128x128"}}}},
    ],
    ids=["stated", "not stated", "stated as null", "compressed-tensors", "older compressed-tensors"],
)
def test_blocks_that_divide_no_weight_evenly_keep_their_size(settings, tmp_path):
    # 672 rows are 5.25 blocks: six equal blocks of 112 would fit the six scales too, and be wrong.
    codes = rng().integers(0, 127, (672, 320)).astype(np.uint8)
    scales = rng().uniform(0.001, 0.02, (6, 3)).astype(np.float32)
    tensors: Stored = {f"{BASE}.weight": ("F8_E4M3", codes), f"{BASE}.weight_scale_inv": ("F32", scales)}
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    values = np.array([e4m3(code) for code in range(127)], np.float32)[codes]
    wanted = values * scales[np.arange(672)[:, None] // 128, np.arange(320) // 128]
    assert np.array_equal(source.rows(f"{BASE}.weight", 0, 672), f32_to_bf16(wanted))
