"""Finds weights that already lie on the grid of a GGML type, and packs them into that type without loss.

Models trained for 4 bits, and models that were quantized before, are often published as 16-bit floats. Their values
are then whole multiples of a step for each block. ggml searches the scale that fits ordinary weights best, and so
misses that step. Here it is searched among the steps for which the largest weight is a whole multiple. The step may
only differ from the weights by the rounding of the source's float type, which ordinary weights cannot meet: for a
block of 32 weights in 4 bits the chance is below 1e-20.

Rows of tokens that were added after the training are on no grid. They are counted, and rounded as usual.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import FLOAT_TYPES, GgmlType, bits_per_weight
from quantize.gptq.packing import Bytes, pack
from quantize.measurements import Step
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.source_weights import SourceWeights, quantizable
from quantize.tensor_rules import TOKEN_TABLES

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

# Largest relative and absolute rounding error of a source's values. F32 covers other orders of sums.
_ROUNDOFF = {GgmlType.BF16: (2.0**-8, 0.0), GgmlType.F16: (2.0**-11, 2.0**-25), GgmlType.F32: (2.0**-20, 0.0)}
# Largest relative rounding error of a scale stored as F16.
_SCALE_ROUNDOFF = 2.0**-11
_ROWS, _FEWEST_ROWS = 64, 2  # sampled per tensor and per expert; the fewest already exclude ordinary weights
_HELD_FRACTION = 0.999  # fraction of the sampled blocks
_MOST_ADDED = 0.1  # fraction of a table's rows that may be on no grid
_FIRST_VALUES, _COUNTED_ROWS = 256, 1 << 12  # a row on no grid shows it in its first blocks; rows read at a time
_LEAST_NONZERO = 0.25  # fraction of the sampled weights; tensors with fewer do not show how they were trained
_LEAST_TERNARY, _TERNARY_BITS = 0.1, 2.5  # the same for types in which all weights of a block but 0 are equal
_SURE_CODES = 0.1  # if the error of the largest weight's code is larger, the other codes are tried again
_ORDER_BLOCKS = 256  # blocks used to determine the usual code of the largest weight


class ExactRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Look for grids in the weights of `source`: a GGUF file, or a folder that can be converted."""

    source: Path


class ExactTypes(msgspec.Struct, frozen=True, kw_only=True):
    """By tensor: the types that hold its weights without loss, smallest first. Other tensors are on no grid.

    `added` is the number of rows of such a tensor that are on no grid, without those that have none.
    """

    types: dict[str, tuple[str, ...]]
    added: dict[str, int] = {}


def find_exact_types(request: ExactRequest, send: Step) -> ExactTypes:
    """Test sampled rows of every quantizable tensor. Raises: BadFile: a value is not finite."""
    if request.source.is_dir():
        return _exact_types_of_folder(request.source, send)
    source = SourceWeights(request.source)
    names = [n for n in source.names if source.info(n).ggml_type in FLOAT_TYPES and quantizable(source, n)]
    types_by_name, added = {}, {}
    for at, name in enumerate(names):
        send(at, len(names), name)
        if types := _sampled_types(name, partial(_samples, source, name), source.info(name).ggml_type):
            types_by_name[name] = types
            if name in TOKEN_TABLES and (count := _rows_on_no_grid(source, name, types[0])):
                added[name] = count
    send(len(names), len(names), "")
    return ExactTypes(types=types_by_name, added=added)


