"""Matrix products on several threads; numpy's own threads are kept to one (see `quantize.child`)."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# Narrower products are over before threads have begun. Measured: docs/log.md, craft ("Threads for products").
_MIN_WIDTH = 1024
_BLOCK = 768  # rows of a product computed at a time: bounds scratch memory to 45 MB at a width of 14336


def gram(rows: Floats) -> Floats:
    """rows^T rows of (tokens, width), as (width, width)."""
    out = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    add_gram(out, rows)
    mirror(out)
    return out


def add_gram(sums: Floats, rows: Floats) -> None:
    """Add rows^T rows of (tokens, width) to the upper triangle of blocks of (width, width); see `mirror`.

    Blocks are of one size, so that sums depend on nothing but the rows; on the diagonal numpy calls BLAS's
    symmetric product, which takes half the time.
    """
    for block in _blocks(rows.shape[1]):
        left = rows[:, block]
        sums[block, block] += left.T @ left
        if block.stop < rows.shape[1]:
            sums[block, block.stop :] += left.T @ rows[:, block.stop :]


def mirror(sums: Floats) -> None:
    """Fill the lower triangle that `add_gram` leaves alone. In place."""
    for block in _blocks(sums.shape[0]):
        sums[block.stop :, block] = sums[block, block.stop :].T


def cross(left: Floats, right: Floats, threads: int = 1) -> Floats:
    """left^T right of (tokens, rows) and (tokens, width), as (rows, width)."""
    if threads <= 1 or left.shape[1] < _MIN_WIDTH:
        plain: Floats = left.T @ right
        return plain
    out = np.empty((left.shape[1], right.shape[1]), np.float32)

    def part(block: slice) -> None:
        out[block] = left[:, block].T @ right

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(part, _blocks(left.shape[1])))
    return out


def _blocks(width: int) -> list[slice]:
    return [slice(a, min(width, a + _BLOCK)) for a in range(0, width, _BLOCK)]
