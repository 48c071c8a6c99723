"""Weights of one layer as each format of few bits stores them, and the values that its library computes.

Each value is computed again from the stored codes, one at a time, by the format's formula. The same against the
libraries themselves: tests/optin/low_precision.py.
"""

import json
from pathlib import Path

import numpy as np

from quantize.convert.checkpoint import bf16_to_f32, f32_to_bf16

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


def awq_by_rows():
    """AutoAWQ's layout "gemv": zeros and scales have room for eight groups, of which two are used."""
    codes, zeros = rng().integers(0, 16, (ROWS, COLUMNS)), rng().integers(0, 16, (ROWS, 8))
    scales = rng().uniform(0.001, 0.02, (ROWS, 8)).astype(np.float16)
    zeros[:, 2:], scales[:, 2:] = 0, 0
    tensors: Stored = {
        f"{BASE}.qweight": ("I32", nibbles(codes)),
        f"{BASE}.qzeros": ("I32", nibbles(zeros)),
        f"{BASE}.scales": ("F16", scales),
    }
    value = each(lambda r, c: np.float32(codes[r, c] - zeros[r, c // 32]) * np.float32(scales[r, c // 32]))
    return tensors, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, "F16", value


def pairs_of_rows(*, factors: bool):
    """ModelOpt's signed 4 bits: two rows in a byte; `factors`: the inputs are multiplied first (AWQ)."""
    codes, scales = rng().integers(-8, 8, (ROWS, COLUMNS)), rng().uniform(0.001, 0.02, (ROWS, 2)).astype(np.float32)
    packed = (codes[0::2] & 15) | (codes[1::2] & 15) << 4
    tensors: Stored = {
        f"{BASE}.weight": ("U8", packed.astype(np.uint8)),
        f"{BASE}.weight_scale": ("F32", scales),
    }
    inputs = np.ones(COLUMNS, np.float32)
    if factors:
        stored = bf16(rng().uniform(0.5, 2, COLUMNS))
        tensors[f"{BASE}.pre_quant_scale"] = ("BF16", stored)
        inputs = bf16_to_f32(stored)
    value = each(lambda r, c: np.float32(codes[r, c]) * scales[r, c // 32] * inputs[c])
    return tensors, {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "BF16", value


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
    names = {
        "weight": "_weight_qdata", "weight_scale": "_weight_scale", "weight_zero_point": "_weight_zero_point",
    }  # fmt: skip
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
    "AWQ, by rows": awq_by_rows,
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
    "ModelOpt, 4 bits": lambda: pairs_of_rows(factors=False),
    "ModelOpt, 4 bits, factors of inputs": lambda: pairs_of_rows(factors=True),
    "8 bits of torchao, rows": lambda: of_torchao(compressed_bytes()),
    "8 bits of torchao, groups with zero points": lambda: of_torchao(bytes_in_groups(sorted_columns=False)),
    "FP8 of torchao, rows": lambda: of_torchao(fp8("weight_scale", (ROWS, 1), {}, lambda s, r, c: s[r, 0])),
}
