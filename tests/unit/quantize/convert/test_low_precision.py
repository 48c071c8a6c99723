"""Folders in low precision: every weight is expanded to the floats that the format's own library computes.

Damaged folders, and layouts that only look like one that can be read, are refused before anything is written.
"""

import json

import numpy as np
import pytest

from quantize.convert.checkpoint import Checkpoint, f32_to_bf16
from quantize.errors import BadWeights, UnsupportedModel
from tests.support.models.few_bit_folders import (
    BASE,
    COLUMNS,
    FORMATS,
    ROWS,
    Stored,
    awq,
    bf16,
    compressed_integers,
    gptq,
    nf4,
    rng,
    stream,
    write,
)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_value_is_the_librarys(kind, tmp_path):
    tensors, settings, dtype, value = FORMATS[kind]()
    tensors[f"{BASE}.input_scale"] = ("F32", np.ones((), np.float32))
    tensors["model.norm.weight"] = ("BF16", bf16(np.ones(COLUMNS)))
    config = {"torch_dtype": "bfloat16", "quantization_config": settings}
    source = Checkpoint(write(tmp_path / "model", tensors, config))
    assert sorted(source.names) == [f"{BASE}.weight", "model.norm.weight"]
    info = source.info(f"{BASE}.weight")
    assert (info.dtype, info.shape, info.nbytes) == (dtype, (ROWS, COLUMNS), 2 * ROWS * COLUMNS)
    wanted = value.astype(np.float16) if dtype == "F16" else f32_to_bf16(value)
    found = source.rows(f"{BASE}.weight", 0, ROWS)
    assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))
    # Chunks of any size give the same rows.
    parts = np.concatenate([source.rows(f"{BASE}.weight", a, b) for a, b in ((0, 5), (5, 33), (33, ROWS))])
    assert np.array_equal(parts.view(np.uint16), wanted.view(np.uint16))
    assert sum(source.formats.values()) == 1


def retyped(name: str, dtype: str, values: np.ndarray):
    return lambda t: t.update({f"{BASE}.{name}": (dtype, values)})


def without(name: str):
    return lambda t: t.pop(f"{BASE}.{name}")


