"""Matrix products on several threads; numpy's own threads are kept to one (see `quantize.child`)."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# Narrower products are over before threads have begun. Measured: docs/log.md, craft ("Threads for products").
_MIN_WIDTH = 1024
_BLOCKS_A_THREAD = 4


def gram(rows: Floats, threads: int = 1) -> Floats:
    """rows^T rows of (tokens, width), as (width, width)."""
    width = rows.shape[1]
    if threads <= 1 or width < _MIN_WIDTH:
        plain: Floats = rows.T @ rows
        return plain
    out = np.empty((width, width), np.float32)
    blocks = _blocks(width, threads)

    def upper(block: slice) -> None:
        out[block, block.start :] = rows[:, block].T @ rows[:, block.start :]

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(upper, blocks))
    for block in blocks:
        out[block.stop :, block] = out[block, block.stop :].T
    return out


def cross(left: Floats, right: Floats, threads: int = 1) -> Floats:
    """left^T right of (tokens, rows) and (tokens, width), as (rows, width)."""
    if threads <= 1 or left.shape[1] < _MIN_WIDTH:
        plain: Floats = left.T @ right
        return plain
    out = np.empty((left.shape[1], right.shape[1]), np.float32)

    def part(block: slice) -> None:
        out[block] = left[:, block].T @ right

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(part, _blocks(left.shape[1], threads)))
    return out


def _blocks(width: int, threads: int) -> list[slice]:
    edges = np.linspace(0, width, _BLOCKS_A_THREAD * threads + 1).round().astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(edges) if b > a]
