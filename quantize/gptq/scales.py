"""Fitting the scales of blocks anew once their integers are chosen."""

import numpy as np
import numpy.typing as npt

from quantize.gptq.curvature import Curvature, Floats
from quantize.gptq.packing import LAYOUTS, Bytes
from quantize.native.blocks import dequantize_rows


def fit_scales(blocks: Bytes, qtype: str, targets: Floats, curvature: Curvature) -> Bytes:
    """Packed rows with the scales that spoil the output least, block after block; the integers stay.

    A block's values are linear in its scales, so that each has one best value given all others.

    Args: blocks: (rows, row_bytes). targets: (row_values, rows) weights, columns in the curvature's order.
    Returns: a new (rows, row_bytes); the same where the type's scales are not numbers of their own for each block.
    """
    layout = LAYOUTS[qtype]
    if not layout.scales:
        return blocks
    rows, width, size = len(blocks), len(targets), layout.block_values
    packed = blocks.reshape(-1, layout.block_bytes).copy()
    scales = [packed[:, at : at + 2].copy().view(np.float16).reshape(rows, -1) for at in layout.scales]
    slopes = [_slope(packed, qtype, at, rows, width) for at in layout.scales]
    errors = dequantize_rows(blocks, qtype, width)[:, curvature.order].T - targets
    pull = curvature.moments @ errors
    places = np.empty_like(curvature.order)
    places[curvature.order] = np.arange(width)
    for block in range(width // size):
        columns = places[block * size : (block + 1) * size]
        moments = curvature.moments[columns]
        own = np.ascontiguousarray(moments[:, columns])
        here = pull[columns]
        moved = np.zeros_like(here)
        for scale, slope in zip(scales, slopes, strict=True):
            direction = np.ascontiguousarray(slope[:, block * size : (block + 1) * size].T)
            felt = own @ direction
            curve = np.einsum("kr,kr->r", felt, direction)
            options = np.einsum("kr,kr->r", here, direction)
            old = scale[:, block].astype(np.float32)
            step = np.divide(options, curve, out=np.zeros_like(options), where=curve > 0)
            scale[:, block] = np.clip(old - step, -_LARGEST, _LARGEST)
            change = scale[:, block].astype(np.float32) - old
            here += felt * change
            moved += direction * change
        pull += moments.T @ moved
    for at, scale in zip(layout.scales, scales, strict=True):
        packed[:, at : at + 2] = scale.reshape(-1, 1).view(np.uint8)
    return packed.reshape(rows, -1)


_LARGEST = float(np.finfo(np.float16).max)


def _slope(packed: Bytes, qtype: str, at: int, rows: int, width: int) -> npt.NDArray[np.float32]:
    """How values change with the scale at this offset of their block: (rows, row_values)."""
    alone = packed.copy()
    for other in LAYOUTS[qtype].scales:
        alone[:, other : other + 2] = np.array([other == at], np.float16).view(np.uint8)
    return dequantize_rows(alone.reshape(rows, -1), qtype, width)
