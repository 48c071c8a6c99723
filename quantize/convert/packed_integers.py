"""Integers of compressed-tensors, torchao, ModelOpt and MLX, in bytes and in words of 32 bits.

Sources: compressed_tensors, quantization/lifecycle/forward.py and compressors; torchao, quantization/quantize_,
workflows/int8; modelopt, torch/export/quant_utils.py; mlx, backend/common/quantized.cpp.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from quantize.convert.small_floats import (
    INSTEAD,
    Array,
    BlockScales,
    FewBitFolder,
    Floats,
    Packed,
    group_numbers,
    matrix_shape,
    setting_of_groups,
)
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

INT32_BITS: Final = 32


def unpack_integers(packed: Array, bits: int, *, dense: bool = True) -> npt.NDArray[np.int32]:
    """Unsigned values of some bits, lowest first, along a new last axis merged with the old one.

    If no whole number of them fills a word, they continue in the next one (`dense`) or leave its last bits unused.
    """
    words, mask = packed.view(np.uint32), (1 << bits) - 1
    if INT32_BITS % bits == 0 or not dense:
        shifts = np.arange(INT32_BITS // bits, dtype=np.uint32) * np.uint32(bits)
        values = (words[..., None] >> shifts) & np.uint32(mask)
        return values.reshape(*packed.shape[:-1], -1).astype(np.int32)
    count = packed.shape[-1]
    starts = np.arange(count * INT32_BITS // bits) * bits
    first = starts // INT32_BITS
    pairs = words[..., first].astype(np.uint64)
    pairs |= words[..., np.minimum(first + 1, count - 1)].astype(np.uint64) << np.uint64(INT32_BITS)
    return (pairs >> (starts % INT32_BITS).astype(np.uint64) & np.uint64(mask)).astype(np.int32)


def words_for(values: int, bits: int, *, dense: bool = True) -> int:
    """Number of words that hold so many values."""
    return -(-values * bits // INT32_BITS) if dense else -(-values // (INT32_BITS // bits))


def stated_bits(folder: FewBitFolder) -> Any:
    """Bits of a value according to the settings; None if they do not say."""
    return folder.settings.get("bits") or folder.settings.get("w_bit") or setting_of_groups(folder, "num_bits")


def bits_of(folder: FewBitFolder, key: str, words: int, values: int, possible: tuple[int, ...]) -> int:
    """Bits of a value: `values` (0: unknown) are stored in `words`; settings may differ between layers."""
    stated = stated_bits(folder)
    fitting = [n for n in possible if not values or words_for(values, n) == words]
    if stated in fitting:
        return int(stated)
    if not values or not fitting:
        bits_text = f"{INT32_BITS * words / values:.3g}" if values else str(stated)[:20]
        listed = ", ".join(map(str, possible[:-1]))
        reason = f"{key} has {bits_text} bits; weights of {listed} and {possible[-1]} bits can be read"
        raise UnsupportedModel(folder.where, reason)
    return fitting[0]


def check_words(folder: FewBitFolder, *names: str) -> None:
    """Raises: BadWeights: packed integers are missing or not stored in 32-bit words."""
    for name in names:
        if not folder.has(name):
            raise BadWeights(folder.where, name, "it is missing")
        if folder.tensors[name].dtype != "I32":
            raise BadWeights(folder.where, name, f"stored as {folder.tensors[name].dtype}, expected I32")


def check_layout(folder: FewBitFolder, name: str, stated: Any, layouts: tuple[str, ...]) -> None:
    """Raises: UnsupportedModel: the words are in an order of certain kernels."""
    if stated is not None and str(stated).lower() not in layouts:
        reason = f"{name} is in the layout {str(stated)[:40]!r}, which cannot be read; {INSTEAD}"
        raise UnsupportedModel(folder.where, reason)


def _check_zero_points(folder: FewBitFolder, zero: str) -> None:
    """Raises: UnsupportedModel: zero points that are no bytes, as those of torchao's 4-bit integers."""
    if folder.has(zero) and folder.tensors[zero].dtype != "I8":
        reason = f"{zero} is stored as {folder.tensors[zero].dtype}, expected I8; {INSTEAD}"
        raise UnsupportedModel(folder.where, reason)


