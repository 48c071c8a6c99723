"""Weights that a folder stores in few bits, expanded to the floats that the format's own library computes.

Floats of 8 and 4 bits (`small_floats`), integers of compressed-tensors, GPTQ, AutoRound, AWQ and MLX, BitNet and
bitsandbytes. Values are multiplied in float32 and rounded once to the type that the library returns, so that they
are the library's to the last bit.

Sources: compressed_tensors, quantization/lifecycle/forward.py and compressors; gptqmodel,
nn_modules/qlinear/__init__.py and utils/model.py; auto_round_extension, torch/qlinear_torch.py and
qlinear_torch_zp.py; awq, utils/packing_utils.py; transformers, integrations/bitnet.py; bitsandbytes, functional.py.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from devices.msgspec_lock import learned
from quantize.convert.small_floats import (
    FLOAT_DTYPES,
    FP8_TABLES,
    Array,
    BlockScales,
    FewBitFolder,
    Floats,
    Packed,
    Read,
    cast,
    fp4,
    fp8,
    group_numbers,
    is_cast,
    matrix_shape,
    setting_of_groups,
)
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

_INT32_BITS: Final = 32
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # columns of the eight 4-bit values of an integer, lowest bits first
_INT8_STEPS: Final = 127  # largest code of bitsandbytes' rows
_TERNARY_IN_BYTE: Final = 4
# Endings of tensors that only describe others.
_SIDE: Final = (
    "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_zero_point",
    "weight_shape", "weight_g_idx", "input_scale", "input_global_scale", "input_zero_point", "activation_scale",
    "output_scale", "output_zero_point", "_weight_scale", "g_idx", "qzeros", "scales", "biases", "SCB",
    "weight_format", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4",
)  # fmt: skip
_CACHE_SCALES: Final = (
    ".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale",
)  # fmt: skip
_MODULE_ENDINGS: Final = {"weight_packed", "qweight", "_weight_qdata"}  # stored in place of `weight`


def packed_weights(
    where: str, tensors: Mapping[str, SafetensorInfo], config: Mapping[str, Any], read: Read
) -> tuple[dict[str, Packed], frozenset[str]]:
    """The weights that are stored in few bits, by the name of the float weight, and the tensors they consist of.

    Raises: UnsupportedModel: a format that cannot be read. BadWeights: sizes that do not fit together.
    """
    folder = FewBitFolder(where, tensors, quantization_settings(config), _float_dtype(config), read)
    _check_transforms(folder)
    if is_cast(folder):
        whole = {name: cast(folder, info) for name, info in tensors.items() if info.dtype in FP8_TABLES}
        return whole, frozenset(whole)
    weights: dict[str, Packed] = {}
    used: set[str] = set()
    for name, info in tensors.items():
        base, _, ending = name.rpartition(".")
        base = f"{base}." if base else ""
        # bitsandbytes may store bytes as floats of 16 bits.
        few_bits = info.dtype not in {*FLOAT_DTYPES, "F64"} or f"{base}weight.absmax" in tensors
        if not (ending in _MODULE_ENDINGS or (ending == "weight" and few_bits)):
            continue
        packed = _of_one(folder, base, name, info)
        weights[packed.info.name] = packed
        used.add(name)
    for name in weights:
        base = name.removesuffix("weight")
        used |= {f"{base}{side}" for side in _SIDE}
    if weights:
        used |= {n for n in tensors if n.endswith(_CACHE_SCALES)}
    return weights, frozenset((used | _added_biases(folder, weights)) & tensors.keys())


def quantization_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a quantized folder; empty without any."""
    inner = config.get("text_config")
    levels = (config, inner) if isinstance(inner, dict) else (config,)
    keys = ("quantization_config", "compression_config", "quantization")  # the last is MLX's
    stated = (level.get(key) for level in levels for key in keys)
    return next((settings for settings in stated if settings and isinstance(settings, dict)), {})


