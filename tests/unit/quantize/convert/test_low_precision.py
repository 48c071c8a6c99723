"""Folders in low precision: every weight is expanded to the floats that the format's own library computes.

Each value is computed here again from the stored codes, one at a time, by the format's formula. The same against
the libraries themselves: tests/optin/low_precision.py.
"""

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from quantize.convert.checkpoint import Checkpoint, bf16_to_f32, f32_to_bf16
from quantize.convert.families import model_recipe
from quantize.convert.folder import ConvertRequest, _encoded, convert, prepare
from quantize.convert.tensor_map import OutTensor
from quantize.errors import BadFile, BadWeights, UnsupportedModel
from quantize.ggml_types import GgmlType
from quantize.gptq.exact import ExactRequest, find_exact_types, pack_exactly
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.native.source_weights import SourceWeights
from quantize.types import CALIBRATION, HELD_OUT, SizeTarget

SPARK_HF = Path("tests/data/spark-hf")
ROWS, COLUMNS = 48, 64
BASE = "model.layers.0.self_attn.q_proj"
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
Stored = dict[str, tuple[str, np.ndarray]]


def rng():
    return np.random.default_rng(11)


def write(folder: Path, tensors: Stored, config: dict) -> Path:
    """A folder of one layer's weight, in safetensors' format."""
    folder.mkdir(exist_ok=True)
    head, at = {}, 0
    for name, (dtype, values) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(head).encode()
    data = b"".join(np.ascontiguousarray(values).tobytes() for _, values in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def bf16(values):
    return f32_to_bf16(np.asarray(values, np.float32))


def e4m3(code: int) -> float:
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    return sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)


def e2m1(code: int) -> float:
    return -FP4[code & 7] if code & 8 else FP4[code]


def small_float(code: int, exponent_bits: int, bias: int) -> float:
    """The value of an 8-bit float that is neither NaN nor infinite."""
    fraction_bits = 7 - exponent_bits
    exponent, fraction = (code & 127) >> fraction_bits, code & (1 << fraction_bits) - 1
    whole = fraction / (1 << fraction_bits) + (1 if exponent else 0)
    return (-1.0 if code & 128 else 1.0) * whole * 2.0 ** (max(exponent, 1) - bias)


# The format of an 8-bit float: bits of its exponent, bias, codes that are no number.
SMALL_FLOATS = {
    "F8_E4M3": (4, 7, {127, 255}),
    "F8_E5M2": (5, 15, {*range(124, 128), *range(252, 256)}),
    "F8_E4M3FNUZ": (4, 8, {128}),
    "F8_E5M2FNUZ": (5, 16, {128}),
}


def each(value) -> np.ndarray:
    return np.array([[value(r, c) for c in range(COLUMNS)] for r in range(ROWS)], np.float32)


