"""The second moments of a layer's inputs, made ready for rounding against them."""

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.measurement_folder import Group

# Sums of outer products, in blocks of one size; numpy's own threads are kept to one (see `quantize.child`).

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


# Share of the mean diagonal added to it, so that unseen directions still count a little.
# Source: GPTQ (arXiv 2210.17323), section 3.3, whose 1 % held in our trial too.
DAMPING = 0.05
# What is added to that for each column a token: the fewer tokens, the less the smaller directions can be believed.
# Measured: docs/log.md, "Quantization in minutes" ("Tokens").
_DOUBT = 0.2
# What a tied table's second moments get on top, as a share of their mean: its rows are inputs too, and there every
# column counts alike. Source: docs/dev/quantization.md, "Tied heads".
TIED_FRACTION = 0.1


class Curvature(msgspec.Struct, frozen=True):
    """Damped second moments in rounding order (largest diagonal first).

    `added` is what damping added to the diagonal. `moments` is (k, k); `feedback` is strictly upper triangular: the
    part of the error of column i that column j takes over (the unit factor of
    moments = (feedback + I) D (feedback + I)^T).
    """

    order: npt.NDArray[np.intp]
    moments: Floats
    added: float
    feedback: Floats

    @property
    def importance(self) -> Floats:
        """(k,) mean squares of the inputs in their own order, without the damping."""
        importance = np.empty(len(self.order), np.float32)
        importance[self.order] = np.maximum(self.moments.diagonal() - np.float32(self.added), 0)
        return importance

    def output_error(self, errors: Floats) -> Floats:
        """Each row's share of tr(E H E^T), damping left out; errors (row_values, rows) in rounding order."""
        damped = np.einsum("kr,kr->r", errors, self.moments @ errors)
        added: Floats = np.float32(self.added) * np.einsum("kr,kr->r", errors, errors)
        shares: Floats = np.maximum(damped - added, 0)
        return shares


def make_curvature(
    moments: npt.NDArray[np.floating], damping: float = DAMPING, *, feedback: bool = True
) -> Curvature:
    """Order, damp and factor second moments.

    Args: moments: (k, k) mean outer products of the inputs, symmetric, any scale. feedback: False leaves the factor
    away (its place is empty), which only error feedback needs.
    Raises: ValueError: not square or not finite.
    """
    k = moments.shape[0]
    if moments.shape != (k, k) or not np.isfinite(moments).all():
        raise ValueError("second moments must be a finite square matrix")
    diagonal = moments.diagonal()
    order = np.argsort(-diagonal, kind="stable")
    damped = moments[np.ix_(order, order)].astype(np.float64)
    mean = float(diagonal.mean())
    if mean <= 0:  # nothing was seen: every column counts the same
        damped = np.eye(k)
        mean = 1.0
    added = damping * mean
    damped[np.diag_indices(k)] += added
    if not feedback:
        return Curvature(order, damped.astype(np.float32), added, np.empty((0, 0), np.float32))
    # R R^T = H with R upper triangular, from the Cholesky factor of H read backwards.
    root = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    unit = root / root.diagonal()[None, :]
    unit[np.tril_indices(k)] = 0.0
    return Curvature(order, damped.astype(np.float32), added, np.ascontiguousarray(unit, np.float32))


def group_curvature(
    group: Group,
    moments: npt.NDArray[np.float32] | None,
    expert: int,
    tokens: int | None = None,
    *,
    feedback: bool = True,
) -> Curvature:
    """The curvature of one expert's input, from so many tokens. A group never seen counts every column alike."""
    if moments is None:
        return make_curvature(np.eye(group.width, dtype=np.float32), feedback=feedback)
    matrix = np.asarray(moments[expert])
    if group.tied:
        matrix = matrix + np.float32(TIED_FRACTION * matrix.diagonal().mean()) * np.eye(
            len(matrix), dtype=np.float32
        )
    doubt = _DOUBT * group.width / tokens if tokens else 0.0
    return make_curvature(matrix, DAMPING + doubt, feedback=feedback)
