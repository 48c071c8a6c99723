"""Sums of outer products, in blocks of one size; numpy's own threads are kept to one (see `quantize.child`)."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_BLOCK = 768  # rows of a product computed at a time: bounds scratch memory to 45 MB at a width of 14336


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


def _blocks(width: int) -> list[slice]:
    return [slice(a, min(width, a + _BLOCK)) for a in range(0, width, _BLOCK)]