def _check_transforms(folder: FewBitFolder) -> None:
    """Raises: UnsupportedModel: inputs must be rotated when the model runs (QuIP, SpinQuant)."""
    transforms = folder.settings.get("transform_config")
    schemes = transforms.get("config_groups") if isinstance(transforms, dict) else None
    for name, scheme in (schemes if isinstance(schemes, dict) else {}).items():
        for apply in scheme.get("apply", ()):
            if apply.get("location") not in {"weight_input", "weight_output"}:
                reason = f"transform {str(name)[:40]!r} rotates inputs when the model runs; llama.cpp does not"
                raise UnsupportedModel(folder.where, reason)


def _float_dtype(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config")
    stated = config.get("dtype") or config.get("torch_dtype")
    if not stated and isinstance(inner, dict):
        stated = inner.get("dtype") or inner.get("torch_dtype")
    return {"float16": "F16", "float32": "F32"}.get(str(stated).removeprefix("torch."), "BF16")


def _added_biases(folder: FewBitFolder, weights: Mapping[str, Packed]) -> set[str]:
    """Biases of zeros, which AutoGPTQ adds to all layers; the model has none, and llama.cpp refuses them."""
    names_of_part: dict[str, list[str]] = {}
    for weight in weights.values():
        bias = f"{weight.info.name.removesuffix('weight')}bias"
        if weight.stored.endswith("qweight") and folder.has(bias):
            names_of_part.setdefault(re.sub("[0-9]+", "", bias), []).append(bias)
    return {
        name
        for names in names_of_part.values()
        if not any(folder.floats(bias).any() for bias in names)
        for name in names
    }


def _of_one(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """One weight, decoded with its scales and similar tensors, which have the same base name."""
    if info.dtype in FP8_TABLES:
        return fp8(folder, base, name, info)
    if name.endswith(".qweight"):
        if folder.has(f"{base}scales") and info.dtype != "U8":  # bytes of FP-Quant
            return (_awq if _is_awq(folder, base, name) else _gptq)(folder, base, name, info)
    else:
        for dtype, ending, companion, read in (
            (info.dtype, "weight", "weight.absmax", _bitsandbytes),
            ("I8", "weight", "SCB", _int8_rows),
            ("I8", "weight", "weight_scale", _integers),
            ("I32", "weight_packed", "weight_scale", _packed_integers),
            ("U32", "weight", "scales", _mlx),
            ("U8", "", "weight_scale", _ternary if folder.method == "bitnet" else fp4),
        ):
            if info.dtype == dtype and name.endswith(ending) and folder.has(base + companion):
                return read(folder, base, name, info)
    method = folder.method or "unknown"
    reason = f"{name} is quantized in a way that cannot be read ({method}, stored as {info.dtype})"
    raise UnsupportedModel(folder.where, reason)


# Integers.


def unpack_integers(packed: Array, bits: int, *, dense: bool = True) -> npt.NDArray[np.int32]:
    """Unsigned values of some bits, lowest first, along a new last axis merged with the old one.

    If no whole number of them fills a word, they continue in the next one (`dense`) or leave its last bits unused.
    """
    words, mask = packed.view(np.uint32), (1 << bits) - 1
    if _INT32_BITS % bits == 0 or not dense:
        shifts = np.arange(_INT32_BITS // bits, dtype=np.uint32) * np.uint32(bits)
        values = (words[..., None] >> shifts) & np.uint32(mask)
        return values.reshape(*packed.shape[:-1], -1).astype(np.int32)
    count = packed.shape[-1]
    starts = np.arange(count * _INT32_BITS // bits) * bits
    first = starts // _INT32_BITS
    pairs = words[..., first].astype(np.uint64)
    pairs |= words[..., np.minimum(first + 1, count - 1)].astype(np.uint64) << np.uint64(_INT32_BITS)
    return (pairs >> (starts % _INT32_BITS).astype(np.uint64) & np.uint64(mask)).astype(np.int32)


def _words(values: int, bits: int, *, dense: bool = True) -> int:
    """Number of words that hold so many values."""
    return -(-values * bits // _INT32_BITS) if dense else -(-values // (_INT32_BITS // bits))


def _stated_bits(folder: FewBitFolder) -> Any:
    return folder.settings.get("bits") or folder.settings.get("w_bit") or setting_of_groups(folder, "num_bits")


def _bits(folder: FewBitFolder, key: str, words: int, values: int, possible: tuple[int, ...]) -> int:
    """Bits of a value: `values` (0: unknown) are stored in `words`; settings may differ between layers."""
    stated = _stated_bits(folder)
    fitting = [n for n in possible if not values or _words(values, n) == words]
    if stated in fitting:
        return int(stated)
    if not values or not fitting:
        bits_text = f"{_INT32_BITS * words / values:.3g}" if values else str(stated)[:20]
        listed = ", ".join(map(str, possible[:-1]))
        reason = f"{key} has {bits_text} bits; weights of {listed} and {possible[-1]} bits can be read"
        raise UnsupportedModel(folder.where, reason)
    return fitting[0]


def _check_words(folder: FewBitFolder, *names: str) -> None:
    """Raises: BadWeights: packed integers are missing or not stored in 32-bit words."""
    for name in names:
        if not folder.has(name):
            raise BadWeights(folder.where, name, "it is missing")
        if folder.tensors[name].dtype != "I32":
            raise BadWeights(folder.where, name, f"stored as {folder.tensors[name].dtype}, expected I32")


def _check_layout(folder: FewBitFolder, name: str, stated: Any, layouts: tuple[str, ...]) -> None:
    """Raises: UnsupportedModel: the words are in an order of certain kernels."""
    if stated is not None and str(stated).lower() not in layouts:
        raise UnsupportedModel(folder.where, f"{name} is in the layout {str(stated)[:40]!r}, which cannot be read")


def _zero_points(folder: FewBitFolder, zero: str) -> Floats:
    """Zero points in one byte each. Raises: UnsupportedModel: another type."""
    if folder.tensors[zero].dtype != "I8":
        raise UnsupportedModel(folder.where, f"{zero} is stored as {folder.tensors[zero].dtype}, expected I8")
    values: Floats = folder.read(zero, None).view(np.int8).astype(np.float32)
    return values


def _integers(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """8-bit integers of compressed-tensors, with or without zero points."""
    scale, zero = f"{base}weight_scale", f"{base}weight_zero_point"
    shape = matrix_shape(folder, name, info.shape)
    scales = BlockScales(folder, scale, shape, f"{base}weight_g_idx", by_rows=True)

    def rows(part: slice) -> Floats:
        codes = folder.read(name, part).view(np.int8).astype(np.float32)
        if folder.has(zero):
            codes -= scales.spread(_zero_points(folder, zero), part)
        values: Floats = codes * scales.spread(folder.floats(scale), part)
        return values

    return folder.packed(name, info.shape, scale, "8-bit integers", rows)


def _packed_integers(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """compressed-tensors' integers in 32-bit words along the row, each with half of its range added."""
    scale, zero, order = f"{base}weight_scale", f"{base}weight_zero_point", f"{base}weight_g_idx"
    num_rows, words = matrix_shape(folder, name, info.shape)
    _check_layout(folder, name, folder.settings.get("format"), ("pack-quantized", "mixed-precision"))
    stored = folder.tensors[scale].shape
    width = 0
    if folder.has(f"{base}weight_shape"):
        stated = folder.read(f"{base}weight_shape", None).reshape(-1).tolist()
        if stated[:-1] != [num_rows] or not 0 < stated[-1] <= words * _INT32_BITS:
            raise BadWeights(
                folder.where, name, f"its shape is stated as {stated}, stored are {num_rows} x {words} words"
            )
        width = stated[-1]
    # Earlier versions left the bits of a word unused that no whole value fills.
    bits, dense = _stated_bits(folder), False
    if bits not in (3, 5, 6, 7) or not width or words != _words(width, bits, dense=False):
        bits, dense = _bits(folder, name, words, width, (2, 3, 4, 5, 6, 7, 8)), True
    width = width or words * _INT32_BITS // bits
    groups = stored[1] if len(stored) == 2 else 1
    if stored and stored[0] not in {1, num_rows}:
        raise BadWeights(folder.where, scale, f"{stored} scales do not divide a weight of {num_rows} x {width}")
    group = group_numbers(folder, order, width, groups, setting_of_groups(folder, "group_size"))
    half = 1 << bits - 1

    def zeros_of(part: slice) -> Array:
        if folder.tensors[zero].dtype != "I32":  # one for the tensor, which is not packed
            return _zero_points(folder, zero).reshape(1, 1)
        # Packed along the columns of scales, so down the rows.
        packed = np.ascontiguousarray(folder.read(zero, None).reshape(-1, groups).T)
        zeros: Array = (unpack_integers(packed, bits, dense=dense)[:, :num_rows] - half).T[part]
        return zeros

    def rows(part: slice) -> Floats:
        words_of_rows = folder.read(name, part)
        codes = (unpack_integers(words_of_rows, bits, dense=dense)[:, :width] - half).astype(np.float32)
        scales = folder.floats(scale).reshape(-1, groups)
        mine = scales[part] if len(scales) > 1 else scales
        if folder.has(zero):
            codes -= zeros_of(part)[:, group].astype(np.float32)
        values: Floats = codes * mine[:, group]
        return values

    return folder.packed(name, (num_rows, width), scale, f"{bits}-bit integers", rows)


def _mlx(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """MLX: words of values along the row; each group of columns has a scale and a minimum."""
    scale, low = f"{base}scales", f"{base}biases"
    num_rows, words = matrix_shape(folder, name, info.shape)
    of_layer = folder.settings.get(base.removesuffix("."))
    stated = of_layer if isinstance(of_layer, dict) else folder.settings
    mode, bits, size = stated.get("mode") or "affine", stated.get("bits"), stated.get("group_size")
    if mode != "affine" or bits not in (2, 3, 4, 5, 6, 8) or not isinstance(size, int) or size < 1:
        form = f"{str(mode)[:20]} of {str(bits)[:20]} bits"
        reason = f"{name} is stored by MLX as {form}; affine of 2 to 8 bits can be read"
        raise UnsupportedModel(folder.where, reason)
    columns = words * _INT32_BITS // bits
    for part_name in (scale, low):
        shape = folder.tensors[part_name].shape if folder.has(part_name) else ()
        if shape != (num_rows, columns // size) or columns % size or words * _INT32_BITS % bits:
            reason = f"{shape} does not divide a weight of {num_rows} x {columns}"
            raise BadWeights(folder.where, part_name, reason)

    def rows(part: slice) -> Floats:
        codes = unpack_integers(folder.read(name, part), bits).astype(np.float32)
        steps, lows = (np.repeat(folder.floats(each, part), size, axis=1) for each in (scale, low))
        values: Floats = codes * steps + lows
        return values

    return folder.packed(name, (num_rows, columns), scale, f"MLX, {bits} bits", rows)


# GPTQ, AutoRound and AWQ.

# Words of 32 zero points of 3 bits that are half of the range, by the three programs that store them: as they are;
# less one; and as GPTQModel does, whose constants do not meet the values.
_HALF: Final = tuple(sum(4 << 3 * i for i in range(32)) >> 32 * k & 0xFFFFFFFF for k in range(3))
_HALF_LESS_ONE: Final = tuple(sum(3 << 3 * i for i in range(32)) >> 32 * k & 0xFFFFFFFF for k in range(3))
_GPTQMODEL_ONES: Final = (0x24924924, 0x92492492, 0x49249249)
_HALVES_OF_3_BITS: Final = np.array(
    [_HALF, _HALF_LESS_ONE, [(w - one) % (1 << 32) for w, one in zip(_HALF, _GPTQMODEL_ONES, strict=True)]],
    np.uint32,
)


def _is_awq(folder: FewBitFolder, base: str, name: str) -> bool:
    """Whether words are in AWQ's order, otherwise in GPTQ's. AutoRound writes both."""
    if not folder.method:  # older folders have their settings elsewhere; only AWQ packs along the outputs
        return folder.tensors[name].shape[-1:] != folder.tensors[f"{base}scales"].shape[-1:]
    if "auto-round" not in folder.method:
        return folder.method == "awq"
    return _autoround_layout(folder, name) == "awq"


def _autoround_layout(folder: FewBitFolder, name: str) -> str:
    """Order of words in a folder of AutoRound: "gptq", "gptq_v2" or "awq". Raises: UnsupportedModel."""
    stated = str(folder.settings.get("packing_format") or folder.settings.get("backend")).lower()
    parts = set(stated.split(":"))
    if parts & {"auto_awq", "awq"}:
        return "awq"
    if parts & {"auto_gptq", "gptq"}:
        return "gptq"
    _check_layout(folder, name, stated.rpartition(":")[2], ("gptqmodel", "auto_round"))
    return "gptq_v2"


def _gptq_version(folder: FewBitFolder, name: str) -> str:
    """How zeros are stored: "gptq" (each minus one) or "gptq_v2". Raises: UnsupportedModel: another layout."""
    if "auto-round" in folder.method:
        return _autoround_layout(folder, name)
    stated = folder.settings.get("checkpoint_format") or folder.settings.get("format")
    if folder.settings.get("is_marlin_format"):
        stated = "marlin"
    _check_layout(folder, name, stated, ("gptq", "gptq_v2"))
    return str(stated or "gptq").lower()


def _gptq(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """GPTQ: (columns / 8, rows) words, scales (groups, rows), zeros packed along the rows."""
    scale, zero, order = f"{base}scales", f"{base}qzeros", f"{base}g_idx"
    words, num_rows = matrix_shape(folder, name, info.shape)
    _check_words(folder, name, *([zero] if folder.has(zero) else []))
    less_one = _gptq_version(folder, name) == "gptq"
    if folder.settings.get("desc_act") and folder.settings.get("group_size") != -1 and not folder.has(order):
        raise BadWeights(
            folder.where, name, "its columns are sorted (desc_act), but their order (g_idx) is missing"
        )
    values = 0
    if folder.has(order):
        values = folder.tensors[order].num_values
    elif folder.has(zero) and (packed := folder.tensors[zero].shape[-1:]) and packed[0]:
        values = words * num_rows // packed[0]  # zeros have as many bits
    bits = _bits(folder, name, words, values, (2, 4, 8) if words % 3 or values % _INT32_BITS else (2, 3, 4, 8))
    columns = words * _INT32_BITS // bits
    groups = _groups(folder, scale, num_rows)
    group = group_numbers(folder, order, columns, groups, folder.settings.get("group_size"))
    if bits == 3 and folder.has(zero):
        _gptq_zeros(folder, zero, bits, less_one=less_one)  # refused now, not after part of the file

    def rows(part: slice) -> Floats:
        codes = unpack_integers(np.ascontiguousarray(folder.read(name, None)[:, part].T), bits)
        scales = folder.floats(scale)[:, part].T
        zeros = np.full((1, groups), 1 << bits - 1, np.int32)
        packed = _gptq_zeros(folder, zero, bits, less_one=less_one) if folder.has(zero) else None
        if packed is not None:
            zeros = unpack_integers(packed, bits)[:, part].T
        values: Floats = (codes - zeros[:, group]).astype(np.float32) * scales[:, group]
        return values

    return folder.packed(name, (num_rows, columns), scale, f"GPTQ, {bits} bits", rows)


def _gptq_zeros(folder: FewBitFolder, zero: str, bits: int, *, less_one: bool) -> Array | None:
    """Words of zeros; None if each is half of the range. Files of the first version store them minus one.

    One is subtracted from every field of a whole word, so a zero of 0 borrows from the next field. Some writers
    forget the subtraction; in symmetric files the zero is half of the range, which shows it.

    Raises: UnsupportedModel: 3 bits and not symmetric, which programs store in different ways.
    """
    words = folder.read(zero, None).view(np.uint32)
    if not less_one:
        return words
    if _INT32_BITS % bits:
        if words.size % 3 or not (words.reshape(-1, 1, 3) == _HALVES_OF_3_BITS).all(axis=(0, 2)).any():
            reason = f"{zero} has zero points of 3 bits in the first version's form, in which programs differ"
            raise UnsupportedModel(folder.where, reason)
        return None
    ones = np.uint32(sum(1 << shift for shift in range(0, _INT32_BITS, bits)))
    if folder.settings.get("sym") is True and (words == ones << np.uint32(bits - 1)).all():
        return words
    return words + ones


def _groups(folder: FewBitFolder, scale: str, rows: int) -> int:
    shape = folder.tensors[scale].shape
    if len(shape) != 2 or shape[1] != rows or not shape[0]:
        raise BadWeights(folder.where, scale, f"{shape} scales do not belong to {rows} rows")
    return shape[0]


def _awq(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """AWQ: (columns, rows / 8) words whose values are interleaved, scales (groups, rows)."""
    scale, zero = f"{base}scales", f"{base}qzeros"
    columns, words = matrix_shape(folder, name, info.shape)
    _check_words(folder, name, zero)
    if folder.method == "awq":
        _check_layout(folder, name, folder.settings.get("version") or folder.settings.get("format"), ("gemm",))
        if str(folder.settings.get("backend")).lower() == "llm-awq":
            _check_layout(folder, name, "llm-awq", ())
    outputs = folder.tensors[scale].shape[-1:]
    bits = _bits(folder, name, words, outputs[0] if outputs else 0, (2, 4, 8))
    if bits != 4:
        raise UnsupportedModel(folder.where, f"{name} is AWQ of {bits} bits; AWQ of 4 bits can be read")
    num_rows = words * 8
    groups = _groups(folder, scale, num_rows)
    group = group_numbers(folder, f"{base}g_idx", columns, groups)

    def unpacked(packed: Array) -> npt.NDArray[np.int32]:
        values = unpack_integers(packed, bits).reshape(len(packed), -1, 8)
        out = np.empty_like(values)
        out[:, :, _AWQ_ORDER] = values
        return out.reshape(len(packed), -1)

    def rows(part: slice) -> Floats:
        scales = folder.floats(scale)[:, part].T
        # Whole words only: eight rows each.
        first, last = part.start // 8, -(-part.stop // 8)
        inner = slice(part.start - 8 * first, part.stop - 8 * first)
        codes = unpacked(np.ascontiguousarray(folder.read(name, None)[:, first:last]))[:, inner].T
        zeros = unpacked(np.ascontiguousarray(folder.read(zero, None)[:, first:last]))[:, inner].T
        values: Floats = (codes - zeros[:, group]).astype(np.float32) * scales[:, group]
        return values

    return folder.packed(name, (num_rows, columns), scale, f"AWQ, {bits} bits", rows)


# BitNet.


def _ternary(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """BitNet: four values of -1, 0 and 1 in a byte, each of another quarter of the rows; one scale.

    Most folders store the inverse of the scale.
    """
    scale = f"{base}weight_scale"
    quarter, width = matrix_shape(folder, name, info.shape)
    if folder.tensors[scale].num_values != 1:
        raise BadWeights(folder.where, scale, f"{folder.tensors[scale].shape} scales, expected one")
    if folder.settings.get("use_rms_norm"):
        raise UnsupportedModel(folder.where, "its layers of BitNet have norms of their own (use_rms_norm)")
    is_factor = folder.settings.get("linear_class") == "autobitlinear"

    def rows(part: slice) -> Floats:
        numbers = np.arange(part.start, part.stop)
        packed = folder.read(name, None).view(np.uint8)[numbers % quarter]
        shifts = (2 * (numbers // quarter)).astype(np.uint8)
        codes = (packed >> shifts[:, None] & np.uint8(3)).astype(np.float32) - np.float32(1)
        whole = folder.floats(scale).reshape(-1)[0]
        values: Floats = codes * whole if is_factor else codes / whole
        return values

    return folder.packed(name, (_TERNARY_IN_BYTE * quarter, width), scale, "BitNet, ternary", rows)


# bitsandbytes.


class _State(msgspec.Struct):
    blocksize: int
    shape: tuple[int, int]
    dtype: str = "bfloat16"
    nested_blocksize: int = 256
    nested_offset: float = 0.0


def _bitsandbytes(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """NF4 and FP4: two codes in a byte, the first in its high half; scales for runs of weights, 8-bit or F32."""
    kind = next((k for k in ("nf4", "fp4") if folder.has(f"{base}weight.quant_state.bitsandbytes__{k}")), None)
    if kind is None:
        raise BadWeights(folder.where, name, "its quant_state is missing")
    state_name = f"{base}weight.quant_state.bitsandbytes__{kind}"
    nested = folder.has(f"{base}weight.nested_absmax")
    parts = ["weight.quant_map", *(["weight.nested_quant_map"] if nested else [])]
    if missing := next((part for part in parts if not folder.has(base + part)), None):
        raise BadWeights(folder.where, base + missing, "it is missing")
    try:
        now = msgspec.json.decode(folder.read(state_name, None).tobytes(), type=learned(_State))
    except ValueError as error:
        raise BadWeights(folder.where, name, f"its quant_state is damaged: {error}") from error
    num_rows, width = now.shape
    stored = info.nbytes
    if min(num_rows, width, now.blocksize, now.nested_blocksize) < 1 or 2 * stored < num_rows * width:
        raise BadWeights(folder.where, name, f"its quant_state states {now.shape}, stored are {2 * stored} values")

    def rows(part: slice) -> Floats:
        first, last = part.start * width, part.stop * width
        block = slice(first // now.blocksize, -(-last // now.blocksize))
        scales = folder.read(f"{base}weight.absmax", None).reshape(-1)[block]
        if nested:
            table = folder.read(f"{base}weight.nested_quant_map", None)
            outer = folder.read(f"{base}weight.nested_absmax", None)
            at = np.arange(block.start, block.start + len(scales)) // now.nested_blocksize
            scales = table.reshape(-1)[scales] * outer.reshape(-1)[at] + np.float32(now.nested_offset)
        data = folder.read(name, None).reshape(-1).view(np.uint8)[first // 2 : -(-last // 2)]
        codes = np.stack([data >> np.uint8(4), data & np.uint8(15)], axis=-1).reshape(-1)
        codes = codes[first % 2 :][: last - first]
        where = np.arange(first, last) // now.blocksize - block.start
        values: Floats = (
            folder.read(f"{base}weight.quant_map", None).reshape(-1)[codes] * scales.astype(np.float32)[where]
        )
        return values.reshape(-1, width)

    dtype = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}.get(now.dtype, folder.dtype)
    weight = folder.packed(name, (num_rows, width), "", f"bitsandbytes, {kind.upper()}", rows)
    return msgspec.structs.replace(weight, info=msgspec.structs.replace(weight.info, dtype=dtype))


def _int8_rows(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """Bitsandbytes' 8 bits: one scale for each row."""
    scale, layout = f"{base}SCB", f"{base}weight_format"
    num_rows, _ = matrix_shape(folder, name, info.shape)
    if folder.tensors[scale].num_values != num_rows:
        raise BadWeights(folder.where, scale, f"{folder.tensors[scale].shape} scales for {num_rows} rows")
    if folder.has(layout) and folder.read(layout, None).any():
        raise UnsupportedModel(folder.where, f"{name} is stored in tiles for certain GPUs; rows can be read")

    def rows(part: slice) -> Floats:
        scales = folder.read(scale, None).reshape(-1)[part].astype(np.float32)
        values: Floats = folder.read(name, part).view(np.int8).astype(np.float32) * scales[:, None]
        return values * np.float32(1 / _INT8_STEPS)

    return folder.packed(name, info.shape, "", "bitsandbytes, 8 bits", rows)
