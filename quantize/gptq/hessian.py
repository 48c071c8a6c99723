"""The Hessian of a layer's inputs, damped and factored for GPTQ."""

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.measurement_folder import SharedInputGroup

# Sums of outer products, in blocks of one size; numpy is limited to one thread (see `quantize.child`).

Floats = npt.NDArray[np.float32]

_BLOCK = 768  # rows of a product computed at a time: limits scratch memory to 45 MB at a width of 14336


def add_gram(sums: Floats, rows: Floats) -> None:
    """Add rows^T rows of (tokens, width) to the upper triangle of blocks of (width, width); see `mirror`.

    All blocks have the same size, so the sums depend only on the rows. On the diagonal numpy calls BLAS's symmetric
    product, which takes half the time.
    """
    for block in _blocks(rows.shape[1]):
        left = rows[:, block]
        sums[block, block] += left.T @ left
        if block.stop < rows.shape[1]:
            sums[block, block.stop :] += left.T @ rows[:, block.stop :]


def mirror(sums: Floats) -> None:
    """Fill the lower triangle, which `add_gram` does not compute. In place."""
    for block in _blocks(sums.shape[0]):
        sums[block.stop :, block] = sums[block, block.stop :].T


def _blocks(width: int) -> list[slice]:
    return [slice(a, min(width, a + _BLOCK)) for a in range(0, width, _BLOCK)]


# Fraction of the mean diagonal added to it, so that unseen directions still count a little. Source: GPTQ (arXiv
# 2210.17323), section 3.3, whose 1 % also worked in Tessera's tests.
DAMPING = 0.05
# Additional damping per column per token: with fewer tokens the smaller directions are less reliable. Measured:
# log-archive.md, "Quantization in minutes" ("Tokens").
_DOUBT = 0.2
# Additional damping of a tied table's Hessian, as a fraction of its mean: the table's rows are also inputs, and
# there every column counts the same. Source: docs/dev/quantization.md, "Tied heads".
TIED_FRACTION = 0.1


class Hessian(msgspec.Struct, frozen=True):
    """Damped Hessian in rounding order (largest diagonal first).

    `added` is the damping added to the diagonal. `moments` is the Hessian, (k, k). `feedback` is strictly upper
    triangular: the part of the error of column i that column j compensates (the unit factor of moments = (feedback
    + I) D (feedback + I)^T).
    """

    order: npt.NDArray[np.intp]
    moments: Floats
    added: float
    feedback: Floats

    @property
    def importance(self) -> Floats:
        """(k,) mean squares of the inputs in their original order, without damping."""
        importance = np.empty(len(self.order), np.float32)
        importance[self.order] = np.maximum(self.moments.diagonal() - np.float32(self.added), 0)
        return importance

    def output_error(self, errors: Floats) -> Floats:
        """Each row's part of tr(E H E^T), without damping; errors (row_values, rows) in rounding order."""
        damped = np.einsum("kr,kr->r", errors, self.moments @ errors)
        added: Floats = np.float32(self.added) * np.einsum("kr,kr->r", errors, errors)
        shares: Floats = np.maximum(damped - added, 0)
        return shares


def make_curvature(
    moments: npt.NDArray[np.floating], damping: float = DAMPING, *, feedback: bool = True
) -> Hessian:
    """Order, damp and factor a Hessian.

    Args: moments: (k, k) mean outer products of the inputs, symmetric, any scale. feedback: False omits the factor
    (an empty array), which only error feedback needs.
    Raises: ValueError: not square or not finite.
    """
    k = moments.shape[0]
    if moments.shape != (k, k) or not np.isfinite(moments).all():
        raise ValueError("second moments must be a finite square matrix")
    diagonal = moments.diagonal()
    order = np.argsort(-diagonal, kind="stable")
    damped = moments[np.ix_(order, order)].astype(np.float64)
    mean = float(diagonal.mean())
    if mean <= 0:  # no inputs seen: every column counts the same
        damped = np.eye(k)
        mean = 1.0
    added = damping * mean
    damped[np.diag_indices(k)] += added
    if not feedback:
        return Hessian(order, damped.astype(np.float32), added, np.empty((0, 0), np.float32))
    # R R^T = H with R upper triangular, from the Cholesky factor of the reversed H.
    root = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    unit = root / root.diagonal()[None, :]
    unit[np.tril_indices(k)] = 0.0
    return Hessian(order, damped.astype(np.float32), added, np.ascontiguousarray(unit, np.float32))


def group_curvature(
    group: SharedInputGroup,
    moments: npt.NDArray[np.float32] | None,
    expert: int,
    tokens: int | None = None,
    *,
    feedback: bool = True,
) -> Hessian:
    """The Hessian of one expert's input, measured on `tokens` tokens.

    For a group without inputs every column counts the same.
    """
    if moments is None:
        return make_curvature(np.eye(group.width, dtype=np.float32), feedback=feedback)
    matrix = np.asarray(moments[expert])
    if group.tied:
        matrix = matrix + np.float32(TIED_FRACTION * matrix.diagonal().mean()) * np.eye(
            len(matrix), dtype=np.float32
        )
    doubt = _DOUBT * group.width / tokens if tokens else 0.0
    return make_curvature(matrix, DAMPING + doubt, feedback=feedback)
