"""Weights that a folder stores in few bits, expanded to the floats that the format's own library computes.

Floats of 8 and 4 bits are read by `small_floats`, integers by `packed_integers` and `gptq_words`, bitsandbytes by
`bitsandbytes_folder`, BitNet here. Values are multiplied in float32 and rounded once to the type that the library
returns, so that they are the library's to the last bit.

Sources: transformers, integrations/bitnet.py; modelopt, torch/export/quant_utils.py (`pre_quant_scale`).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from quantize.convert.bitsandbytes_folder import int8_rows, table_codes
from quantize.convert.gptq_words import awq, gptq, is_awq
from quantize.convert.packed_integers import integers, mlx, packed_integers, pairs_of_rows
from quantize.convert.small_floats import (
    FLOAT_DTYPES,
    FP8_TABLES,
    INSTEAD,
    FewBitFolder,
    Floats,
    Packed,
    Read,
    cast,
    fp4,
    fp8,
    is_cast,
    matrix_shape,
)
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

_TERNARY_IN_BYTE: Final = 4
# Endings of tensors that only describe others.
_SIDE: Final = (
    "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_zero_point",
    "weight_shape", "weight_g_idx", "input_scale", "input_global_scale", "input_zero_point", "activation_scale",
    "output_scale", "output_zero_point", "_weight_scale", "_weight_zero_point", "_weight_act_quant_scale",
    "_weight_act_quant_zero_point", "pre_quant_scale", "g_idx", "qzeros", "scales", "biases", "SCB",
    "weight_format", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4",
)  # fmt: skip
_CACHE_SCALES: Final = (
    ".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale",
)  # fmt: skip
_ROTATIONS: Final = ("rotation_config", "spinquant_config")  # AutoRound's
_MODULE_ENDINGS: Final = {"weight_packed", "qweight", "_weight_qdata"}  # stored in place of `weight`


def packed_weights(
    where: str, tensors: Mapping[str, SafetensorInfo], config: Mapping[str, Any], read: Read
) -> tuple[dict[str, Packed], frozenset[str]]:
    """The weights that are stored in few bits, by the name of the float weight, and the tensors they consist of.

    Raises: UnsupportedModel: a format that cannot be read. BadWeights: sizes that do not fit together.
    """
    folder = FewBitFolder(where, tensors, quantization_settings(config), _float_dtype(config), read)
    _check_transforms(folder, config)
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
        packed = _scaled_inputs(folder, base, _of_one(folder, base, name, info))
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


def _check_transforms(folder: FewBitFolder, config: Mapping[str, Any]) -> None:
    """Raises: UnsupportedModel: inputs or weights must be changed when the model runs.

    QuIP, SpinQuant and AutoRound rotate inputs; BitNet's "online" folders store the weights before their rounding.
    """
    if stated := next((key for key in _ROTATIONS if folder.settings.get(key) or config.get(key)), None):
        reason = f"{stated} rotates inputs when the model runs; llama.cpp does not; {INSTEAD}"
        raise UnsupportedModel(folder.where, reason)
    if folder.method == "bitnet" and folder.settings.get("quantization_mode") == "online":
        reason = "its weights become ternary when the model runs (BitNet, quantization_mode online)"
        raise UnsupportedModel(folder.where, f"{reason}; convert the folder that stores them as ternary")
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


def _scaled_inputs(folder: FewBitFolder, base: str, weight: Packed) -> Packed:
    """The weight multiplied by the factors of its inputs (ModelOpt's AWQ), if there are any. Raises: BadWeights."""
    factor = f"{base}pre_quant_scale"
    if not folder.has(factor):
        return weight
    columns, shape = weight.info.shape[-1], folder.tensors[factor].shape
    if folder.tensors[factor].num_values != columns:
        raise BadWeights(folder.where, factor, f"{shape} factors for {columns} columns")
    inner = weight.rows

    def rows(part: slice) -> Floats:
        values: Floats = inner(part) * folder.floats(factor).reshape(1, -1)
        return values

    return msgspec.structs.replace(weight, rows=rows)


def _of_one(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """One weight, decoded with its scales and similar tensors, which have the same base name."""
    if info.dtype in FP8_TABLES:
        return fp8(folder, base, name, info)
    if name.endswith(".qweight"):
        if folder.has(f"{base}scales") and info.dtype != "U8":  # bytes of FP-Quant
            return (awq if is_awq(folder, base, name) else gptq)(folder, base, name, info)
    else:
        for dtype, ending, companion, read in (
            (info.dtype, "weight", "weight.absmax", table_codes),
            ("I8", "weight", "SCB", int8_rows),
            ("I8", "weight", "weight_scale", integers),
            ("I8", "_weight_qdata", "_weight_scale", integers),
            ("I32", "weight_packed", "weight_scale", packed_integers),
            ("U32", "weight", "scales", mlx),
            ("U8", "", "weight_scale", _bytes_of_codes),
        ):
            if info.dtype == dtype and name.endswith(ending) and folder.has(base + companion):
                return read(folder, base, name, info)
    method = folder.method or "unknown"
    reason = f"{name} is quantized in a way that cannot be read ({method}, stored as {info.dtype}); {INSTEAD}"
    raise UnsupportedModel(folder.where, reason)


def _bytes_of_codes(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """Two codes in a byte (FP4, ModelOpt's integers) or four (BitNet)."""
    if folder.method == "bitnet":
        return _ternary(folder, base, name, info)
    scale = folder.tensors[f"{base}weight_scale"]
    is_integer = scale.dtype in FLOAT_DTYPES and scale.shape[:1] == (2 * info.shape[0],)
    return (pairs_of_rows if is_integer else fp4)(folder, base, name, info)


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