def fp8_codes() -> np.ndarray:
    return rng().integers(0, 127, (ROWS, COLUMNS)).astype(np.uint8) | np.uint8(128) * rng().integers(
        0, 2, 1, np.uint8
    )


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Words of eight 4-bit codes along the last axis, lowest first."""
    parts = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)
    return (parts << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32).view(np.int32)


def fp8(scale_name: str, shape: tuple[int, ...], settings: dict, of):
    codes = fp8_codes()
    scales = rng().uniform(0.001, 0.02, shape).astype(np.float32)
    tensors: Stored = {f"{BASE}.weight": ("F8_E4M3", codes), f"{BASE}.{scale_name}": ("F32", scales)}
    value = each(lambda r, c: np.float32(e4m3(int(codes[r, c]))) * np.float32(of(scales, r, c)))
    return tensors, settings, "BF16", value


def cast(dtype: str, *, scaled: bool = False):
    """Codes of every value of the type, without any scale unless `scaled`."""
    exponent_bits, bias, others = SMALL_FLOATS[dtype]
    codes = rng().choice([c for c in range(256) if c not in others], (ROWS, COLUMNS)).astype(np.uint8)
    tensors: Stored = {f"{BASE}.weight": (dtype, codes)}
    scale = np.float32(1)
    if scaled:
        scale = np.float32(0.0137)
        tensors[f"{BASE}.weight_scale"] = ("F32", np.array([scale]))
    value = each(lambda r, c: np.float32(small_float(int(codes[r, c]), exponent_bits, bias)) * scale)
    return tensors, {"quant_method": "fp8"} if scaled else {}, "BF16", value


def compressed_integers(*, zero_points: bool, in_order: bool):
    codes = rng().integers(0, 16, (ROWS, COLUMNS))
    scales = bf16(rng().uniform(0.001, 0.02, (ROWS, 2)))
    group = rng().permutation(np.arange(COLUMNS) // 32) if not in_order else np.arange(COLUMNS) // 32
    zeros = rng().integers(0, 16, (ROWS, 2))
    tensors: Stored = {
        f"{BASE}.weight_packed": ("I32", nibbles(codes)),
        f"{BASE}.weight_scale": ("BF16", scales),
        f"{BASE}.weight_shape": ("I64", np.array([ROWS, COLUMNS])),
    }
    if zero_points:
        tensors[f"{BASE}.weight_zero_point"] = ("I32", np.ascontiguousarray(nibbles(zeros.T).T))
    if not in_order:
        tensors[f"{BASE}.weight_g_idx"] = ("I32", group.astype(np.int32))
    weights = {"num_bits": 4, "group_size": 32, "strategy": "group"}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    floats = bf16_to_f32(scales)
    less = zeros if zero_points else np.full_like(zeros, 8)
    value = each(lambda r, c: np.float32(codes[r, c] - less[r, group[c]]) * floats[r, group[c]])
    return tensors, settings, "BF16", value


def compressed_bytes():
    codes, scales = (
        rng().integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8),
        bf16(rng().uniform(0.001, 0.02, (ROWS, 1))),
    )
    tensors: Stored = {f"{BASE}.weight": ("I8", codes), f"{BASE}.weight_scale": ("BF16", scales)}
    floats = bf16_to_f32(scales)
    return tensors, {"quant_method": "compressed-tensors"}, "BF16", each(lambda r, c: codes[r, c] * floats[r, 0])


def fp4(size: int, name: str, *, divided: bool = False, multiplied: bool = False):
    codes = rng().integers(0, 16, (ROWS, COLUMNS))
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    raw = rng().integers(40, 100, (ROWS, COLUMNS // size)).astype(np.uint8)
    tensors: Stored = {f"{BASE}.{name}": ("U8", packed)}
    if size == 16:
        scales = np.array([[e4m3(int(c)) for c in row] for row in raw], np.float32)
        tensors[f"{BASE}.weight_scale"] = ("F8_E4M3", raw)
        whole = np.array([313.7 if divided else 0.00371], np.float32)
        tensors[f"{BASE}.{'weight_global_scale' if divided else 'weight_scale_2'}"] = ("F32", whole)
        scales = scales / whole if divided else scales * whole
    else:
        raw += np.uint8(50)
        tensors[f"{BASE}.weight_scale"] = ("U8", raw)
        scales = 2.0 ** (raw.astype(np.float32) - 127)
    value = each(lambda r, c: np.float32(e2m1(int(codes[r, c]))) * scales[r, c // size])
    return tensors, {"quant_method": "modelopt"}, "BF16", value


def gptq(version: str, *, shuffled: bool = False, symmetric: bool = False, less_one: bool | None = None):
    """Zeros in the version's way: 1 subtracted from every field of a word, or not."""
    codes, zeros = rng().integers(0, 16, (ROWS, COLUMNS)), rng().integers(0, 16, (2, ROWS))
    zeros = np.full_like(zeros, 8) if symmetric else zeros
    less_one = version == "gptq" if less_one is None else less_one
    scales = rng().uniform(0.001, 0.02, (2, ROWS)).astype(np.float16)
    group = np.arange(COLUMNS) // 32
    group = rng().permutation(group) if shuffled else group
    words = nibbles(zeros).view(np.uint32) - np.uint32(0x11111111 if less_one else 0)
    tensors: Stored = {
        f"{BASE}.qweight": ("I32", np.ascontiguousarray(nibbles(codes).T)),
        f"{BASE}.qzeros": ("I32", words.view(np.int32)),
        f"{BASE}.scales": ("F16", scales),
        f"{BASE}.g_idx": ("I32", group.astype(np.int32)),
    }
    value = each(lambda r, c: np.float32(codes[r, c] - zeros[group[c], r]) * np.float32(scales[group[c], r]))
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": version}
    return tensors, settings | ({"sym": True} if symmetric else {}), "F16", value


