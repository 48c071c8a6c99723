"""Fitting the scales of blocks again once their integers are chosen."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import GgmlType
from quantize.gptq.hessian import Curvature, Floats
from quantize.gptq.packing import LAYOUTS, Bytes
from quantize.native.blocks import dequantize_rows


class Knob(msgspec.Struct, frozen=True):
    """A stored number, one for each piece of a row, that the piece's values are linear in.

    `held` is (rows, pieces), changed in place; `slope` (rows, row_values) is how values change with it; `nearest`
    makes of wanted numbers those that can be stored.
    """

    held: npt.NDArray[np.floating]
    slope: Floats
    nearest: Callable[[Floats], npt.NDArray[np.floating]]


def fit_scales(
    blocks: Bytes, qtype: str, targets: Floats, curvature: Curvature, offsets: tuple[int, ...] | None = None
) -> Bytes:
    """Packed rows with the scales that spoil the output least, block after block; the integers stay.

    A block's values are linear in its scales, so that each has one best value given all others.

    Args: blocks: (rows, row_bytes). targets: (row_values, rows) weights, columns in the curvature's order.
    offsets: where in a block its F16 scales are, if not what the type's layout says.
    Returns: a new (rows, row_bytes); the same where the type's scales are not numbers of their own for each block.
    """
    scale_offsets = LAYOUTS[qtype].scales if offsets is None else offsets
    if not scale_offsets:
        return blocks
    traits = GgmlType[qtype].traits
    rows, width = len(blocks), len(targets)
    packed = blocks.reshape(-1, traits.block_bytes).copy()
    knobs = []
    for at in scale_offsets:
        held = packed[:, at : at + 2].copy().view(np.float16).reshape(rows, -1)
        knobs.append(Knob(held, _slope(packed, qtype, at, scale_offsets, width), _half))
    turn(knobs, traits.block_values, _errors(blocks, qtype, targets, curvature), curvature)
    for at, knob in zip(scale_offsets, knobs, strict=True):
        packed[:, at : at + 2] = knob.held.reshape(-1, 1).view(np.uint8)
    return packed.reshape(rows, -1)


def fit_factors(
    blocks: Bytes, qtype: str, factors: Sequence[tuple[int, int]], targets: Floats, curvature: Curvature
) -> Bytes:
    """As `fit_scales`, for the factors of four bits that parts of a block have: byte and shift of each."""
    traits = GgmlType[qtype].traits
    rows, width = len(blocks), len(targets)
    packed = blocks.reshape(-1, traits.block_bytes).copy()
    held = np.stack([(packed[:, at] >> shift) & 15 for at, shift in factors], axis=1)
    first, second = (_with_factors(packed, factors, np.full_like(held, value)) for value in (0, 1))
    values = (dequantize_rows(p.reshape(rows, -1), qtype, width) for p in (second, first))
    knob = Knob(held.reshape(rows, -1).astype(np.float32), np.subtract(*values), _nibble)
    turn([knob], traits.block_values // len(factors), _errors(blocks, qtype, targets, curvature), curvature)
    return _with_factors(packed, factors, knob.held.astype(np.uint8).reshape(held.shape)).reshape(rows, -1)


def turn(knobs: list[Knob], size: int, errors: Floats, curvature: Curvature) -> None:
    """Give each piece of `size` weights, one after the other, the numbers that spoil the output least.

    errors: (row_values, rows), columns in the curvature's order.
    """
    pull = curvature.moments @ errors
    width = len(errors)
    positions = np.empty_like(curvature.order)
    positions[curvature.order] = np.arange(width)
    for segment in range(width // size):
        columns = positions[segment * size : (segment + 1) * size]
        moments = curvature.moments[columns]
        own = np.ascontiguousarray(moments[:, columns])
        here = pull[columns]
        moved = np.zeros_like(here)
        for knob in knobs:
            direction = np.ascontiguousarray(knob.slope[:, segment * size : (segment + 1) * size].T)
            felt = own @ direction
            curve = np.einsum("kr,kr->r", felt, direction)
            options = np.einsum("kr,kr->r", here, direction)
            old = knob.held[:, segment].astype(np.float32)
            step = np.divide(options, curve, out=np.zeros_like(options), where=curve > 0)
            knob.held[:, segment] = knob.nearest(old - step)
            change = knob.held[:, segment].astype(np.float32) - old
            here += felt * change
            moved += direction * change
        pull += moments.T @ moved


_LARGEST = float(np.finfo(np.float16).max)


def _half(wanted: Floats) -> npt.NDArray[np.floating]:
    return np.clip(wanted, -_LARGEST, _LARGEST)


def _nibble(wanted: Floats) -> npt.NDArray[np.floating]:
    return np.clip(np.rint(wanted), 0, 15)


def _errors(blocks: Bytes, qtype: str, targets: Floats, curvature: Curvature) -> Floats:
    errors: Floats = dequantize_rows(blocks, qtype, len(targets))[:, curvature.order].T - targets
    return errors


def _with_factors(packed: Bytes, factors: Sequence[tuple[int, int]], values: Bytes) -> Bytes:
    out = packed.copy()
    for (at, shift), value in zip(factors, values.T, strict=True):
        out[:, at] = (out[:, at] & ~np.uint8(15 << shift)) | (value << np.uint8(shift))
    return out


def _slope(packed: Bytes, qtype: str, at: int, offsets: tuple[int, ...], width: int) -> Floats:
    """How values change with the scale at this offset of their block: (rows, row_values)."""
    alone = packed.copy()
    for other in offsets:
        alone[:, other : other + 2] = np.array([other == at], np.float16).view(np.uint8)
    rows = len(packed) * GgmlType[qtype].traits.block_values // width
    return dequantize_rows(alone.reshape(rows, -1), qtype, width)
