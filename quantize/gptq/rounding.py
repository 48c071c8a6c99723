"""Choosing the integers of packed rows so that the layer's output, not its weights, changes least.

GPTQ's order and error feedback (arXiv 2210.17323, in the form of QuIP, arXiv 2307.13304) on a grid that is already
fixed, then sweeps of coordinate descent on the same objective.
"""

import numpy as np

from quantize.gptq.grid import Grid
from quantize.gptq.hessian import Curvature, Floats

# Columns handled one by one between two matrix products. Measured: 64 and 128 within a tenth up to a width of 4096,
# 32 a fifth slower there (docs/log.md, "GPTQ rounding").
_BLOCK = 64
SWEEPS = 2  # Measured: none, 1, 2, 3 sweeps leave 1.052, 1.012, 1, .995 of the error (docs/log.md, "GPTQ rounding")


def feed_forward(targets: Floats, grid: Grid, curvature: Curvature) -> tuple[Floats, Floats]:
    """Round columns in order, each taking over its share of the errors before: tr(E H E^T) stays small.

    Args: targets: (row_values, rows) weights, columns in the curvature's order.
    Returns: values, each on the grid, and values - targets.
    """
    values = np.empty_like(targets)
    return values, _feed_errors_forward(targets, values, grid, curvature.feedback)


def descend(values: Floats, errors: Floats, grid: Grid, curvature: Curvature, sweeps: int = SWEEPS) -> None:
    """Sweeps of coordinate descent from what `feed_forward` found. In place."""
    for _ in range(sweeps):
        _descend(values, errors, grid, curvature.moments)


def _feed_errors_forward(targets: Floats, values: Floats, grid: Grid, feedback: Floats) -> Floats:
    k, rows = targets.shape
    errors = np.empty_like(targets)
    work = np.empty(rows, np.float32)
    for start in range(0, k, _BLOCK):
        stop = min(k, start + _BLOCK)
        wanted = targets[start:stop] - feedback[:start, start:stop].T @ errors[:start]
        for i in range(start, stop):
            x = wanted[i - start]
            if i > start:
                x -= feedback[start:i, i] @ errors[start:i]
            grid.nearest(i, x, values[i], work)
            np.subtract(values[i], targets[i], out=errors[i])
    return errors


def _descend(values: Floats, errors: Floats, grid: Grid, moments: Floats) -> None:
    """One sweep: each column in turn moves to its best grid value given all others. In place."""
    k, rows = values.shape
    work = np.empty(rows, np.float32)
    wanted = np.empty(rows, np.float32)
    changes = np.empty((_BLOCK, rows), np.float32)
    found = np.empty(rows, np.float32)
    for start in range(0, k, _BLOCK):
        stop = min(k, start + _BLOCK)
        slopes = moments[start:stop] @ errors
        for i in range(start, stop):
            slope = slopes[i - start]
            if i > start:
                slope += moments[i, start:i] @ changes[: i - start]
            np.multiply(slope, -1.0 / moments[i, i], out=wanted)
            wanted += values[i]
            grid.nearest(i, wanted, found, work)
            np.subtract(found, values[i], out=changes[i - start])
            values[i] = found
        errors[start:stop] += changes[: stop - start]
