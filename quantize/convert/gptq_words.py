"""GPTQ, AutoRound and AWQ: integers in words of 32 bits, with scales and zero points for groups of columns.

Sources: gptqmodel, nn_modules/qlinear/__init__.py and utils/model.py; auto_round_extension, torch/qlinear_torch.py
and qlinear_torch_zp.py; awq, utils/packing_utils.py and modules/linear/gemv.py.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from quantize.convert.packed_integers import (
    INT32_BITS,
    bits_of,
    check_layout,
    check_words,
    stated_bits,
    unpack_integers,
)
from quantize.convert.small_floats import Array, FewBitFolder, Floats, Packed, group_numbers, matrix_shape
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # columns of the eight 4-bit values of an integer, lowest bits first
_AWQ_IN_WORD: Final = len(_AWQ_ORDER)
# Words of 32 zero points of 3 bits that are half of the range, by the three programs that store them: as they are;
# less one; and as earlier versions of GPTQModel do, whose constants do not meet the values.
_HALF: Final = tuple(sum(4 << 3 * i for i in range(32)) >> 32 * k & 0xFFFFFFFF for k in range(3))
_HALF_LESS_ONE: Final = tuple(sum(3 << 3 * i for i in range(32)) >> 32 * k & 0xFFFFFFFF for k in range(3))
_GPTQMODEL_ONES: Final = (0x24924924, 0x92492492, 0x49249249)
_HALVES_OF_3_BITS: Final = np.array(
    [_HALF, _HALF_LESS_ONE, [(w - one) % (1 << 32) for w, one in zip(_HALF, _GPTQMODEL_ONES, strict=True)]],
    np.uint32,
)


def is_awq(folder: FewBitFolder, base: str, name: str) -> bool:
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
    check_layout(folder, name, stated.rpartition(":")[2], ("gptqmodel", "auto_round"))
    return "gptq_v2"


def _gptq_version(folder: FewBitFolder, name: str) -> str:
    """How zeros are stored: "gptq" (each minus one) or "gptq_v2". Raises: UnsupportedModel: another layout."""
    if "auto-round" in folder.method:
        return _autoround_layout(folder, name)
    stated = folder.settings.get("checkpoint_format") or folder.settings.get("format")
    if folder.settings.get("is_marlin_format"):
        stated = "marlin"
    check_layout(folder, name, stated, ("gptq", "gptq_v2"))
    return str(stated or "gptq").lower()


def gptq(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """GPTQ: (columns / 8, rows) words, scales (groups, rows), zeros packed along the rows."""
    scale, zero, order = f"{base}scales", f"{base}qzeros", f"{base}g_idx"
    words, num_rows = matrix_shape(folder, name, info.shape)
    check_words(folder, name, *([zero] if folder.has(zero) else []))
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
    bits = bits_of(folder, name, words, values, (2, 4, 8) if words % 3 or values % INT32_BITS else (2, 3, 4, 8))
    columns = words * INT32_BITS // bits
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
    if INT32_BITS % bits:
        if words.size % 3 or not (words.reshape(-1, 1, 3) == _HALVES_OF_3_BITS).all(axis=(0, 2)).any():
            reason = f"{zero} has zero points of 3 bits in the first version's form, in which programs differ"
            raise UnsupportedModel(folder.where, reason)
        return None
    ones = np.uint32(sum(1 << shift for shift in range(0, INT32_BITS, bits)))
    if folder.settings.get("sym") is True and (words == ones << np.uint32(bits - 1)).all():
        return words
    return words + ones


def _groups(folder: FewBitFolder, scale: str, rows: int) -> int:
    shape = folder.tensors[scale].shape
    if len(shape) != 2 or shape[1] != rows or not shape[0]:
        raise BadWeights(folder.where, scale, f"{shape} scales do not belong to {rows} rows")
    return shape[0]


def awq(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """AWQ: (columns, rows / 8) words whose values are interleaved, scales (groups, rows); or a layout by rows."""
    scale, zero = f"{base}scales", f"{base}qzeros"
    check_words(folder, name, zero)
    if folder.method == "awq":
        stated = folder.settings.get("version") or folder.settings.get("format")
        check_layout(folder, name, stated, ("gemm", "gemv"))
        if str(folder.settings.get("backend")).lower() == "llm-awq":
            check_layout(folder, name, "llm-awq", ())
        if str(stated).lower() == "gemv":
            return _awq_by_rows(folder, base, name, info)
    columns, words = matrix_shape(folder, name, info.shape)
    outputs = folder.tensors[scale].shape[-1:]
    bits = bits_of(folder, name, words, outputs[0] if outputs else 0, (2, 4, 8))
    if bits != 4:
        raise UnsupportedModel(folder.where, f"{name} is AWQ of {bits} bits; AWQ of 4 bits can be read")
    num_rows = words * _AWQ_IN_WORD
    groups = _groups(folder, scale, num_rows)
    group = group_numbers(folder, f"{base}g_idx", columns, groups)

    def unpacked(packed: Array) -> npt.NDArray[np.int32]:
        values = unpack_integers(packed, bits).reshape(len(packed), -1, _AWQ_IN_WORD)
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


def _awq_by_rows(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """AWQ's layout "gemv": all words along the row, in order, those of zeros and scales filled with zeros."""
    scale, zero = f"{base}scales", f"{base}qzeros"
    num_rows, words = matrix_shape(folder, name, info.shape)
    columns, size = words * _AWQ_IN_WORD, folder.settings.get("group_size") or folder.settings.get("q_group_size")
    size = columns if size == -1 else size
    if stated_bits(folder) not in (4, None) or not isinstance(size, int) or size < 1 or columns % size:
        form = f"{str(stated_bits(folder))[:20]} bits in groups of {str(size)[:20]}"
        raise UnsupportedModel(folder.where, f"{name} is AWQ of {form}; AWQ of 4 bits can be read")
    groups = columns // size
    for part_name, each_word in ((scale, 1), (zero, _AWQ_IN_WORD)):
        shape = folder.tensors[part_name].shape
        if len(shape) != 2 or shape[0] != num_rows or shape[1] * each_word < groups:
            raise BadWeights(folder.where, part_name, f"{shape} does not divide a weight of {num_rows} x {columns}")
    group = np.arange(columns) // size

    def rows(part: slice) -> Floats:
        codes, zeros = (unpack_integers(folder.read(each, part), 4) for each in (name, zero))
        values: Floats = (codes - zeros[:, group]).astype(np.float32) * folder.floats(scale, part)[:, group]
        return values

    return folder.packed(name, (num_rows, columns), scale, "AWQ, 4 bits", rows)
