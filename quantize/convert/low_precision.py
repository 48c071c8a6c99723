"""Weights that a folder stores in few bits, expanded to the floats that the format's own library computes.

FP8 (one scale for the tensor, a row or a block, or none), MXFP4, NVFP4, integers of compressed-tensors, GPTQ, AWQ
and bitsandbytes. Values are multiplied in float32 and rounded once to the type that the library returns, so that
they are the library's to the last bit.

Sources: transformers, integrations/finegrained_fp8.py; compressed_tensors, quantization/lifecycle/forward.py and
compressors; gptqmodel, nn_modules/qlinear/__init__.py; awq, utils/packing_utils.py; bitsandbytes, functional.py;
NVIDIA ModelOpt, torch/quantization/qtensor/nvfp4_tensor.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from devices.msgspec_lock import learned
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

Array = np.ndarray[Any, Any]
Floats = npt.NDArray[np.float32]
# Reads some rows of a stored matrix; None: all of a tensor, in its shape. BF16 is uint16, 8-bit floats are uint8.
Read = Callable[[str, slice | None], Array]

_FP4: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Weights that share a scale, by the type of the scales: NVFP4 and MXFP4.
_FP4_GROUPS: Final = {"F8_E4M3": 16, "U8": 32, "F8_E8M0": 32}
# Rows and columns that share a scale if a folder does not state them. Source: transformers, FineGrainedFP8Config.
_USUAL_BLOCK: Final = (128, 128)
_INT32_BITS: Final = 32
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # columns of the eight 4-bit values of an integer, lowest bits first
_INT8_STEPS: Final = 127  # largest code of bitsandbytes' rows
_E8M0_BIAS: Final = 127
# Endings of tensors that only describe others.
_SIDE: Final = (
    "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_zero_point",
    "weight_shape", "weight_g_idx", "input_scale", "input_global_scale", "input_zero_point", "activation_scale",
    "output_scale", "g_idx", "qzeros", "scales", "SCB", "weight_format", "weight.absmax",
    "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
)  # fmt: skip
_CACHE_SCALES: Final = (".k_scale", ".v_scale", ".q_scale", ".k_proj.output_scale", ".v_proj.output_scale")
_MODULE_ENDINGS: Final = {"weight_packed", "qweight"}  # stored in place of `weight`


def fp8_values(exponent_bits: int, bias: int, nan: Literal["like F32", "largest", "minus zero"]) -> Floats:
    """The 256 values of an 8-bit float; `nan` is where NaN is. Only "like F32" also has infinity."""
    fraction_bits = 7 - exponent_bits
    codes = np.arange(256)
    exponents, fractions = codes >> fraction_bits & (1 << exponent_bits) - 1, codes & (1 << fraction_bits) - 1
    normal = np.ldexp(1 + fractions / (1 << fraction_bits), exponents - bias)
    small = np.ldexp(fractions / (1 << fraction_bits), 1 - bias)
    values = np.where(exponents > 0, normal, small)
    if nan == "largest":
        values[codes & 127 == 127] = np.nan
    elif nan == "minus zero":
        values[codes == 128] = np.nan
    else:
        top = exponents == (1 << exponent_bits) - 1
        values[top] = np.where(fractions[top] == 0, np.inf, np.nan)
    signed: Floats = np.where(codes < 128, values, -values).astype(np.float32)
    return signed


_TABLES: Final = {
    "F8_E4M3": fp8_values(4, 7, "largest"),
    "F8_E5M2": fp8_values(5, 15, "like F32"),
    "F8_E4M3FNUZ": fp8_values(4, 8, "minus zero"),
    "F8_E5M2FNUZ": fp8_values(5, 16, "minus zero"),
}
FLOAT_DTYPES: Final = ("F32", "F16", "BF16")


class Packed(msgspec.Struct, frozen=True):
    """A weight stored in few bits: name, shape and float type of its values, and a function that expands rows.

    `stored` is the tensor with its codes, `what` the format's name for people.
    """

    info: SafetensorInfo
    stored: str
    what: str
    rows: Callable[[slice], Floats]


class _Folder(msgspec.Struct, frozen=True):
    """The headers of a folder's tensors, and its quantization settings."""

    where: str
    tensors: Mapping[str, SafetensorInfo]
    settings: Mapping[str, Any]
    dtype: str
    read: Read

    def has(self, name: str) -> bool:
        return name in self.tensors

    def floats(self, name: str, part: slice | None = None) -> Floats:
        """Scales of any float type as float32."""
        dtype = self.tensors[name].dtype
        values = self.read(name, part)
        if dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        if dtype in _TABLES:
            return _TABLES[dtype][values]
        if dtype in {"F8_E8M0", "U8"}:
            return np.ldexp(np.float32(1), values.astype(np.int32) - _E8M0_BIAS)
        if dtype not in {"F16", "F32"}:
            raise UnsupportedModel(self.where, f"{name} is stored as {dtype}")
        floats: Floats = values.astype(np.float32)
        return floats

    def packed(self, stored: str, shape: tuple[int, ...], scale: str, what: str, rows: Any) -> Packed:
        """A weight of this shape; its values have the type of a 16-bit scale, else that of the folder."""
        scale_dtype = self.tensors[scale].dtype if scale in self.tensors else ""
        dtype = scale_dtype if scale_dtype in {"F16", "BF16"} else self.dtype
        of = self.tensors[stored]
        num = int(np.prod(shape, dtype=np.int64))
        size = 4 if dtype == "F32" else 2
        return Packed(SafetensorInfo(_weight_name(stored), dtype, shape, of.offset, num * size), stored, what, rows)