def _exact_types_of_folder(folder: Path, send: Step) -> ExactTypes:
    """Test rows of a folder before it is converted; of tensors that are stored alike in few bits only the first.

    Rows of added tokens are not counted.
    """
    # A job starts a child process for each tensor; these imports would be two fifths of its start time.
    from quantize.convert.folder import SampledTensor, sampled_tensors

    def samples(tensor: SampledTensor, most: int) -> Iterator[Floats]:
        for rows in tensor.runs():
            yield rows[_spread(len(rows), most // tensor.matrices)]

    tensors = sampled_tensors(folder)
    types: dict[str, tuple[str, ...]] = {}
    by_kind: dict[str, tuple[str, ...]] = {}
    for at, tensor in enumerate(tensors):
        send(at, len(tensors), tensor.name)
        kind = tensor.alike or tensor.name
        if kind not in by_kind:
            by_kind[kind] = _sampled_types(tensor.name, partial(samples, tensor), tensor.qtype)
        if by_kind[kind]:
            types[tensor.name] = by_kind[kind]
    send(len(tensors), len(tensors), "")
    return ExactTypes(types=types)


def _sampled_types(name: str, samples: Callable[[int], Iterator[Floats]], dtype: GgmlType) -> tuple[str, ...]:
    """The types that hold a tensor without loss. A few rows exclude most tensors; of the others more are tested."""
    is_table = name in TOKEN_TABLES
    first = next(samples(2 * _FEWEST_ROWS if is_table else _FEWEST_ROWS), None)
    if first is None:
        return ()
    # The first and last row of a table are the likeliest to be added, so one row is enough.
    if not any(exact_types(row, dtype) for row in (np.split(first, len(first)) if is_table else [first])):
        return ()
    return exact_types(np.concatenate(list(samples(_ROWS))), dtype, _MOST_ADDED if is_table else 0.0)


def _spread(rows: int, most: int) -> npt.NDArray[np.intp]:
    """Numbers of rows from the first to the last, as many as are sampled."""
    count = min(rows, max(_FEWEST_ROWS, most))
    numbers: npt.NDArray[np.intp] = np.unique(np.linspace(0, rows - 1, count).round().astype(np.intp))
    return numbers


def _rows_on_no_grid(source: SourceWeights, name: str, qtype: str) -> int:
    _, rows, width = source.shape(name)
    dtype, count = source.info(name).ggml_type, 0
    for first in range(0, rows, _COUNTED_ROWS):
        some = source.rows(name, 0, slice(first, first + _COUNTED_ROWS))
        is_exact = _packed(some[:, : min(width, _FIRST_VALUES)], qtype, dtype)[1].reshape(len(some), -1)
        count += int((is_exact.mean(axis=1) < 1 / 2).sum())
    return count


def _samples(source: SourceWeights, name: str, most: int) -> Iterator[Floats]:
    """Rows of every matrix: some experts can be on a grid and others not."""
    matrices, rows, _ = source.shape(name)
    picked = _spread(rows, most // matrices)
    for matrix in range(matrices):
        yield source.rows(name, matrix, picked)


def exact_types(rows: Floats, dtype: GgmlType, most_added: float = 0.0) -> tuple[str, ...]:
    """The types that hold these rows without loss, smallest first; empty for ordinary weights.

    `dtype` is the float type in which the source stores them. A fraction `most_added` of rows may be on no grid.
    """
    nonzero = np.count_nonzero(rows) / rows.size
    if nonzero < _LEAST_TERNARY or (rows == rows.flat[0]).all():
        return ()
    fitting = [q for q in PACKERS if rows.shape[1] % GgmlType[q].traits.block_values == 0]
    if nonzero < _LEAST_NONZERO:
        fitting = [q for q in fitting if bits_per_weight(GgmlType[q]) < _TERNARY_BITS]
    flags = {q: _packed(rows, q, dtype)[1].reshape(len(rows), -1) for q in fitting}
    on_grid = np.ones(len(rows), np.bool_)
    if most_added and flags:  # smaller types hold some blocks of a larger grid
        on_grid = np.any([is_exact.mean(axis=1) > 1 / 2 for is_exact in flags.values()], axis=0)
    if on_grid.mean() < 1 - most_added:
        return ()
    return tuple(q for q, is_exact in flags.items() if is_exact[on_grid].mean() >= _HELD_FRACTION)


def pack_exactly(rows: Floats, qtype: str, dtype: GgmlType) -> Bytes:
    """Rows in a type of `exact_types`, as (rows, row_bytes); ggml rounds the blocks that are on no grid."""
    blocks, is_exact = _packed(rows, qtype, dtype)
    lost = ~is_exact.reshape(len(rows), -1)
    some = lost.any(axis=1)
    if some.any():
        traits = GgmlType[qtype].traits
        plain = quantize_rows(np.ascontiguousarray(rows[some]), qtype, np.ones(rows.shape[1], np.float32))
        mine = blocks.reshape(len(rows), -1, traits.block_bytes)
        mine[some] = np.where(lost[some][:, :, None], plain.reshape(len(plain), -1, traits.block_bytes), mine[some])
    return blocks


def _packed(rows: Floats, qtype: str, dtype: GgmlType) -> tuple[Bytes, Flags]:
    """Packed rows, and for each block whether it holds its weights without loss."""
    size = GgmlType[qtype].traits.block_values
    blocks, is_exact = PACKERS[qtype](np.ascontiguousarray(rows).reshape(-1, size), *_ROUNDOFF[dtype])
    return blocks.reshape(len(rows), -1), is_exact


def _by_ggml(qtype: str) -> Callable[[Floats, float, float], tuple[Bytes, Flags]]:
    """For types whose scale ggml finds: compare its result with the weights."""

    def packed(blocks: Floats, roundoff: float, least: float) -> tuple[Bytes, Flags]:
        rounded = quantize_rows(blocks, qtype, np.ones(blocks.shape[1], np.float32))
        values = dequantize_rows(rounded, qtype, blocks.shape[1])
        allowed = (roundoff + _SCALE_ROUNDOFF) * np.abs(blocks) + least
        return rounded, (np.abs(values - blocks) <= allowed).all(axis=1)

    return packed


def _symmetric(qtype: str, lowest: int, highest: int) -> Callable[[Floats, float, float], tuple[Bytes, Flags]]:
    """For types with the values `scale * code`, codes from `lowest` to `highest`."""

    def packed(blocks: Floats, roundoff: float, least: float) -> tuple[Bytes, Flags]:
        codes, steps, is_exact = _multiples(blocks, (-lowest, highest - lowest), roundoff, least)
        flipped = codes.max(axis=1, initial=0) > highest
        codes[flipped] *= -1
        steps[flipped] *= -1
        out = np.zeros((len(blocks), GgmlType[qtype].traits.block_bytes), np.uint8)
        at = 0
        if qtype == "Q3_K":  # every factor is 1: 33 less 32, in four low and two high bits
            out[:, 96:104], out[:, 104:108], at = 0x11, 0xAA, 108
        out[:, at : at + 2] = steps.astype(np.float16)[:, None].view(np.uint8)
        return _with_codes(out, qtype, codes - lowest), is_exact

    return packed


def _with_codes(base: Bytes, qtype: str, codes: Floats) -> Bytes:
    packed: Bytes = pack(base, qtype, np.clip(codes, 0, 255).astype(np.uint8))
    return packed


def _two_bits(blocks: Floats, roundoff: float, least: float) -> tuple[Bytes, Flags]:
    """Q2_K with one step for the whole block: four neighbouring multiples of it."""
    codes, steps, is_exact = _multiples(blocks, (3, 3), roundoff, least)
    lowest = np.minimum(codes.min(axis=1), 0)
    out = np.zeros((len(blocks), GgmlType.Q2_K.traits.block_bytes), np.uint8)
    out[:, :16] = 0x11  # every factor is 1
    out[:, 80:82] = steps.astype(np.float16)[:, None].view(np.uint8)
    out[:, 82:84] = (-lowest * steps).astype(np.float16)[:, None].view(np.uint8)
    return _with_codes(out, "Q2_K", np.minimum(codes - lowest[:, None], 3)), is_exact


def _with_minimum(qtype: str, top: int) -> Callable[[Floats, float, float], tuple[Bytes, Flags]]:
    """For types with the values `minimum + scale * code`, codes up to `top`."""

    def packed(blocks: Floats, roundoff: float, least: float) -> tuple[Bytes, Flags]:
        codes, steps, lows, is_exact = _offset_multiples(blocks, top, roundoff, least)
        out = np.zeros((len(blocks), GgmlType[qtype].traits.block_bytes), np.uint8)
        out[:, 0:2] = steps.astype(np.float16)[:, None].view(np.uint8)
        out[:, 2:4] = lows.astype(np.float16)[:, None].view(np.uint8)
        return _with_codes(out, qtype, codes), is_exact

    return packed


def _multiples(
    blocks: Floats, limits: tuple[int, int], roundoff: float, least: float
) -> tuple[Floats, Floats, Flags]:
    """Codes, the step of each block, and whether they give its weights.

    `limits` are the largest size of a code, and the largest difference between the codes of a block and 0.
    """
    top, span = limits
    peaks = np.abs(blocks).max(axis=1)
    codes, steps = np.zeros_like(blocks), np.zeros_like(peaks)
    is_exact = peaks == 0

    def attempt(open_blocks: npt.NDArray[np.intp], largest: int) -> Flags:
        some, scale = blocks[open_blocks], largest / peaks[open_blocks]
        integers = np.rint(some * scale[:, None])
        if largest * roundoff > _SURE_CODES:
            scale = (integers * integers).sum(axis=1) / (integers * some).sum(axis=1)
            integers = np.rint(some * scale[:, None])
        # Every weight but 0 bounds the step by the rounding of its own value.
        sizes, counts = np.abs(some), np.abs(integers)
        away = roundoff * sizes + least
        with np.errstate(divide="ignore", invalid="ignore"):
            low = np.where(counts > 0, (sizes - away) / counts, -np.inf).max(axis=1)
            high = np.where(counts > 0, (sizes + away) / counts, np.inf).min(axis=1)
        step = ((low + high) / 2).astype(np.float32)
        # The step of a training is often a bfloat16; then the weights before their rounding are found again.
        usual = _as_bfloat16(step)
        half = _as_half(np.where((low <= usual) & (usual <= high), usual, step))
        allowed = away + _SCALE_ROUNDOFF * sizes
        fits: Flags = (np.abs(integers * half[:, None] - some) <= allowed).all(axis=1)
        # Multiples of a step are also multiples of its half, which may need codes of both signs that are too large.
        fits &= integers.max(axis=1, initial=0) - integers.min(axis=1, initial=0) <= span
        at = open_blocks[fits]
        codes[at], steps[at] = integers[fits], half[fits]
        return fits

    _search(np.flatnonzero(~is_exact), top, is_exact, attempt)
    return codes, steps, is_exact


def _offset_multiples(
    blocks: Floats, top: int, roundoff: float, least: float
) -> tuple[Floats, Floats, Floats, Flags]:
    """Codes from 0 to top, the step and minimum of each block, and whether they give its weights."""
    lows = blocks.min(axis=1)
    spans = blocks.max(axis=1) - lows
    codes, steps, minima = np.zeros_like(blocks), np.zeros_like(lows), _as_half(lows)
    is_exact = (spans == 0) & (np.abs(minima - lows) <= (roundoff + _SCALE_ROUNDOFF) * np.abs(lows) + least)

    def attempt(open_blocks: npt.NDArray[np.intp], largest: int) -> Flags:
        some = blocks[open_blocks]
        integers = np.rint((some - lows[open_blocks][:, None]) * (largest / spans[open_blocks])[:, None])
        centred = integers - integers.mean(axis=1, keepdims=True)
        step = _as_half((centred * some).sum(axis=1) / (centred * centred).sum(axis=1))
        low = _as_half((some - integers * step[:, None]).mean(axis=1))
        parts = np.abs(integers * step[:, None]) + np.abs(low)[:, None]
        # The fitted line is off by a part of the largest weight's rounding.
        fitted = roundoff / 2 * np.abs(some).max(axis=1, keepdims=True)
        allowed = roundoff * np.abs(some) + fitted + _SCALE_ROUNDOFF * parts + least
        fits: Flags = (np.abs(integers * step[:, None] + low[:, None] - some) <= allowed).all(axis=1)
        at = open_blocks[fits]
        codes[at], steps[at], minima[at] = integers[fits], step[fits], low[fits]
        return fits

    _search(np.flatnonzero(spans != 0), top, is_exact, attempt)
    return codes, steps, minima, is_exact


def _search(
    blocks: npt.NDArray[np.intp], top: int, exact: Flags, attempt: Callable[[npt.NDArray[np.intp], int], Flags]
) -> None:
    """Try every code of the largest weight on the remaining blocks; on many blocks, the usual codes first."""
    order = list(range(1, top + 1))
    if len(blocks) > 2 * _ORDER_BLOCKS:
        some, hits = blocks[:: len(blocks) // _ORDER_BLOCKS], {}
        for largest in order:
            hits[largest] = int(attempt(some, largest).sum())
        order.sort(key=lambda largest: -hits[largest])
    for largest in order:
        if not len(blocks):
            return
        done = attempt(blocks, largest)
        exact[blocks[done]] = True
        blocks = blocks[~done]


def _as_half(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        halves: Floats = values.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(halves), halves, np.float32(0))


def _as_bfloat16(values: Floats) -> Floats:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded: Floats = ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


PACKERS = {
    "Q1_0": _by_ggml("Q1_0"),
    "TQ2_0": _by_ggml("TQ2_0"),
    "Q2_0": _by_ggml("Q2_0"),
    "Q2_K": _two_bits,
    "Q3_K": _symmetric("Q3_K", -4, 3),
    "MXFP4": _by_ggml("MXFP4"),
    "Q4_0": _symmetric("Q4_0", -8, 7),
    "Q4_1": _with_minimum("Q4_1", 15),
    "Q5_0": _symmetric("Q5_0", -16, 15),
    "Q5_1": _with_minimum("Q5_1", 31),
    "Q8_0": _symmetric("Q8_0", -127, 127),
}
