"""Weights that a folder stores as floats of 8 or 4 bits, and what all formats of few bits share.

Sources: transformers, integrations/finegrained_fp8.py; compressed_tensors, compressors; NVIDIA ModelOpt,
torch/quantization/qtensor/nvfp4_tensor.py; torchao, quantization/quantize_/workflows/float8/float8_tensor.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

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
_E8M0_BIAS: Final = 127
# Names of an 8-bit weight's scales; the last is torchao's.
_SCALES: Final = ("weight_scale_inv", "weight_scale", "_weight_scale")


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


FP8_TABLES: Final = {
    "F8_E4M3": fp8_values(4, 7, "largest"),
    "F8_E5M2": fp8_values(5, 15, "like F32"),
    "F8_E4M3FNUZ": fp8_values(4, 8, "minus zero"),
    "F8_E5M2FNUZ": fp8_values(5, 16, "minus zero"),
}
INSTEAD: Final = "convert the original in 16 bits, from which this model was made"
FLOAT_DTYPES: Final = ("F32", "F16", "BF16")


class Packed(msgspec.Struct, frozen=True):
    """A weight stored in few bits: name, shape and float type of its values, and a function that expands rows.

    `stored` is the tensor with its codes, `what` the format's name for people.
    """

    info: SafetensorInfo
    stored: str
    what: str
    rows: Callable[[slice], Floats]


class FewBitFolder(msgspec.Struct, frozen=True):
    """The headers of a folder's tensors, and its quantization settings."""

    where: str
    tensors: Mapping[str, SafetensorInfo]
    settings: Mapping[str, Any]
    dtype: str
    read: Read

    @property
    def method(self) -> str:
        """The format's name in the settings, in lower case."""
        return str(self.settings.get("quant_method") or self.settings.get("format") or "").lower()[:40]

    def has(self, name: str) -> bool:
        return name in self.tensors

    def floats(self, name: str, part: slice | None = None) -> Floats:
        """Scales of any float type as float32."""
        dtype = self.tensors[name].dtype
        values = self.read(name, part)
        if dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        if dtype in FP8_TABLES:
            return FP8_TABLES[dtype][values]
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


def _weight_name(stored: str) -> str:
    base, _, _ = stored.rpartition(".")
    return f"{base}.weight" if base else "weight"


def matrix_shape(folder: FewBitFolder, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Raises: BadWeights: not a matrix."""
    if len(shape) != 2:
        raise BadWeights(folder.where, name, f"a quantized weight of shape {shape}, not a matrix")
    return shape[0], shape[1]


class BlockScales:
    """Scales (or zero points) of a matrix whose blocks of rows and columns share one.

    `order` names a tensor with the group of each column, which may be missing. With `by_rows`, a block is one row
    or all of them, unless the settings state another.

    Raises: BadWeights: the scales do not divide the weight.
    """

    def __init__(
        self, folder: FewBitFolder, scale: str, shape: tuple[int, int], order: str, *, by_rows: bool = False
    ) -> None:
        self._columns = shape[1]
        self._size = _block_of(folder, scale, shape, by_rows=by_rows)
        self.shape = (-(-shape[0] // self._size[0]), -(-shape[1] // self._size[1]))
        self._group = group_numbers(folder, order, shape[1], self.shape[1]) if folder.has(order) else None

    def spread(self, scales: Floats, part: slice) -> Floats:
        """The scale of each weight of some rows; `scales` has any shape of this size."""
        mine: Floats = scales.reshape(self.shape)[np.arange(part.start, part.stop) // self._size[0]]
        if mine.shape[1] == 1:
            return mine
        if self._group is not None:
            of_columns: Floats = mine[:, self._group]
            return of_columns
        return np.repeat(mine, self._size[1], axis=1)[:, : self._columns]


def _block_of(folder: FewBitFolder, scale: str, shape: tuple[int, int], *, by_rows: bool) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = shape
    scale_shape = folder.tensors[scale].shape
    stated = folder.settings.get("weight_block_size") or setting_of_groups(folder, "block_structure")
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
        if by_rows:
            sizes = [size for size in sizes if size[0] in {1, rows}]
    for size in sizes:
        grid = (-(-rows // size[0]), -(-columns // size[1]))
        if np.prod(grid) == count and (len(scale_shape) < 2 or count == 1 or grid == scale_shape):
            return size
    raise BadWeights(folder.where, scale, f"{scale_shape} scales do not divide a weight of {rows} x {columns}")


def setting_of_groups(folder: FewBitFolder, key: str) -> Any:
    """A setting of compressed-tensors' weights; the same for all groups of layers."""
    groups = folder.settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get(key) is not None:
            return weights[key]
    return None


def group_numbers(
    folder: FewBitFolder, order: str, columns: int, groups: int, size: Any = None
) -> npt.NDArray[np.intp]:
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


def is_cast(folder: FewBitFolder) -> bool:
    """Whether 8-bit floats are the weights themselves: the folder has neither settings nor scales."""
    has_scales = any("scale" in name for name in folder.tensors)
    stored = {info.dtype for info in folder.tensors.values()}
    return bool(stored & FP8_TABLES.keys()) and not folder.settings and not has_scales


def cast(folder: FewBitFolder, info: SafetensorInfo) -> Packed:
    """A tensor of any shape whose codes are its values; F16 and BF16 represent all of them."""
    table = FP8_TABLES[info.dtype]
    weight = folder.packed(info.name, info.shape, "", "FP8", lambda part: table[folder.read(info.name, part)])
    return msgspec.structs.replace(weight, info=msgspec.structs.replace(weight.info, name=info.name))


def fp8(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """8-bit floats with one scale for the tensor, each row or each block."""
    scale = next((base + ending for ending in _SCALES if folder.has(base + ending)), None)
    table = FP8_TABLES[info.dtype]
    if scale is None:
        raise BadWeights(folder.where, name, "its scale is missing (weight_scale or weight_scale_inv)")
    scales = BlockScales(folder, scale, matrix_shape(folder, name, info.shape), f"{base}weight_g_idx")

    def rows(part: slice) -> Floats:
        expanded: Floats = table[folder.read(name, part)] * scales.spread(folder.floats(scale), part)
        return expanded

    return folder.packed(name, info.shape, scale, "FP8", rows)


def fp4(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """MXFP4 and NVFP4: two codes in a byte, the first in its low half."""
    scale = f"{base}weight_scale"
    divisor, factor = f"{base}weight_global_scale", f"{base}weight_scale_2"
    num_rows, half = matrix_shape(folder, name, info.shape)
    stored = folder.tensors[scale]
    groups = stored.shape[-1] if stored.shape else 0
    if len(stored.shape) != 2 or stored.shape[0] != num_rows or not groups or 2 * half % groups:
        reason = f"{stored.shape} scales do not divide a weight of {num_rows} x {2 * half}"
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
    return folder.packed(name, (num_rows, 2 * half), "", what, rows)