@pytest.mark.parametrize(
    ("made", "change", "error", "words"),
    [
        ("GPTQ", without("scales"), UnsupportedModel, "cannot be read"),
        ("GPTQ", retyped("scales", "F16", np.ones((2, 7), np.float16)), BadWeights, "do not belong"),
        ("GPTQ", retyped("g_idx", "I32", np.full(COLUMNS, 2, np.int32)), BadWeights, "in 2 groups"),
        ("GPTQ", retyped("g_idx", "I32", np.arange(-1, COLUMNS - 1, dtype=np.int32) % 2 - 1), BadWeights, "of -1"),
        ("GPTQ", retyped("g_idx", "I32", np.zeros(3, np.int32)), UnsupportedModel, "85.* bits"),
        ("GPTQ", retyped("g_idx", "I32", np.zeros(85, np.int32)), UnsupportedModel, "has 3.01 bits"),
        ("GPTQ", retyped("qzeros", "F16", np.zeros((2, 12), np.float16)), BadWeights, "stored as F16"),
        ("GPTQ", retyped("qweight", "F32", np.zeros((8, ROWS), np.float32)), BadWeights, "stored as F32"),
        ("AWQ", without("qzeros"), BadWeights, "qzeros: it is missing"),
        ("NVFP4 of ModelOpt", without("weight_scale_2"), BadWeights, "its scale is missing"),
        ("NVFP4 of ModelOpt", retyped("weight_scale", "F8_E4M3", np.ones((ROWS, 2), np.uint8)), UnsupportedModel,
         "groups of 32 with scales of F8_E4M3"),
        ("MXFP4", retyped("weight_scale", "U8", np.ones((ROWS, 1), np.uint8)), UnsupportedModel, "groups of 64"),
        ("FP8, blocks", without("weight_scale_inv"), BadWeights, "its scale is missing"),
        ("AWQ, by rows", retyped("scales", "F16", np.ones((ROWS, 1), np.float16)), BadWeights, ".48, 1. does not"),
        ("AWQ, by rows", retyped("qzeros", "I32", np.ones((2, 8), np.int32)), BadWeights, "qzeros: .2, 8. do"),
        ("AWQ, by rows", without("qzeros"), BadWeights, "qzeros: it is missing"),
        ("ModelOpt, 4 bits", retyped("weight_scale_2", "F32", np.ones(1, np.float32)), UnsupportedModel,
         "a second scale"),
        ("ModelOpt, 4 bits, factors of inputs", retyped("pre_quant_scale", "F32", np.ones(3, np.float32)),
         BadWeights, "factors for 64 columns"),
        ("MLX, 4 bits", without("biases"), BadWeights, "biases: .. does not divide"),
        ("bitsandbytes NF4", without("weight.quant_map"), BadWeights, "quant_map: it is missing"),
        ("bitsandbytes NF4, scales in 8 bits", without("weight.nested_quant_map"), BadWeights, "it is missing"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused(made, change, error, words, tmp_path):
    tensors, settings, _, _ = FORMATS[made]()
    change(tensors)
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    with pytest.raises(error, match=words):
        list(source.names)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "layout 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv_fast"}, "layout 'gemv_fast'.*16 bits"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:exllamav2"}, "layout 'exllamav2'"),
        ({"quant_method": "gptq", "bits": 4, "format": "marlin"}, "layout 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "layout 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}, "layout 'gemv_fast'"),
        ({"quant_method": "awq", "bits": 4, "backend": "llm-awq"}, "layout 'llm-awq'"),
        (
            {"quant_method": "auto-round", "rotation_config": {"hadamard_type": "hadamard"}},
            "rotation_config rotates",
        ),
        (
            {"quant_method": "auto-round", "spinquant_config": {"algorithm": "spinquant"}},
            "spinquant_config rotates",
        ),
        ({"transform_config": {"config_groups": {"R3": {"apply": [{"location": "q_attn"}]}}}}, "transform 'R3'"),
    ],
)
def test_bits_that_cannot_be_read_are_named(settings, words, tmp_path):
    source = Checkpoint(write(tmp_path / "model", gptq("gptq")[0], {"quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match=words):
        list(source.names)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bits": 3}, "AWQ of 3 bits in groups of 32"),
        ({"group_size": 48}, "groups of 48"),
        ({"group_size": None}, "groups of None"),
        ({"group_size": -1, "bits": None}, ""),
    ],
)
def test_awq_by_rows_needs_its_settings(settings, words, tmp_path):
    tensors, stated, _, _ = FORMATS["AWQ, by rows"]()
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": stated | settings}))
    if not words:
        assert source.info(f"{BASE}.weight").shape == (ROWS, COLUMNS)
        return
    with pytest.raises(UnsupportedModel, match=words):
        list(source.names)


def test_weights_that_become_ternary_only_when_the_model_runs_are_refused(tmp_path):
    """They are ordinary 16-bit floats, so only the settings tell."""
    settings = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    tensors: Stored = {f"{BASE}.weight": ("BF16", bf16(np.ones((ROWS, COLUMNS))))}
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match="convert the folder that stores them as ternary"):
        list(source.names)


def test_awq_of_other_bits_is_named_whatever_the_settings_say(tmp_path):
    tensors, settings, _, _ = awq()
    tensors[f"{BASE}.qweight"] = ("I32", np.zeros((COLUMNS, ROWS // 4), np.int32))
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match="AWQ of 8 bits"):
        list(source.names)


def test_settings_of_a_model_that_also_reads_pictures_are_found(tmp_path):
    tensors, settings, _, value = gptq("gptq_v2")
    config = {"text_config": {"quantization_config": settings}}
    source = Checkpoint(write(tmp_path / "model", tensors, config))
    assert np.array_equal(source.rows(f"{BASE}.weight", 0, ROWS), value.astype(np.float16))


def test_sorted_columns_without_their_order_are_refused(tmp_path):
    tensors, settings, _, _ = gptq("gptq", shuffled=True)
    del tensors[f"{BASE}.g_idx"]
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings | {"desc_act": True}}))
    with pytest.raises(BadWeights, match="their order"):
        list(source.names)