def packed_weights(
    where: str, tensors: Mapping[str, SafetensorInfo], config: Mapping[str, Any], read: Read
) -> tuple[dict[str, Packed], frozenset[str]]:
    """The weights that are stored in few bits, by the name of the float weight, and the tensors they consist of.

    Raises: UnsupportedModel: a format that cannot be read. BadWeights: sizes that do not fit together.
    """
    inner = config.get("text_config")
    levels = (config, inner) if isinstance(inner, dict) else (config,)
    stated = (level.get(key) for level in levels for key in ("quantization_config", "compression_config"))
    settings = next((settings for settings in stated if settings and isinstance(settings, dict)), {})
    folder = _Folder(where, tensors, settings, _float_dtype(config), read)
    _check_transforms(folder)
    if _is_cast(folder):
        cast = {name: _cast(folder, info) for name, info in tensors.items() if info.dtype in _TABLES}
        return cast, frozenset(cast)
    weights: dict[str, Packed] = {}
    used: set[str] = set()
    for name, info in tensors.items():
        base, _, ending = name.rpartition(".")
        if not (ending in _MODULE_ENDINGS or (ending == "weight" and info.dtype not in {*FLOAT_DTYPES, "F64"})):
            continue
        packed = _of_one(folder, f"{base}." if base else "", name, info)
        weights[packed.info.name] = packed
        used.add(name)
    for name in weights:
        base = name.removesuffix("weight")
        used |= {f"{base}{side}" for side in _SIDE}
    if weights:
        used |= {n for n in tensors if n.endswith(_CACHE_SCALES)}
    return weights, frozenset(used & tensors.keys())


def _check_transforms(folder: _Folder) -> None:
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


def _weight_name(stored: str) -> str:
    base, _, _ = stored.rpartition(".")
    return f"{base}.weight" if base else "weight"