def _zero_points(folder: FewBitFolder, zero: str) -> Floats:
    values: Floats = folder.read(zero, None).view(np.int8).astype(np.float32)
    return values


def integers(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """8-bit integers of compressed-tensors and torchao, with or without zero points."""
    stem = name.removesuffix("_qdata")
    scale, zero = f"{stem}_scale", f"{stem}_zero_point"
    shape = matrix_shape(folder, name, info.shape)
    _check_zero_points(folder, zero)
    scales = BlockScales(folder, scale, shape, f"{base}weight_g_idx", by_rows=True)

    def rows(part: slice) -> Floats:
        codes = folder.read(name, part).view(np.int8).astype(np.float32)
        if folder.has(zero):
            codes -= scales.spread(_zero_points(folder, zero), part)
        values: Floats = codes * scales.spread(folder.floats(scale), part)
        return values

    return folder.packed(name, info.shape, scale, "8-bit integers", rows)


def pairs_of_rows(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """ModelOpt: signed integers of 4 bits, two rows in each row of bytes, the first in the low halves."""
    scale, second = f"{base}weight_scale", f"{base}weight_scale_2"
    half, columns = matrix_shape(folder, name, info.shape)
    if folder.has(second):
        raise UnsupportedModel(folder.where, f"{name} has a second scale, for inputs in 8 bits; {INSTEAD}")
    scales = BlockScales(folder, scale, (2 * half, columns), "", by_rows=True)

    def rows(part: slice) -> Floats:
        packed = folder.read(name, slice(part.start // 2, -(-part.stop // 2)))
        codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).reshape(-1, columns)
        mine = codes[part.start % 2 :][: part.stop - part.start]
        signed = (mine.astype(np.float32) + np.float32(8)) % np.float32(16) - np.float32(8)
        values: Floats = signed * scales.spread(folder.floats(scale), part)
        return values

    return folder.packed(name, (2 * half, columns), scale, "4-bit integers", rows)


def packed_integers(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """compressed-tensors' integers in 32-bit words along the row, each with half of its range added."""
    scale, zero, order = f"{base}weight_scale", f"{base}weight_zero_point", f"{base}weight_g_idx"
    num_rows, words = matrix_shape(folder, name, info.shape)
    check_layout(folder, name, folder.settings.get("format"), ("pack-quantized", "mixed-precision"))
    stored = folder.tensors[scale].shape
    width = 0
    if folder.has(f"{base}weight_shape"):
        stated = folder.read(f"{base}weight_shape", None).reshape(-1).tolist()
        if stated[:-1] != [num_rows] or not 0 < stated[-1] <= words * INT32_BITS:
            raise BadWeights(
                folder.where, name, f"its shape is stated as {stated}, stored are {num_rows} x {words} words"
            )
        width = stated[-1]
    # Earlier versions left the bits of a word unused that no whole value fills.
    bits, dense = stated_bits(folder), False
    if bits not in (3, 5, 6, 7) or not width or words != words_for(width, bits, dense=False):
        bits, dense = bits_of(folder, name, words, width, (2, 3, 4, 5, 6, 7, 8)), True
    width = width or words * INT32_BITS // bits
    groups = stored[1] if len(stored) == 2 else 1
    if stored and stored[0] not in {1, num_rows}:
        raise BadWeights(folder.where, scale, f"{stored} scales do not divide a weight of {num_rows} x {width}")
    group = group_numbers(folder, order, width, groups, setting_of_groups(folder, "group_size"))
    if folder.has(zero) and folder.tensors[zero].dtype != "I32":
        _check_zero_points(folder, zero)
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


def mlx(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
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
    columns = words * INT32_BITS // bits
    for part_name in (scale, low):
        shape = folder.tensors[part_name].shape if folder.has(part_name) else ()
        if shape != (num_rows, columns // size) or columns % size or words * INT32_BITS % bits:
            reason = f"{shape} does not divide a weight of {num_rows} x {columns}"
            raise BadWeights(folder.where, part_name, reason)

    def rows(part: slice) -> Floats:
        codes = unpack_integers(folder.read(name, part), bits).astype(np.float32)
        steps, lows = (np.repeat(folder.floats(each, part), size, axis=1) for each in (scale, low))
        values: Floats = codes * steps + lows
        return values

    return folder.packed(name, (num_rows, columns), scale, f"MLX, {bits} bits", rows)