def test_scales_that_end_too_early_are_named(tmp_path):
    tensors, settings, _, _ = nf4(nested=False)
    name = f"{BASE}.weight.absmax"
    tensors[name] = ("F32", tensors[name][1][:3])
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    with pytest.raises(BadWeights, match=r"q_proj.weight: its parts do not fit together \(bitsandbytes, NF4\)"):
        source.rows(f"{BASE}.weight", 0, ROWS)


@pytest.mark.parametrize("shape", [[ROWS, -1], [ROWS, 0], [ROWS, 1 << 40], [ROWS + 1, COLUMNS], []])
def test_a_stated_shape_that_is_not_the_stored_one(shape, tmp_path):
    tensors, settings, _, _ = compressed_integers(zero_points=False, in_order=True)
    tensors[f"{BASE}.weight_shape"] = ("I64", np.array(shape, np.int64))
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    with pytest.raises(BadWeights, match="its shape is stated as"):
        list(source.names)


def three_bits(zeros: np.ndarray | None, version: str):
    """GPTQ of 3 bits: 64 rows in groups of 32; zeros of 4 or as given, stored as words."""
    codes = rng().integers(0, 8, (64, COLUMNS))
    scales = rng().uniform(0.001, 0.02, (2, 64)).astype(np.float16)
    tensors: Stored = {
        f"{BASE}.qweight": ("I32", np.ascontiguousarray(stream(codes, 3).T)),
        f"{BASE}.scales": ("F16", scales),
    }
    less = np.full((2, 64), 4) if zeros is None else zeros
    group = np.arange(COLUMNS) // 32
    value = (codes - less[group].T).astype(np.float32) * scales[group].T.astype(np.float32)
    settings = {"quant_method": "gptq", "bits": 3, "group_size": 32, "checkpoint_format": version}
    return tensors, settings, value


# Words of 32 zeros of 4, less what GPTQModel subtracts from the three words in turn.
GPTQMODEL = [0, 0x49249249 - 0x92492492 + (1 << 32), 0x92492492 - 0x49249249]


@pytest.mark.parametrize("writer", ["as they are", "AutoGPTQ", "GPTQModel"])
def test_symmetric_zeros_of_3_bits_are_read_whoever_stored_them(writer, tmp_path):
    tensors, settings, value = three_bits(None, "gptq")
    words = {
        "as they are": stream(np.full((2, 64), 4), 3),
        "AutoGPTQ": stream(np.full((2, 64), 3), 3),
        "GPTQModel": np.array([GPTQMODEL * 2] * 2, np.uint32).view(np.int32),
    }
    tensors[f"{BASE}.qzeros"] = ("I32", words[writer])
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    found = source.rows(f"{BASE}.weight", 0, 64)
    assert np.array_equal(found, value.astype(np.float16))
    assert np.array_equal(source.rows(f"{BASE}.weight", 5, 33), found[5:33])


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_other_zeros_of_3_bits_are_read_in_the_second_version_only(version, tmp_path):
    zeros = rng().integers(0, 8, (2, 64))
    tensors, settings, value = three_bits(zeros, version)
    tensors[f"{BASE}.qzeros"] = ("I32", stream(zeros, 3))
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    if version == "gptq":
        with pytest.raises(UnsupportedModel, match="zero points of 3 bits"):
            list(source.names)
        return
    assert np.array_equal(source.rows(f"{BASE}.weight", 0, 64), value.astype(np.float16))


def test_settings_of_early_gptq_folders_are_in_a_file_of_their_own(tmp_path):
    tensors, settings, _, value = gptq("gptq_v2")
    folder = write(tmp_path / "model", tensors, {})
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    assert np.array_equal(Checkpoint(folder).rows(f"{BASE}.weight", 0, ROWS), value.astype(np.float16))


def test_biases_of_zeros_that_gptq_adds_are_left_out(tmp_path):
    """AutoGPTQ stores one for every weight; a part of which one layer has another bias keeps all of them."""
    first, settings, _, _ = gptq("gptq")
    tensors: Stored = {}
    for layer in (0, 1):
        for part in ("q_proj", "o_proj"):
            base = f"model.layers.{layer}.self_attn.{part}"
            tensors |= {name.replace(BASE, base): stored for name, stored in first.items()}
            bias = np.zeros(ROWS, np.float16)
            bias[3] = part == "q_proj" and layer == 1
            tensors[f"{base}.bias"] = ("F16", bias)
    tensors["model.norm.bias"] = ("F16", np.zeros(COLUMNS, np.float16))
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    biases = [name for name in source.names if name.endswith("bias")]
    assert sorted(biases) == [
        "model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_proj.bias", "model.norm.bias",
    ]  # fmt: skip