def _of_one(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """One weight, decoded with its scales and similar tensors, which have the same base name."""
    if info.dtype in _TABLES:
        return _fp8(folder, base, name, info)
    if name.endswith(".qweight"):
        if folder.has(f"{base}scales"):
            return (_awq if _is_awq(folder, base, name) else _gptq)(folder, base, name, info)
    else:
        for dtype, companion, read in (
            ("U8", "weight.absmax", _bitsandbytes),
            ("I8", "SCB", _int8_rows),
            ("I8", "weight_scale", _integers),
            ("I32", "weight_scale", _packed_integers),
            ("U8", "weight_scale", _fp4),
        ):
            if info.dtype == dtype and folder.has(base + companion):
                return read(folder, base, name, info)
    method = str(folder.settings.get("quant_method") or folder.settings.get("format") or "unknown")[:40]
    reason = f"{name} is quantized in a way that cannot be read ({method}, stored as {info.dtype})"
    raise UnsupportedModel(folder.where, reason)


def _is_awq(folder: _Folder, base: str, name: str) -> bool:
    """Whether words are in AWQ's order, otherwise in GPTQ's. AutoRound writes both."""
    method = str(folder.settings.get("quant_method") or "")
    if not method:  # older folders have their settings elsewhere; only AWQ packs along the outputs
        return folder.tensors[name].shape[-1:] != folder.tensors[f"{base}scales"].shape[-1:]
    if "auto-round" not in method:
        return method == "awq"
    layout = str(folder.settings.get("packing_format")).lower().rpartition(":")[2]
    _check_layout(folder, name, layout, ("auto_gptq", "auto_awq"))
    return layout == "auto_awq"


# Floats of 8 and 4 bits.


def _is_cast(folder: _Folder) -> bool:
    """Whether 8-bit floats are the weights themselves: the folder has neither settings nor scales."""
    stored = {info.dtype for info in folder.tensors.values()}
    return bool(stored & _TABLES.keys()) and not folder.settings and not any("scale" in n for n in folder.tensors)


def _cast(folder: _Folder, info: SafetensorInfo) -> Packed:
    """A tensor of any shape whose codes are its values; F16 and BF16 represent all of them."""
    table = _TABLES[info.dtype]
    weight = folder.packed(info.name, info.shape, "", "FP8", lambda part: table[folder.read(info.name, part)])
    return msgspec.structs.replace(weight, info=msgspec.structs.replace(weight.info, name=info.name))


def _fp8(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    scale = next((n for n in (f"{base}weight_scale_inv", f"{base}weight_scale") if folder.has(n)), None)
    table = _TABLES[info.dtype]
    rows_, columns = _two(folder, name, info.shape)
    if scale is None:
        raise BadWeights(folder.where, name, "its scale is missing (weight_scale or weight_scale_inv)")
    size = _block_of(folder, scale, (rows_, columns))

    def rows(part: slice) -> Floats:
        scales = folder.floats(scale).reshape(_grid_shape(size, rows_, columns))
        values = table[folder.read(name, part)]
        expanded: Floats = values * _spread(scales, size, part, columns)
        return expanded

    return folder.packed(name, info.shape, scale, "FP8", rows)


def _two(folder: _Folder, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise BadWeights(folder.where, name, f"a quantized weight of shape {shape}, not a matrix")
    return shape[0], shape[1]


def _grid_shape(size: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // size[0]), -(-columns // size[1])


def _block_of(folder: _Folder, scale: str, shape: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = shape
    scale_shape = folder.tensors[scale].shape
    stated = folder.settings.get("weight_block_size") or _group(folder, "block_structure")
    if isinstance(stated, str):  # "128x128" in older files of compressed-tensors
        stated = [int(n) for n in stated.split("x") if n.isdecimal()]
    count = int(np.prod(scale_shape, dtype=np.int64))
    sizes = [(rows, columns), (1, columns)]
    if isinstance(stated, list) and len(stated) == 2 and all(isinstance(n, int) and n > 0 for n in stated):
        sizes.insert(0, (stated[0], stated[1]))
    elif len(scale_shape) == 2 and all(scale_shape):
        # The last block of a row or column may be smaller, so equal blocks are only a second guess.
        sizes.append(_USUAL_BLOCK)
        if rows % scale_shape[0] == 0 == columns % scale_shape[1]:
            sizes.append((rows // scale_shape[0], columns // scale_shape[1]))
    for size in sizes:
        if np.prod(_grid_shape(size, rows, columns)) == count and (
            len(scale_shape) < 2 or count == 1 or _grid_shape(size, rows, columns) == scale_shape
        ):
            return size
    raise BadWeights(folder.where, scale, f"{scale_shape} scales do not divide a weight of {rows} x {columns}")


def _group(folder: _Folder, key: str) -> Any:
    """A setting of compressed-tensors' weights; the same for all groups of layers."""
    groups = folder.settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get(key) is not None:
            return weights[key]
    return None


def _spread(scales: Floats, size: tuple[int, int], part: slice, columns: int) -> Floats:
    """The scale of each weight of some rows."""
    mine = scales[np.arange(part.start, part.stop) // size[0]]
    return mine if mine.shape[1] == 1 else np.repeat(mine, size[1], axis=1)[:, :columns]


def _fp4(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """MXFP4 and NVFP4: two codes in a byte, the first in its low half."""
    scale = f"{base}weight_scale"
    divisor, factor = f"{base}weight_global_scale", f"{base}weight_scale_2"
    rows_, half = _two(folder, name, info.shape)
    stored = folder.tensors[scale]
    groups = stored.shape[-1] if stored.shape else 0
    if len(stored.shape) != 2 or stored.shape[0] != rows_ or not groups or 2 * half % groups:
        reason = f"{stored.shape} scales do not divide a weight of {rows_} x {2 * half}"
        raise BadWeights(folder.where, scale, reason)
    size = 2 * half // groups
    if size != _FP4_GROUPS.get(stored.dtype):
        reason = f"{name} has groups of {size} with scales of {stored.dtype}; MXFP4 and NVFP4 can be read"
        raise UnsupportedModel(folder.where, reason)
    if stored.dtype == "F8_E4M3" and not (folder.has(divisor) or folder.has(factor)):
        raise BadWeights(folder.where, name, "its scale is missing (weight_global_scale or weight_scale_2)")

    def rows(part: slice) -> Floats:
        scales = folder.floats(scale, part)
        if folder.has(divisor):
            scales = scales / folder.floats(divisor).reshape(-1)[0]
        elif folder.has(factor):
            scales = scales * folder.floats(factor).reshape(-1)[0]
        packed = folder.read(name, part)
        codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1)
        values: Floats = (_FP4[codes].reshape(len(packed), groups, size) * scales[:, :, None]).astype(np.float32)
        return values.reshape(len(packed), -1)

    what = f"{'NV' if stored.dtype == 'F8_E4M3' else 'MX'}FP4"
    return folder.packed(name, (rows_, 2 * half), "", what, rows)


# Integers.


def unpack_integers(packed: Array, bits: int) -> npt.NDArray[np.int32]:
    """Unsigned values of some bits, lowest first, along a new last axis merged with the old one."""
    shifts = np.arange(0, _INT32_BITS, bits, dtype=np.uint32)
    values = (packed.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1).astype(np.int32)


def _bits(folder: _Folder, key: str, words: int, values: int) -> int:
    """Bits of a value: `values` (0: unknown) are stored in `words`; settings may differ between layers.

    Only bits that fill an integer can be read.
    """
    stated = folder.settings.get("bits") or folder.settings.get("w_bit") or _group(folder, "num_bits")
    fitting = [n for n in (2, 4, 8) if not values or -(-values * n // _INT32_BITS) == words]
    if stated in fitting:
        return int(stated)
    if not values or not fitting:
        bits_text = f"{_INT32_BITS * words / values:.3g}" if values else str(stated)[:20]
        reason = f"{key} has {bits_text} bits; weights of 2, 4 and 8 bits can be read"
        raise UnsupportedModel(folder.where, reason)
    return fitting[0]


def _check_words(folder: _Folder, *names: str) -> None:
    """Raises: BadWeights: packed integers are missing or not stored in 32-bit words."""
    for name in names:
        if not folder.has(name):
            raise BadWeights(folder.where, name, "it is missing")
        if folder.tensors[name].dtype != "I32":
            raise BadWeights(folder.where, name, f"stored as {folder.tensors[name].dtype}, expected I32")


def _check_layout(folder: _Folder, name: str, stated: Any, layouts: tuple[str, ...]) -> None:
    """Raises: UnsupportedModel: the words are in an order of certain kernels."""
    if stated is not None and str(stated).lower() not in layouts:
        raise UnsupportedModel(folder.where, f"{name} is in the layout {str(stated)[:40]!r}, which cannot be read")


def _integers(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """8-bit integers of compressed-tensors, with or without zero points."""
    scale, zero = f"{base}weight_scale", f"{base}weight_zero_point"
    rows_, columns = _two(folder, name, info.shape)
    size = _block_of(folder, scale, (rows_, columns))
    shape = _grid_shape(size, rows_, columns)

    def rows(part: slice) -> Floats:
        codes = folder.read(name, part).view(np.int8).astype(np.float32)
        if folder.has(zero):
            zeros = folder.read(zero, None).view(np.int8).astype(np.float32).reshape(shape)
            codes -= _spread(zeros, size, part, columns)
        scales = folder.floats(scale).reshape(shape)
        values: Floats = codes * _spread(scales, size, part, columns)
        return values

    return folder.packed(name, info.shape, scale, "8-bit integers", rows)


def _packed_integers(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """compressed-tensors' integers in 32-bit words along the row, each with half of its range added."""
    scale, zero, order = f"{base}weight_scale", f"{base}weight_zero_point", f"{base}weight_g_idx"
    rows_, words = _two(folder, name, info.shape)
    _check_layout(folder, name, folder.settings.get("format"), ("pack-quantized", "mixed-precision"))
    stored = folder.tensors[scale].shape
    width = 0
    if folder.has(f"{base}weight_shape"):
        stated = folder.read(f"{base}weight_shape", None).reshape(-1).tolist()
        if stated[:-1] != [rows_] or not 0 < stated[-1] <= words * _INT32_BITS:
            raise BadWeights(
                folder.where, name, f"its shape is stated as {stated}, stored are {rows_} x {words} words"
            )
        width = stated[-1]
    bits = _bits(folder, name, words, width)
    width = width or words * _INT32_BITS // bits
    groups = stored[1] if len(stored) == 2 else 1
    if stored and stored[0] not in {1, rows_}:
        raise BadWeights(folder.where, scale, f"{stored} scales do not divide a weight of {rows_} x {width}")
    group = _group_of(folder, order, width, groups, _group(folder, "group_size"))
    half = 1 << bits - 1

    def rows(part: slice) -> Floats:
        codes = (unpack_integers(folder.read(name, part), bits)[:, :width] - half).astype(np.float32)
        scales = folder.floats(scale).reshape(-1, groups)
        mine = scales[part] if len(scales) > 1 else scales
        if folder.has(zero):  # packed along the columns of scales, so down the rows
            packed = np.ascontiguousarray(folder.read(zero, None).reshape(-1, groups).T)
            zeros = (unpack_integers(packed, bits)[:, :rows_] - half).T[part]
            codes -= zeros[:, group].astype(np.float32)
        values: Floats = codes * mine[:, group]
        return values

    return folder.packed(name, (rows_, width), scale, f"{bits}-bit integers", rows)


def _group_of(folder: _Folder, order: str, columns: int, groups: int, size: Any = None) -> npt.NDArray[np.intp]:
    """The group of each column: stored as `order`, or groups of one size. Raises: BadWeights."""
    if folder.has(order):
        stored = folder.read(order, None).astype(np.intp).reshape(-1)
        if len(stored) != columns or stored.max(initial=0) >= groups:
            reason = f"{len(stored)} group numbers for {columns} columns in {groups} groups"
            raise BadWeights(folder.where, order, reason)
        if stored.min(initial=0) >= 0:
            return stored
        if stored.max(initial=-1) >= 0:  # -1 throughout: in order
            raise BadWeights(folder.where, order, f"a group number of {stored.min()}")
    if not isinstance(size, int) or not 0 < size <= columns or -(-columns // size) != groups:
        if not groups or columns % groups:
            raise BadWeights(folder.where, order, f"{columns} columns are not a multiple of {groups} groups")
        size = columns // groups
    in_order: npt.NDArray[np.intp] = np.arange(columns, dtype=np.intp) // size
    return in_order


def _gptq(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """GPTQ: (columns / 8, rows) words, scales (groups, rows), zeros packed along the rows."""
    scale, zero, order = f"{base}scales", f"{base}qzeros", f"{base}g_idx"
    words, rows_ = _two(folder, name, info.shape)
    _check_words(folder, name, *([zero] if folder.has(zero) else []))
    _check_layout(folder, name, folder.settings.get("checkpoint_format"), ("gptq", "gptq_v2"))
    if folder.settings.get("desc_act") and folder.settings.get("group_size") != -1 and not folder.has(order):
        raise BadWeights(
            folder.where, name, "its columns are sorted (desc_act), but their order (g_idx) is missing"
        )
    values = 0
    if folder.has(order):
        values = folder.tensors[order].num_values
    elif folder.has(zero) and (packed := folder.tensors[zero].shape[-1:]) and packed[0]:
        values = words * rows_ // packed[0]  # zeros have as many bits
    bits = _bits(folder, name, words, values)
    columns = words * _INT32_BITS // bits
    groups = _groups(folder, scale, rows_)
    group = _group_of(folder, order, columns, groups, folder.settings.get("group_size"))
    less_one = folder.settings.get("checkpoint_format") != "gptq_v2"

    def rows(part: slice) -> Floats:
        codes = unpack_integers(np.ascontiguousarray(folder.read(name, None)[:, part].T), bits)
        scales = folder.floats(scale)[:, part].T
        if folder.has(zero):
            zeros = unpack_integers(_gptq_zeros(folder, zero, bits, less_one=less_one), bits)[:, part].T
        else:
            zeros = np.full((1, groups), 1 << bits - 1, np.int32)
        values: Floats = (codes - zeros[:, group]).astype(np.float32) * scales[:, group]
        return values

    return folder.packed(name, (rows_, columns), scale, f"GPTQ, {bits} bits", rows)


def _gptq_zeros(folder: _Folder, zero: str, bits: int, *, less_one: bool) -> Array:
    """Words of zeros. Files of the first version store each zero minus one (`less_one`).

    One is subtracted from every field of a whole word, so a zero of 0 borrows from the next field. Some writers
    forget the subtraction; in symmetric files the zero is half of the range, which shows it.
    """
    words = folder.read(zero, None).view(np.uint32)
    ones = np.uint32(sum(1 << shift for shift in range(0, _INT32_BITS, bits)))
    if not less_one or (folder.settings.get("sym") is True and (words == ones << np.uint32(bits - 1)).all()):
        return words
    return words + ones


def _groups(folder: _Folder, scale: str, rows: int) -> int:
    shape = folder.tensors[scale].shape
    if len(shape) != 2 or shape[1] != rows or not shape[0]:
        raise BadWeights(folder.where, scale, f"{shape} scales do not belong to {rows} rows")
    return shape[0]


def _awq(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """AWQ: (columns, rows / 8) words whose values are interleaved, scales (groups, rows)."""
    scale, zero = f"{base}scales", f"{base}qzeros"
    columns, words = _two(folder, name, info.shape)
    _check_words(folder, name, zero)
    _check_layout(folder, name, folder.settings.get("version"), ("gemm",))
    outputs = folder.tensors[scale].shape[-1:]
    bits = _bits(folder, name, words, outputs[0] if outputs else 0)
    if bits != 4:
        raise UnsupportedModel(folder.where, f"{name} is AWQ of {bits} bits; AWQ of 4 bits can be read")
    rows_ = words * 8
    groups = _groups(folder, scale, rows_)
    group = _group_of(folder, f"{base}g_idx", columns, groups)

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

    return folder.packed(name, (rows_, columns), scale, f"AWQ, {bits} bits", rows)


# bitsandbytes.


class _State(msgspec.Struct):
    blocksize: int
    shape: tuple[int, int]
    dtype: str = "bfloat16"
    nested_blocksize: int = 256
    nested_offset: float = 0.0


def _bitsandbytes(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
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
    rows_, width = now.shape
    stored = info.num_values
    if min(rows_, width, now.blocksize, now.nested_blocksize) < 1 or 2 * stored < rows_ * width:
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
    weight = folder.packed(name, (rows_, width), "", f"bitsandbytes, {kind.upper()}", rows)
    return msgspec.structs.replace(weight, info=msgspec.structs.replace(weight.info, dtype=dtype))


def _int8_rows(folder: _Folder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """Bitsandbytes' 8 bits: one scale for each row."""
    scale = f"{base}SCB"
    rows_, _ = _two(folder, name, info.shape)
    if int(np.prod(folder.tensors[scale].shape, dtype=np.int64)) != rows_:
        raise BadWeights(folder.where, scale, f"{folder.tensors[scale].shape} scales for {rows_} rows")

    def rows(part: slice) -> Floats:
        scales = folder.read(scale, None).reshape(-1)[part].astype(np.float32)
        values: Floats = folder.read(name, part).view(np.int8).astype(np.float32) * scales[:, None]
        return values * np.float32(1 / _INT8_STEPS)

    return folder.packed(name, info.shape, "", "bitsandbytes, 8 bits", rows)