def awq():
    codes, zeros = rng().integers(0, 16, (ROWS, COLUMNS)), rng().integers(0, 16, (2, ROWS))
    scales = rng().uniform(0.001, 0.02, (2, ROWS)).astype(np.float16)

    def interleaved(values):
        return nibbles(values.reshape(len(values), -1, 8)[:, :, AWQ_COLUMNS].reshape(len(values), -1))

    tensors: Stored = {
        f"{BASE}.qweight": ("I32", interleaved(codes.T)),
        f"{BASE}.qzeros": ("I32", interleaved(zeros)),
        f"{BASE}.scales": ("F16", scales),
    }
    value = each(lambda r, c: np.float32(codes[r, c] - zeros[c // 32, r]) * np.float32(scales[c // 32, r]))
    return tensors, {"quant_method": "awq", "bits": 4, "group_size": 32}, "F16", value


def nf4(*, nested: bool):
    codes = rng().integers(0, 16, ROWS * COLUMNS)
    table = np.sort(rng().uniform(-1, 1, 16)).astype(np.float32)
    blocks = ROWS * COLUMNS // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [ROWS, COLUMNS]}
    tensors: Stored = {
        f"{BASE}.weight": ("U8", (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]),
        f"{BASE}.weight.quant_map": ("F32", table),
    }
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.043}
        raw, inner = rng().integers(0, 256, blocks).astype(np.uint8), rng().uniform(-1, 1, 256).astype(np.float32)
        outer = np.array([0.031], np.float32)
        tensors[f"{BASE}.weight.absmax"] = ("U8", raw)
        tensors[f"{BASE}.weight.nested_absmax"] = ("F32", outer)
        tensors[f"{BASE}.weight.nested_quant_map"] = ("F32", inner)
        scales = inner[raw] * outer[0] + np.float32(0.043)
    else:
        scales = rng().uniform(0.01, 0.1, blocks).astype(np.float32)
        tensors[f"{BASE}.weight.absmax"] = ("F32", scales)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"{BASE}.weight.quant_state.bitsandbytes__nf4"] = ("U8", text)
    value = each(lambda r, c: table[codes[r * COLUMNS + c]] * scales[(r * COLUMNS + c) // 64])
    return tensors, {"quant_method": "bitsandbytes"}, "BF16", value


def int8_rows():
    codes, scales = rng().integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8), rng().uniform(0.1, 2, ROWS)
    scales = scales.astype(np.float32)
    tensors: Stored = {
        f"{BASE}.weight": ("I8", codes),
        f"{BASE}.SCB": ("F32", scales),
        f"{BASE}.weight_format": ("U8", np.zeros((), np.uint8)),
    }
    value = each(lambda r, c: np.float32(codes[r, c]) * scales[r] * np.float32(1 / 127))
    return tensors, {"quant_method": "bitsandbytes"}, "BF16", value


def stream(values: np.ndarray, bits: int) -> np.ndarray:
    """Words along the last axis in which values follow each other bit by bit, the last word filled with zeros."""
    count = -(-values.shape[-1] * bits // 32)
    rows = []
    for row in values.reshape(-1, values.shape[-1]):
        whole = sum(int(value) << bits * at for at, value in enumerate(row))
        rows.append([whole >> 32 * word & 0xFFFFFFFF for word in range(count)])
    return np.array(rows, np.uint32).reshape(*values.shape[:-1], count).view(np.int32)


def unfilled(values: np.ndarray, bits: int) -> np.ndarray:
    """Words of as many whole values as fit; the last bits of each stay unused."""
    each_word = 32 // bits
    count = -(-values.shape[-1] // each_word)
    filled = np.zeros((*values.shape[:-1], count * each_word), np.uint32)
    filled[..., : values.shape[-1]] = values
    shifts = bits * np.arange(each_word, dtype=np.uint32)
    parts = filled.reshape(*values.shape[:-1], count, each_word) << shifts
    return parts.sum(axis=-1, dtype=np.uint32).view(np.int32)


def compressed_of_bits(bits: int, pack, *, zero_points: bool):
    codes, zeros = rng().integers(0, 1 << bits, (ROWS, COLUMNS)), rng().integers(0, 1 << bits, (ROWS, 2))
    scales = bf16(rng().uniform(0.001, 0.02, (ROWS, 2)))
    tensors: Stored = {
        f"{BASE}.weight_packed": ("I32", pack(codes, bits)),
        f"{BASE}.weight_scale": ("BF16", scales),
        f"{BASE}.weight_shape": ("I64", np.array([ROWS, COLUMNS])),
    }
    if zero_points:
        tensors[f"{BASE}.weight_zero_point"] = ("I32", np.ascontiguousarray(pack(zeros.T, bits).T))
    weights = {"num_bits": bits, "group_size": 32, "strategy": "group"}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    less = zeros if zero_points else np.full_like(zeros, 1 << bits - 1)
    floats = bf16_to_f32(scales)
    value = each(lambda r, c: np.float32(codes[r, c] - less[r, c // 32]) * floats[r, c // 32])
    return tensors, settings, "BF16", value


def one_zero_point():
    """One scale and one zero point for the tensor, which compressed-tensors does not pack."""
    tensors, settings, dtype, _ = compressed_integers(zero_points=False, in_order=True)
    codes = rng().integers(0, 16, (ROWS, COLUMNS))
    tensors[f"{BASE}.weight_packed"] = ("I32", nibbles(codes))
    tensors[f"{BASE}.weight_scale"] = ("BF16", bf16([0.0137]))
    tensors[f"{BASE}.weight_zero_point"] = ("I8", np.array([-3], np.int8))
    step = bf16_to_f32(bf16([0.0137]))[0]
    return tensors, settings, dtype, each(lambda r, c: np.float32(codes[r, c] - 8 + 3) * step)


def bytes_in_groups(*, sorted_columns: bool):
    """8 bits with zero points in groups of 32 columns, which may be scattered."""
    codes, zeros = (rng().integers(-128, 128, shape).astype(np.int8) for shape in ((ROWS, COLUMNS), (ROWS, 2)))
    scales, group = bf16(rng().uniform(0.001, 0.02, (ROWS, 2))), np.arange(COLUMNS) // 32
    tensors: Stored = {
        f"{BASE}.weight": ("I8", codes),
        f"{BASE}.weight_scale": ("BF16", scales),
        f"{BASE}.weight_zero_point": ("I8", zeros),
    }
    if sorted_columns:
        group = rng().permutation(group)
        tensors[f"{BASE}.weight_g_idx"] = ("I32", group.astype(np.int32))
    floats = bf16_to_f32(scales)
    value = each(lambda r, c: np.float32(int(codes[r, c]) - int(zeros[r, group[c]])) * floats[r, group[c]])
    return tensors, {"quant_method": "compressed-tensors"}, "BF16", value


def nf4_in_bf16():
    """bitsandbytes with `bnb_4bit_quant_storage` bfloat16: two bytes of codes in one number."""
    tensors, settings, dtype, value = nf4(nested=False)
    _, codes = tensors[f"{BASE}.weight"]
    tensors[f"{BASE}.weight"] = ("BF16", codes.reshape(-1, 2).copy().view(np.uint16))
    return tensors, settings, dtype, value


def bitnet(*, factor: bool):
    codes = rng().integers(0, 3, (ROWS, COLUMNS))
    quarters = codes.reshape(4, ROWS // 4, COLUMNS)
    packed = sum(quarters[i] << 2 * i for i in range(4)).astype(np.uint8)
    scale = bf16([0.0137 if factor else 71.5])
    tensors: Stored = {f"{BASE}.weight": ("U8", packed), f"{BASE}.weight_scale": ("BF16", scale)}
    one = bf16_to_f32(scale)[0]
    settings = {"quant_method": "bitnet", "linear_class": "autobitlinear" if factor else "bitlinear"}
    value = (codes - 1).astype(np.float32) * one if factor else (codes - 1).astype(np.float32) / one
    return tensors, settings, "BF16", value


def mlx(bits: int, *, own: bool = False):
    """Groups of 32 columns; `own`: this layer's bits are stated under its name."""
    codes = rng().integers(0, 1 << bits, (ROWS, COLUMNS))
    scales, lows = bf16(rng().uniform(0.001, 0.02, (ROWS, 2))), bf16(rng().uniform(-0.1, 0, (ROWS, 2)))
    tensors: Stored = {
        f"{BASE}.weight": ("U32", stream(codes, bits).view(np.uint32)),
        f"{BASE}.scales": ("BF16", scales),
        f"{BASE}.biases": ("BF16", lows),
    }
    settings = {"group_size": 32, "bits": bits}
    steps, low = bf16_to_f32(scales), bf16_to_f32(lows)
    value = each(lambda r, c: np.float32(codes[r, c]) * steps[r, c // 32] + low[r, c // 32])
    return tensors, {"group_size": 64, "bits": 2, BASE: settings} if own else settings, "BF16", value


def of_torchao(made):
    tensors, _, dtype, value = made
    names = {"weight": "_weight_qdata", "weight_scale": "_weight_scale"}
    renamed = {f"{BASE}.{names[name.rpartition('.')[2]]}": stored for name, stored in tensors.items()}
    return renamed, {"quant_method": "torchao"}, dtype, value


def other_settings(made, **settings):
    """The same weights if the settings name those of other layers."""
    tensors, found, dtype, value = made
    return tensors, found | settings, dtype, value


def without_settings(made):
    tensors, _, dtype, value = made
    return tensors, {}, dtype, value


def lacking(made, name):
    tensors, settings, dtype, value = made
    del tensors[f"{BASE}.{name}"]
    return tensors, settings, dtype, value


BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 16]}
FORMATS = {
    "FP8, blocks": lambda: fp8("weight_scale_inv", (2, 4), BLOCKS, lambda s, r, c: s[r // 32, c // 16]),
    "FP8, one scale": lambda: fp8("weight_scale", (1,), {"quant_method": "modelopt"}, lambda s, r, c: s[0]),
    "FP8, a scale without shape": lambda: fp8("weight_scale", (), {}, lambda s, r, c: s),
    "FP8, rows": lambda: fp8("weight_scale", (ROWS, 1), {"quant_method": "fbgemm_fp8"}, lambda s, r, c: s[r, 0]),
    "FP8, E5M2, one scale": lambda: cast("F8_E5M2", scaled=True),
    "FP8, E4M3FNUZ, one scale": lambda: cast("F8_E4M3FNUZ", scaled=True),
    "FP8, E5M2FNUZ, one scale": lambda: cast("F8_E5M2FNUZ", scaled=True),
    "compressed-tensors, 4 bits": lambda: compressed_integers(zero_points=False, in_order=True),
    "compressed-tensors, 4 bits, zero points": lambda: compressed_integers(zero_points=True, in_order=True),
    "compressed-tensors, 4 bits, sorted columns": lambda: compressed_integers(zero_points=False, in_order=False),
    "compressed-tensors, a layer with bits of its own": lambda: other_settings(
        compressed_integers(zero_points=False, in_order=True), bits=8
    ),
    "compressed-tensors, 8 bits": compressed_bytes,
    "compressed-tensors, 8 bits, groups": lambda: bytes_in_groups(sorted_columns=False),
    "compressed-tensors, 8 bits, sorted columns": lambda: bytes_in_groups(sorted_columns=True),
    "compressed-tensors, one zero point": one_zero_point,
    "compressed-tensors, 3 bits": lambda: compressed_of_bits(3, stream, zero_points=False),
    "compressed-tensors, 3 bits, zero points": lambda: compressed_of_bits(3, stream, zero_points=True),
    "compressed-tensors, 6 bits": lambda: compressed_of_bits(6, stream, zero_points=False),
    "compressed-tensors, 3 bits, unfilled words": lambda: compressed_of_bits(3, unfilled, zero_points=True),
    "compressed-tensors, 5 bits, unfilled words": lambda: compressed_of_bits(5, unfilled, zero_points=False),
    "NVFP4 of compressed-tensors": lambda: fp4(16, "weight_packed", divided=True),
    "NVFP4 of ModelOpt": lambda: fp4(16, "weight", multiplied=True),
    "MXFP4": lambda: fp4(32, "weight"),
    "MXFP4 of compressed-tensors": lambda: fp4(32, "weight_packed"),
    "GPTQ": lambda: gptq("gptq"),
    "GPTQ, sorted columns": lambda: gptq("gptq", shuffled=True),
    "GPTQ, second version": lambda: gptq("gptq_v2"),
    "GPTQ, symmetric": lambda: gptq("gptq", symmetric=True),
    "GPTQ, symmetric, nothing subtracted": lambda: gptq("gptq", symmetric=True, less_one=False),
    "GPTQ, a layer with bits of its own": lambda: other_settings(gptq("gptq"), bits=8),
    "GPTQ, a layer with bits of its own, columns in order": lambda: lacking(
        other_settings(gptq("gptq"), bits=8), "g_idx"
    ),
    "GPTQ of AutoRound": lambda: other_settings(
        gptq("gptq"), quant_method="auto-round", packing_format="auto_round:auto_gptq"
    ),
    "GPTQ of AutoRound, zeros as they are": lambda: other_settings(
        gptq("gptq_v2"), quant_method="auto-round", packing_format="auto_round:gptqmodel", checkpoint_format=None
    ),
    "GPTQ of AutoRound, zeros as they are, short name": lambda: other_settings(
        gptq("gptq_v2"), quant_method="auto-round", packing_format="auto_round", checkpoint_format=None
    ),
    "GPTQ of earlier AutoRound": lambda: other_settings(
        gptq("gptq"), quant_method="intel/auto-round", backend="auto_round:gptq:exllamav2"
    ),
    "GPTQ, second version by its other name": lambda: other_settings(
        gptq("gptq_v2"), checkpoint_format=None, format="gptq_v2"
    ),
    "AWQ": awq,
    "AWQ, settings elsewhere": lambda: without_settings(awq()),
    "GPTQ, settings elsewhere": lambda: without_settings(gptq("gptq")),
    "AWQ of AutoRound": lambda: other_settings(
        awq(), quant_method="auto-round", packing_format="auto_round:auto_awq"
    ),
    "bitsandbytes NF4": lambda: nf4(nested=False),
    "bitsandbytes NF4, scales in 8 bits": lambda: nf4(nested=True),
    "bitsandbytes 8 bits": int8_rows,
    "bitsandbytes NF4 in bfloat16": nf4_in_bf16,
    "MLX, 4 bits": lambda: mlx(4),
    "MLX, 6 bits": lambda: mlx(6),
    "MLX, a layer with bits of its own": lambda: mlx(8, own=True),
    "BitNet": lambda: bitnet(factor=False),
    "BitNet, scale as a factor": lambda: bitnet(factor=True),
    "FP8 of torchao, rows": lambda: of_torchao(fp8("weight_scale", (ROWS, 1), {}, lambda s, r, c: s[r, 0])),
}


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
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "layout 'gemv'"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:exllamav2"}, "layout 'exllamav2'"),
        ({"quant_method": "gptq", "bits": 4, "format": "marlin"}, "layout 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "layout 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "format": "gemv_fast"}, "layout 'gemv_fast'"),
        ({"quant_method": "awq", "bits": 4, "backend": "llm-awq"}, "layout 'llm-awq'"),
        ({"transform_config": {"config_groups": {"R3": {"apply": [{"location": "q_attn"}]}}}}, "transform 'R3'"),
    ],
)
def test_bits_that_cannot_be_read_are_named(settings, words, tmp_path):
    source = Checkpoint(write(tmp_path / "model", gptq("gptq")[0], {"quantization_config": settings}))
    with pytest.raises(UnsupportedModel, match=words):
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
        ({f"{BASE}._weight_qdata": ("I8", np.zeros((64, 64), np.int8)),
          f"{BASE}._weight_scale": ("F32", np.ones((64, 1), np.float32))}, "torchao", UnsupportedModel,
         "torchao, stored as I8"),
    ],
    ids=["Quark int4", "Quark int8", "FP-Quant", "EETQ", "torchao int8"],
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


def test_a_tensor_without_a_rule_is_shown_with_its_quantization(tmp_path):
    tensors, config = bundled(tmp_path / "model")
    name = "model.layers.0.mlp.up_proj"
    del tensors[f"{name}.weight"]
    tensors[f"{name}.W_q"] = ("U8", np.zeros((8, 8), np.uint8))
    config["quantization_config"] = {"quant_method": "hqq"}
    source = Checkpoint(write(tmp_path / "model", tensors, config))
    with pytest.raises(UnsupportedModel, match=r"no rule for the tensor .*W_q' \(config.json .* with hqq\)"):
        model_recipe(source)


def test_unknown_formats_are_named(tmp_path):
    tensors: Stored = {f"{BASE}.weight": ("U8", np.zeros((4, 4), np.uint8))}
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(UnsupportedModel, match=r"q_proj.weight is quantized in a way.*hqq"):
        list(source.names)


def bundled(folder: Path) -> tuple[Stored, dict]:
    """The tensors of the bundled model and its configuration; everything else is copied."""
    shutil.copytree(SPARK_HF, folder)
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    plain = Checkpoint(SPARK_HF)
    tensors: Stored = {}
    for name in plain.names:
        info = plain.info(name)
        rows = plain.rows(name, 0, info.num_values // info.shape[-1])
        tensors[name] = (info.dtype, rows.reshape(info.shape))
    return tensors, json.loads((folder / "config.json").read_text())


def in_shards(folder: Path, tensors: Stored, config: dict) -> None:
    """Every second tensor in a second file, with an index."""
    where = {name: f"model-{number % 2 + 1:05}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for shard in sorted(set(where.values())):
        write(folder, {name: tensors[name] for name in tensors if where[name] == shard}, config)
        (folder / "model.safetensors").rename(folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def int4_folder(folder: Path) -> Path:
    """The bundled model, its layers in compressed-tensors' 4 bits."""
    tensors, config = bundled(folder)
    for name, (_, values) in list(tensors.items()):
        if ".layers." not in name or values.ndim != 2:
            continue
        del tensors[name]
        blocks = values.astype(np.float32).reshape(len(values), -1, 32)
        scales = bf16(np.abs(blocks).max(axis=2) / 7)
        codes = np.clip(np.rint(blocks / bf16_to_f32(scales)[:, :, None]), -8, 7).reshape(values.shape) + 8
        base = name.removesuffix(".weight")
        tensors |= {f"{base}.weight_packed": ("I32", nibbles(codes)), f"{base}.weight_scale": ("BF16", scales)}
    weights = {"num_bits": 4, "group_size": 32}
    config["quantization_config"] = {"config_groups": {"group_0": {"weights": weights}}}
    return write(folder, tensors, config)


@pytest.mark.native
def test_a_folder_of_int4_becomes_a_file_whose_grid_is_kept(tmp_path):
    folder, out = int4_folder(tmp_path / "model"), tmp_path / "out.gguf"
    done = convert(ConvertRequest(folder=folder, out=out), lambda *_: None)
    assert done.float_type == "BF16"
    assert "4-bit integers: what that lost cannot be restored" in done.notes[0]
    exact = find_exact_types(ExactRequest(source=out), lambda *_: None).types
    layers = [n for n in SourceWeights(out).names if n.startswith("blk.") and "norm" not in n]
    assert layers
    assert {n for n in exact if n.startswith("blk.")} == set(layers)
    assert all(types[0] == "Q4_0" for types in exact.values())
    found = find_exact_types(ExactRequest(source=folder), lambda *_: None).types
    assert {n: types[0] for n, types in found.items()} == dict.fromkeys(exact, "Q4_0")


@pytest.mark.native
@pytest.mark.process
def test_a_plan_of_a_folder_knows_its_grid_before_the_conversion(tmp_path):
    request = QuantizeRequest(
        source=int4_folder(tmp_path / "model"),
        out=tmp_path / "out.gguf",
        goal=SizeTarget(kind="bpw", bpw=8.0),
        calibration=CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=tmp_path / "cache",
        tier="instant",
        plan_only=True,
    )
    report = quantize(request, lambda _: None, lambda: False)
    layers = [t for t in report.plan.tensors if t.name.startswith("blk.") and "norm" not in t.name]
    assert layers
    assert {(t.qtype, t.exact) for t in layers} == {("Q4_0", "Q4_0")}
    assert "weights are stored as 4-bit integers" in " ".join(report.warnings)
    assert report.formats == {"4-bit integers": len(layers)}


@pytest.mark.native
def test_a_folder_on_a_grid_is_found_by_the_rows_of_each_layer(tmp_path):
    """Floats trained for 4 bits: the heads of q and k are permuted, and one layer is on no grid."""
    tensors, config = bundled(tmp_path / "model")
    for name, (_, values) in list(tensors.items()):
        if ".layers." in name and values.ndim == 2 and ".layers.1." not in name:
            blocks = values.astype(np.float32).reshape(-1, 32)
            steps = bf16_to_f32(bf16(np.abs(blocks).max(axis=1, keepdims=True) / 7))
            trained = (np.clip(np.rint(blocks / steps), -7, 7) * steps).reshape(values.shape)
            tensors[name] = ("BF16", bf16(trained))
    write(tmp_path / "model", tensors, config)
    found = find_exact_types(ExactRequest(source=tmp_path / "model"), lambda *_: None).types
    planned = prepare(ConvertRequest(folder=tmp_path / "model", out=tmp_path / "out.gguf"), lambda *_: None)
    layers = [t.name for t in planned.spec.tensors if t.name.startswith("blk.") and "norm" not in t.name]
    assert sorted(found) == sorted(n for n in layers if not n.startswith("blk.1."))
    assert {types[0] for types in found.values()} == {"Q4_0"}


@pytest.mark.native
def test_a_gptq_folder_with_added_biases_becomes_a_file(tmp_path):
    """As AutoGPTQ stored Qwen2: every weight has a bias of zeros, for which llama.cpp's Qwen2 has no tensor."""
    tensors, config = bundled(tmp_path / "model")
    values: dict[str, np.ndarray] = {}
    for name, (_, stored) in list(tensors.items()):
        if ".layers." not in name or stored.ndim != 2:
            continue
        del tensors[name]
        rows, base = len(stored), name.removesuffix(".weight")
        blocks = stored.astype(np.float32).reshape(rows, -1, 32)
        scales = (np.abs(blocks).max(axis=2) / 7).astype(np.float16)
        codes = np.clip(np.rint(blocks / scales.astype(np.float32)[:, :, None]), -8, 7)
        values[name] = (codes * scales.astype(np.float32)[:, :, None]).astype(np.float16).reshape(stored.shape)
        tensors |= {
            f"{base}.qweight": ("I32", np.ascontiguousarray(nibbles(codes.reshape(stored.shape) + 8).T)),
            f"{base}.qzeros": ("I32", nibbles(np.full(scales.T.shape, 7))),
            f"{base}.scales": ("F16", np.ascontiguousarray(scales.T)),
            f"{base}.g_idx": ("I32", (np.arange(stored.shape[1]) // 32).astype(np.int32)),
            f"{base}.bias": ("F16", np.zeros(rows, np.float16)),
        }
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    out = tmp_path / "out.gguf"
    convert(ConvertRequest(folder=write(tmp_path / "model", tensors, config), out=out), lambda *_: None)
    made = SourceWeights(out)
    assert [name for name in made.names if name.endswith("bias")] == []
    expected = values["model.layers.1.mlp.up_proj.weight"].astype(np.float32)
    assert np.array_equal(made.rows("blk.1.ffn_up.weight"), expected)


@pytest.mark.native
@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_cast_to_fp8_becomes_a_file_of_its_values(sharded, tmp_path):
    """Norms included, with the head tied to the embedding, as many uploads are."""
    tensors, config = bundled(tmp_path / "model")
    assert "lm_head.weight" not in tensors
    values = np.array([small_float(c, 4, 7) for c in range(127)], np.float32)
    for name, (_, stored) in tensors.items():
        sizes = np.abs(stored.astype(np.float32))
        nearest = np.searchsorted((values[1:] + values[:-1]) / 2, sizes).astype(np.uint8)
        tensors[name] = ("F8_E4M3", nearest | (np.signbit(stored).astype(np.uint8) << np.uint8(7)))
    (in_shards if sharded else write)(tmp_path / "model", tensors, config)
    out = tmp_path / "out.gguf"
    done = convert(ConvertRequest(folder=tmp_path / "model", out=out), lambda *_: None)
    assert f"{len(tensors)} weights are stored as FP8" in done.notes[0]
    made = SourceWeights(out)
    for theirs, ours in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
    ):
        codes = tensors[theirs][1]
        expected = values[codes & 127] * np.where(codes & 128, -1, 1)
        assert np.array_equal(made.rows(ours), expected.reshape(-1, codes.shape[-1])), theirs


@pytest.mark.native
@pytest.mark.parametrize("requested", ["auto", "BF16"])
def test_each_tensor_keeps_its_16_bit_type(requested, tmp_path):
    """Integers with F16 scales in a folder of BF16: BF16 would round them, and a step in F16 would be lost."""
    tensors, config = bundled(tmp_path / "model")
    steps = {}
    for name, (_, stored) in list(tensors.items()):
        tensors[name] = ("BF16", bf16(stored))
        if name.endswith("mlp.up_proj.weight"):
            blocks = stored.astype(np.float32).reshape(len(stored), -1, 32)
            scales = (np.abs(blocks).max(axis=2) / 7).astype(np.float16)
            steps[name] = scales.astype(np.float32)
            codes = np.clip(np.rint(blocks / steps[name][:, :, None]), -8, 7).reshape(stored.shape) + 8
            base = tensors.pop(name) and name.removesuffix(".weight")
            tensors |= {f"{base}.weight_packed": ("I32", nibbles(codes)), f"{base}.weight_scale": ("F16", scales)}
    weights = {"num_bits": 4, "group_size": 32}
    config["quantization_config"] = {"config_groups": {"group_0": {"weights": weights}}}
    config["torch_dtype"] = config["dtype"] = "bfloat16"
    write(tmp_path / "model", tensors, config)
    out = tmp_path / "out.gguf"
    request = ConvertRequest(folder=tmp_path / "model", out=out, float_type=requested)
    assert convert(request, lambda *_: None).float_type == "BF16"
    planned = prepare(request, lambda *_: None)
    made, plain = SourceWeights(out), Checkpoint(tmp_path / "model")
    assert planned.file_bytes == out.stat().st_size
    assert {t.name: t.qtype for t in planned.spec.tensors} == {n: made.source_qtype(n) for n in made.names}
    assert steps
    for name, step in steps.items():
        ours = f"blk.{name.split('.')[2]}.ffn_up.weight"
        expected = plain.rows(name, 0, len(step))
        assert expected.dtype == np.float16
        stored = made.source_qtype(ours)
        assert stored == ("F16" if requested == "auto" else "BF16")
        assert np.array_equal(made.rows(ours), expected.astype(np.float32)) == (requested == "auto")
        packed = pack_exactly(made.rows(ours), "Q4_0", GgmlType[stored]).reshape(len(step), -1, 18)
        found = np.abs(packed[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float32))
        assert ((found == step).mean() > 0.8) == (requested == "auto")
    assert made.source_qtype("token_embd.weight") == "BF16"


def wide(kind: str) -> tuple[Stored, dict]:
    """16 million values in one matrix: as they are, or in 4 bits."""
    if kind == "BF16":
        return {f"{BASE}.weight": ("BF16", np.zeros((4096, 4096), np.uint16))}, {}
    tensors: Stored = {
        f"{BASE}.qweight": ("I32", np.zeros((512, 4096), np.int32)),
        f"{BASE}.qzeros": ("I32", np.zeros((32, 512), np.int32)),
        f"{BASE}.scales": ("F16", np.ones((32, 4096), np.float16)),
    }
    return tensors, {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BF16", "GPTQ"])
def test_memory_of_a_conversion_does_not_grow_with_the_tensors(kind, tmp_path):
    tensors, settings = wide(kind)
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    name, num_bytes = f"{BASE}.weight", 0
    tensor = OutTensor("blk.0.attn_q.weight", (4096, 4096), lambda: source.chunks(name, 4096))
    tracemalloc.start()
    try:
        for chunk in _encoded(source, tensor, GgmlType.BF16):
            num_bytes += len(chunk.tobytes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_bytes == 2 * 4096 * 4096
    assert peak < 96 << 20


def test_wide_floats_are_named_as_such(tmp_path):
    source = Checkpoint(write(tmp_path / "model", {f"{BASE}.weight": ("F64", np.ones((4, 4)))}, {}))
    with pytest.raises(UnsupportedModel, match="is stored as F64"):
        source.rows(f"{BASE}.weight", 0, 4)


def test_a_folder_of_a_gguf_model_is_pointed_to_its_file(tmp_path):
    (tmp_path / "model-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadFile, match=r"config.json is missing; .*model-00001-of-00002.gguf"):
        Checkpoint(tmp_path)