def quark(dtype: str, codes: np.ndarray, scales: np.ndarray) -> Stored:
    return {f"{BASE}.weight": (dtype, codes), f"{BASE}.weight_scale": ("F32", scales)}


@pytest.mark.parametrize(
    ("tensors", "method", "error", "words"),
    [
        # Words along the outputs, whose shape a square matrix shares with compressed-tensors'.
        (quark("I32", np.zeros((64, 8), np.int32), np.ones((64, 2), np.float32)), "quark", UnsupportedModel,
         "quark, stored as I32"),
        # Scales (groups, rows): blocks of 32 rows and one column would fit them too.
        (quark("I8", np.zeros((64, 64), np.int8), np.ones((2, 64), np.float32)), "quark", BadWeights,
         "do not divide a weight of 64 x 64"),
        ({f"{BASE}.qweight": ("U8", np.zeros((64, 32), np.uint8)),
          f"{BASE}.scales": ("U8", np.ones((64, 2), np.uint8))}, "fp_quant", UnsupportedModel,
         "fp_quant, stored as U8"),
        ({f"{BASE}.weight": ("I8", np.zeros((64, 64), np.int8)),
          f"{BASE}.weight_scales": ("F16", np.ones(64, np.float16))}, "eetq", UnsupportedModel,
         "eetq, stored as I8"),
        # Two codes in a byte, one scale and minimum for 32 columns of a row: (groups, rows), here a square.
        ({f"{BASE}._weight_qdata": ("I8", np.zeros((4, 64), np.int8)),
          f"{BASE}._weight_scale": ("BF16", np.ones((4, 4), np.uint16)),
          f"{BASE}._weight_zero_point": ("BF16", np.ones((4, 4), np.uint16))}, "torchao", UnsupportedModel,
         "stored as BF16, expected I8; convert the original in 16 bits"),
        ({f"{BASE}._weight_qdata": ("U8", np.zeros((64, 64), np.uint8)),
          f"{BASE}._weight_scale": ("F8_E4M3", np.ones((64, 8), np.uint8))}, "torchao", UnsupportedModel,
         "torchao, stored as U8.*convert the original in 16 bits"),
    ],
    ids=["Quark int4", "Quark int8", "FP-Quant", "EETQ", "torchao int4", "torchao NVFP4"],
)  # fmt: skip
def test_layouts_that_look_like_others_are_refused(tensors, method, error, words, tmp_path):
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": {"quant_method": method}}))
    with pytest.raises(error, match=words):
        list(source.names)


@pytest.mark.parametrize(
    ("made", "change", "settings", "words"),
    [
        ("bitsandbytes 8 bits", ("weight_format", "U8", np.array(2, np.uint8)), {}, "tiles for certain GPUs"),
        ("BitNet", None, {"use_rms_norm": True}, "norms of their own"),
        ("MLX, 4 bits", None, {"mode": "mxfp4"}, "by MLX as mxfp4 of 4 bits"),
        ("compressed-tensors, 8 bits, groups",
         ("weight_zero_point", "BF16", np.ones((ROWS, 2), np.uint16)), {}, "stored as BF16, expected I8"),
    ],
)  # fmt: skip
def test_what_a_format_states_besides_is_refused(made, change, settings, words, tmp_path):
    tensors, stated, _, _ = FORMATS[made]()
    if change:
        retyped(*change)(tensors)
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": stated | settings}))
    with pytest.raises(UnsupportedModel, match=words):
        source.rows(f"{BASE}.weight", 0, ROWS)


def test_unknown_formats_are_named(tmp_path):
    tensors: Stored = {f"{BASE}.weight": ("U8", np.zeros((4, 4), np.uint8))}
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(UnsupportedModel, match=r"q_proj.weight is quantized in a way.*hqq"):
        list(source.names)
