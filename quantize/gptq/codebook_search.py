"""Chooses codebook entries and signs for eight weights at a time, to minimize the change of the layer's output.

The order, the error feedback and the sweeps are those of `quantize.gptq.rows`, with eight columns instead of one
(the vector form of GPTQ: QuIP#, arXiv 2402.04396, section 4; GPTVQ, arXiv 2402.15319).
"""

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.gptq.codebooks import LATTICES, OCTET, Points, pack_points, table
from quantize.gptq.hessian import Floats, Hessian
from quantize.gptq.packing import Bytes
from quantize.native.blocks import dequantize_rows

# Columns handled eight at a time between two matrix products, as in `quantize.gptq.rows`.
_BLOCK = 64
SWEEPS = 2


class BlockHessian(msgspec.Struct, frozen=True):
    """Hessian whose columns are ordered in octets that stay together, largest first.

    `curvature` has that order and no feedback. `feedback` is (k, k): the part of the error of column i that column
    j of a later octet compensates. `metrics` (octets, 8, 8) is the cost of an octet's errors after all later octets
    have compensated their part.
    """

    curvature: Hessian
    feedback: Floats
    metrics: Floats


def in_octets(curvature: Hessian) -> BlockHessian:
    """Order the columns in octets and factor again."""
    k = len(curvature.order)
    natural = np.empty_like(curvature.order)
    natural[curvature.order] = np.arange(k)
    weight = curvature.moments.diagonal()[natural].reshape(-1, OCTET).sum(axis=1, dtype=np.float64)
    first = np.argsort(-weight, kind="stable") * OCTET
    order = (first[:, None] + np.arange(OCTET)).reshape(-1)
    moments = np.ascontiguousarray(curvature.moments[np.ix_(natural[order], natural[order])])
    # R R^T = H with R upper triangular, as in `make_curvature`; then R = U D with blocks of 8 x 8.
    root = np.linalg.cholesky(moments.astype(np.float64)[::-1, ::-1])[::-1, ::-1]
    feedback = np.zeros((k, k), np.float32)
    metrics = np.empty((k // OCTET, OCTET, OCTET), np.float32)
    for at in range(0, k, OCTET):
        own = slice(at, at + OCTET)
        corner = root[own, own]
        feedback[:at, own] = root[:at, own] @ np.linalg.inv(corner)
        metrics[at // OCTET] = corner @ corner.T
    empty = np.empty((0, 0), np.float32)
    return BlockHessian(Hessian(order, moments, curvature.added, empty), feedback, metrics)


class OctetGrid:
    """Values that packed rows can have with fixed scales, octet by octet in rounding order.

    `step` is (octets, rows): the factor of the type's table. `_inverse` is 1 / step, or 0 if the step is 0.
    """

    def __init__(self, qtype: str, step: Floats) -> None:
        lattice = LATTICES[qtype]
        self.qtype, self.step = qtype, step
        self._even, self._dims = lattice.even, lattice.dims
        self._table = table(qtype)
        self._squares = self._table**2
        self._doubled = np.ascontiguousarray(-2 * self._table.T)  # rows in BLAS order, without a transpose
        with np.errstate(divide="ignore"):
            self._inverse = np.where(step == 0, np.float32(0), np.float32(1) / step)

    def picked(self, columns: npt.NDArray[np.intp]) -> "OctetGrid":
        """The grids of some rows."""
        return OctetGrid(self.qtype, np.ascontiguousarray(self.step[:, columns]))

    def nearest(self, octet: int, target: Floats, weights: Floats) -> Floats:
        """The values nearest to `target` (8, rows), with squares weighted by `weights` (8,); same shape."""
        scaled = target * self._inverse[octet]
        minus = scaled < 0
        size = np.abs(scaled)
        if self._even:
            odd = np.flatnonzero(minus.sum(axis=0) & 1)
            # Flip the sign that costs the least; its weight then counts as negative in the search.
            least = (size[:, odd] ** 2 * weights[:, None]).argmin(axis=0)
            size[least, odd] *= -1
            minus[least, odd] ^= True
        points = np.empty_like(target)
        rows = np.ascontiguousarray(size.T)
        for half in range(0, OCTET, self._dims):
            part = slice(half, half + self._dims)
            scores = rows[:, part] @ (weights[part, None] * self._doubled)
            scores += self._squares @ weights[part]
            points[part] = self._table[scores.argmin(axis=1)].T
        points *= self.step[octet]
        np.negative(points, out=points, where=minus)
        return points

    def codes(self, values: Floats) -> tuple[Points, Bytes]:
        """Codebook entries and signs of grid values (columns, rows), in their order.

        Returns: entries (rows, columns / dims), signs (rows, octets).
        """
        columns, rows = values.shape
        scaled = values.reshape(-1, OCTET, rows) * self._inverse[:, None, :]
        signs = np.packbits(scaled < 0, axis=1, bitorder="little")[:, 0].T
        digits = _digits(np.abs(scaled)).transpose(2, 0, 1).reshape(-1, self._dims)
        names, point_names = (d @ _BASE ** np.arange(self._dims) for d in (_digits(self._table), digits))
        order = names.argsort(kind="stable")
        positions = np.searchsorted(names[order], point_names)
        # If the step is 0, all codebook entries are equal.
        points = order[np.minimum(positions, len(order) - 1)].astype(np.uint16)
        return points.reshape(rows, columns // self._dims), np.ascontiguousarray(signs)


# Values of all tables are multiples of 1/8 below 16. Source: ggml-common.h, iq2xs_grid and the others.
_EIGHTHS, _BASE = 8, np.int64(128)


def _digits(values: Floats) -> npt.NDArray[np.int64]:
    return np.rint(values * _EIGHTHS).astype(np.int64)


def make_octet_grid(bases: list[Bytes], qtype: str, row_values: int, order: npt.NDArray[np.intp]) -> OctetGrid:
    """The grids of packed rows, stacked; `order` is the order of the columns, with whole octets."""
    octets = row_values // OCTET
    steps = []
    for base in bases:
        rows = len(base)
        points = np.zeros((rows, row_values // LATTICES[qtype].dims), np.uint16)
        packed = pack_points(base, qtype, points, np.zeros((rows, octets), np.uint8))
        first = dequantize_rows(packed, qtype, row_values)[:, ::OCTET] / table(qtype)[0, 0]
        steps.append(first[:, order[::OCTET] // OCTET].T)
    return OctetGrid(qtype, np.ascontiguousarray(np.concatenate(steps, axis=1)))


def feed_octets_forward(targets: Floats, grid: OctetGrid, octets: BlockHessian) -> tuple[Floats, Floats]:
    """Round octets in order; each one compensates its part of the earlier errors.

    Returns values and values - targets.
    """
    feedback = octets.feedback
    values, errors = np.empty_like(targets), np.empty_like(targets)
    for start in range(0, len(targets), _BLOCK):
        stop = min(len(targets), start + _BLOCK)
        goal = targets[start:stop] - feedback[:start, start:stop].T @ errors[:start]
        for at in range(start, stop, OCTET):
            own = slice(at, at + OCTET)
            x = goal[at - start : at - start + OCTET]
            if at > start:
                x -= feedback[start:at, own].T @ errors[start:at]
            values[own] = grid.nearest(at // OCTET, x, octets.metrics[at // OCTET].diagonal())
            np.subtract(values[own], targets[own], out=errors[own])
    return values, errors


def descend_octets(
    values: Floats, errors: Floats, grid: OctetGrid, octets: BlockHessian, sweeps: int = SWEEPS
) -> None:
    """Sweep over the octets in place: each moves to better values, if any exist with all others fixed."""
    moments = octets.curvature.moments
    changes = np.empty((_BLOCK, values.shape[1]), np.float32)
    for _ in range(sweeps):
        for start in range(0, len(values), _BLOCK):
            stop = min(len(values), start + _BLOCK)
            slopes = moments[start:stop] @ errors
            for at in range(start, stop, OCTET):
                own, here = slice(at, at + OCTET), slice(at - start, at - start + OCTET)
                slope = slopes[here]
                if at > start:
                    slope = slope + moments[own, start:at] @ changes[: at - start]
                moved = _improved(grid, at // OCTET, values[own], slope, moments[own, own])
                np.subtract(moved, values[own], out=changes[here])
                values[own] = moved
            errors[start:stop] += changes[: stop - start]


def _improved(grid: OctetGrid, octet: int, values: Floats, slope: Floats, metric: Floats) -> Floats:
    """Values x + d of the grid for which d^T (metric d + 2 slope) is below 0, or x if none is found.

    Searches around the minimum without a grid, with squares weighted by the metric's diagonal.
    """
    minimum = values - np.linalg.solve(metric, slope)
    points = grid.nearest(octet, minimum, metric.diagonal())
    change = points - values
    better = np.einsum("kr,kr->r", change, 2 * slope + metric @ change) < 0
    return np.where(better, points, values)
