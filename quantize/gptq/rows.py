"""The best blocks for rows of weights, given the Hessian of their inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import GgmlType
from quantize.gptq.codebook_search import (
    BlockHessian,
    OctetGrid,
    descend_octets,
    feed_octets_forward,
    in_octets,
    make_octet_grid,
)
from quantize.gptq.codebooks import LATTICES, OCTET, pack_points
from quantize.gptq.hessian import Floats, Hessian
from quantize.gptq.packing import LAYOUTS, Bytes, pack
from quantize.native.blocks import dequantize_rows, quantize_rows, type_traits

# The values that packed rows can have with fixed scales, and rounding to them.

# The tables of the types whose codes select values from a table.
_TABLES = tuple(dict.fromkeys(layout.table for layout in LAYOUTS.values() if layout.nonlinear))
# Entries of a lookup table on either side of 0, and entries per unit: as many as fit, as a power of two.
_LUT_HALF = 512
_FINE = tuple(_LUT_HALF // (1 << max(map(abs, table)).bit_length()) for table in _TABLES)


def _nearest(table: tuple[int, ...], fine: int) -> Floats:
    position = np.arange(-_LUT_HALF, _LUT_HALF + 1, dtype=np.float32) / fine
    values = np.array(table, np.float32)
    nearest: Floats = values[np.abs(position[:, None] - values).argmin(axis=1)]
    return nearest


_LUTS = np.concatenate([_nearest(table, fine) for table, fine in zip(_TABLES, _FINE, strict=True)])


class Grid(msgspec.Struct, frozen=True):
    """Fixed grids of several rows, one column of the matrix at a time.

    Arrays are (row_values, rows): columns of the weight matrix first, in rounding order. Rows up to `num_linear`
    have the values `origin + step * code` with codes 0..`levels`-1. The other rows have `step * table[code]`, with
    the row's own table.
    """

    origin: Floats  # (row_values, num_linear)
    step: Floats  # (row_values, rows)
    inverse: Floats  # 1 / step, 0 if the step is 0; for rows with a table in units of its lookup table
    top: Floats  # (num_linear,) highest code
    num_linear: int
    tables: npt.NDArray[np.int32]  # (rows - num_linear,) indices into _TABLES

    def nearest(self, column: int, target: Floats, out: Floats, work: Floats) -> None:
        """Write the grid values of one column nearest to `target` to `out`; all (rows,). `work` is scratch."""
        n = self.num_linear
        if n:
            w = work[:n]
            np.subtract(target[:n], self.origin[column], out=w)
            np.multiply(w, self.inverse[column, :n], out=w)
            np.rint(w, out=w)
            np.maximum(w, 0.0, out=w)
            np.minimum(w, self.top, out=w)
            np.multiply(w, self.step[column, :n], out=w)
            np.add(w, self.origin[column], out=out[:n])
        if n < len(out):
            w = work[n:]
            np.multiply(target[n:], self.inverse[column, n:], out=w)
            np.add(w, _LUT_HALF + 0.5, out=w)
            np.maximum(w, 0.0, out=w)
            np.minimum(w, 2.0 * _LUT_HALF, out=w)
            np.take(_LUTS, w.astype(np.int32) + self.tables * np.int32(2 * _LUT_HALF + 1), out=w, mode="clip")
            np.multiply(w, self.step[column, n:], out=out[n:])

    def picked(self, rows: npt.NDArray[np.intp]) -> "Grid":
        """The grids of some rows, given in ascending order."""
        linear = rows[rows < self.num_linear]
        return Grid(
            origin=np.ascontiguousarray(self.origin[:, linear]),
            step=np.ascontiguousarray(self.step[:, rows]),
            inverse=np.ascontiguousarray(self.inverse[:, rows]),
            top=self.top[linear],
            num_linear=len(linear),
            tables=self.tables[rows[len(linear) :] - self.num_linear],
        )

    def codes(self, values: Floats) -> Bytes:
        """Codes of grid values (row_values, rows), as uint8 of the same shape."""
        n = self.num_linear
        out = np.empty(values.shape, np.uint8)
        linear = np.rint((values[:, :n] - self.origin) * self.inverse[:, :n])
        out[:, :n] = np.clip(linear, 0, self.top)
        for number, table in enumerate(_TABLES):
            rows = n + np.flatnonzero(self.tables == number)
            levels, codes = np.unique(np.array(table, np.float32), return_index=True)
            scaled = values[:, rows] * self.inverse[:, rows] / _FINE[number]
            out[:, rows] = codes[np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled)]
        return out


def has_grid(qtype: str) -> bool:
    """Whether a type stores one integer per weight, so that GPTQ can choose the integers."""
    return qtype in LAYOUTS


def make_grid(bases: list[tuple[str, Bytes]], row_values: int, order: npt.NDArray[np.intp]) -> Grid:
    """The grids of packed rows of several types, stacked; types with a table must come last.

    Args: bases: (type, (rows, row_bytes)). order: the columns in rounding order.
    Raises: ValueError: a type with a table comes before one without.
    """
    origins: list[Floats] = []
    steps: list[Floats] = []
    inverses: list[Floats] = []
    tops: list[Floats] = []
    tables: list[npt.NDArray[np.int32]] = []
    num_linear = 0
    for qtype, base in bases:
        layout = LAYOUTS[qtype]
        shape = (base.shape[0], row_values)
        fine = 1
        if layout.nonlinear:
            number = _TABLES.index(layout.table)
            fine = _FINE[number]
            tables.append(np.full(base.shape[0], number, np.int32))
            # The code with value 1 gives a block's scale.
            step = _expand(base, qtype, np.full(shape, layout.table.index(1), np.uint8), order)
        else:
            if len(steps) > len(origins):
                raise ValueError("types with a table must come last")
            first = _expand(base, qtype, np.full(shape, layout.origin, np.uint8), order)
            step = _expand(base, qtype, np.full(shape, layout.origin + 1, np.uint8), order) - first
            origins.append(first - layout.origin * step)
            tops.append(np.full(base.shape[0], layout.levels - 1, np.float32))
            num_linear += base.shape[0]
        with np.errstate(divide="ignore"):
            inverse = np.where(step == 0, np.float32(0), np.float32(1) / step)
        steps.append(step)
        inverses.append(inverse * np.float32(fine) if layout.nonlinear else inverse)
    empty = np.empty((row_values, 0), np.float32)
    return Grid(
        origin=np.concatenate(origins, axis=1) if origins else empty,
        step=np.concatenate(steps, axis=1),
        inverse=np.concatenate(inverses, axis=1),
        top=np.concatenate(tops) if tops else np.empty(0, np.float32),
        num_linear=num_linear,
        tables=np.concatenate(tables) if tables else np.empty(0, np.int32),
    )


def _expand(base: Bytes, qtype: str, codes: Bytes, order: npt.NDArray[np.intp]) -> Floats:
    values = dequantize_rows(pack(base, qtype, codes), qtype, codes.shape[1])
    return np.ascontiguousarray(values[:, order].T)


# Importance exponents for ggml's own scale search; each row uses the best one. Source: docs/dev/quantization.md,
# "GPTQ rounding".
POWERS = (1.0, 0.5, 0.0)
# GPTQ needs no scales for exponent 0: on ten tensors of a real model they lower the output error by at most 0.35 %,
# and take up to a quarter of the time.
EXPONENTS = POWERS[:2]
# Weights per pass: limits memory to about ten times as many float32 values.
_PASS_VALUES = 1 << 22
# Rows per batch; larger batches were not faster.
_SHARE_ROWS = 1024
# Rows per batch for codebook types, where each octet is compared with all codebook entries.
_OCTET_ROWS = 256


class RoundedRows(msgspec.Struct, frozen=True):
    """Packed rows (rows, row_bytes) and each row's part of the output error tr(dW H dW^T), (rows,)."""

    blocks: Bytes
    errors: Floats


def plain_rows(weights: Floats, qtype: str, curvature: Hessian, exponents: tuple[float, ...]) -> RoundedRows:
    """Quantize with ggml once per importance exponent, and take the result with the least error for each row."""
    return best_rows(choices(weights, qtype, curvature, exponents))


def choices(
    weights: Floats, qtype: str, curvature: Hessian, exponents: tuple[float, ...]
) -> tuple[RoundedRows, ...]:
    """Quantize with ggml once per importance exponent; only once if the importance is unknown."""
    rounded = []
    for blocks in _bases(weights, qtype, curvature, exponents):
        values = dequantize_rows(blocks, qtype, weights.shape[1])
        errors = curvature.output_error(np.ascontiguousarray((values - weights)[:, curvature.order].T))
        rounded.append(RoundedRows(blocks, errors))
    return tuple(rounded)


def best_rows(several: Sequence[RoundedRows]) -> RoundedRows:
    """For each row, the choice with the least error."""
    return reduce(_better, several)


def gptq_rows(
    weights: Floats,
    qtypes: tuple[str, ...],
    curvature: Hessian,
    exponents: tuple[float, ...] = EXPONENTS,
    tried: Mapping[str, Sequence[RoundedRows]] | None = None,
    octets: BlockHessian | None = None,
) -> dict[str, RoundedRows]:
    """Round rows with GPTQ on the scales of each exponent, and take the best result per row.

    ggml rounds types without a grid or codebook. Rounding several types in one pass is faster than one after
    another. `tried` are the `choices` of each type and `octets` the Hessian for codebook types, if they exist
    already.
    """
    plain = [q for q in qtypes if not has_grid(q) and q not in LATTICES]
    rounded = {
        q: best_rows(tried[q]) if tried is not None else plain_rows(weights, q, curvature, exponents) for q in plain
    }
    bases = {
        q: [r.blocks for r in tried[q]] if tried is not None else _bases(weights, q, curvature, exponents)
        for q in qtypes
        if q not in plain
    }
    for qtype in (q for q in qtypes if q in LATTICES):
        octets = octets or in_octets(curvature)
        rounded[qtype] = _gptq_octets(weights, bases[qtype], qtype, octets)
    gridded = sorted((q for q in qtypes if has_grid(q)), key=lambda q: LAYOUTS[q].nonlinear)
    rows, width = weights.shape
    # Process as many rows and types at a time as fit in a pass.
    row_step = max(1, min(rows, _SHARE_ROWS, _PASS_VALUES // (width * len(exponents))))
    type_step = max(1, _PASS_VALUES // (width * len(exponents) * row_step))

    def share(first: int) -> dict[str, RoundedRows]:
        part = slice(first, first + row_step)
        targets = np.ascontiguousarray(weights[part, curvature.order].T)
        done: dict[str, RoundedRows] = {}
        for start in range(0, len(gridded), type_step):
            some = {q: [base[part] for base in bases[q]] for q in gridded[start : start + type_step]}
            done |= _gptq_pass(targets, some, curvature)
        return done

    parts = [share(first) for first in range(0, rows, row_step)] if gridded else []
    return rounded | {q: _joined([part[q] for part in parts]) for q in gridded}


def _gptq_octets(weights: Floats, bases: list[Bytes], qtype: str, octets: BlockHessian) -> RoundedRows:
    parts = [slice(first, first + _OCTET_ROWS) for first in range(0, len(weights), _OCTET_ROWS)]
    return _joined([RoundedRows(*gptq_octet_rows(weights[p], [b[p] for b in bases], qtype, octets)) for p in parts])


def _joined(results: list[RoundedRows]) -> RoundedRows:
    return RoundedRows(np.concatenate([p.blocks for p in results]), np.concatenate([p.errors for p in results]))


def _gptq_pass(targets: Floats, bases: dict[str, list[Bytes]], curvature: Hessian) -> dict[str, RoundedRows]:
    """Round the same rows to the grids of several types at the same time.

    Each row continues with the grid that is best after error feedback. The sweeps take most of the time and seldom
    change which grid that is (log-archive.md, "Quantization in minutes").
    """
    width, rows = targets.shape
    grid = make_grid([(q, base) for q, several in bases.items() for base in several], width, curvature.order)
    values, errors = feed_forward(np.tile(targets, sum(map(len, bases.values()))), grid, curvature)
    spoiled = curvature.output_error(errors).reshape(-1, rows)
    best: dict[str, npt.NDArray[np.intp]] = {}
    at = 0
    for qtype, several in bases.items():
        best[qtype] = spoiled[at : at + len(several)].argmin(axis=0)
        at += len(several)
    first = np.cumsum([0, *map(len, bases.values())])
    columns = [(f + b) * rows + np.arange(rows) for f, b in zip(first, best.values(), strict=False)]
    chosen = np.concatenate(columns)
    rising = np.argsort(chosen, kind="stable")
    grid = grid.picked(chosen[rising])
    values, errors = (np.ascontiguousarray(x[:, chosen[rising]]) for x in (values, errors))
    descend(values, errors, grid, curvature)
    spoiled = curvature.output_error(errors)
    codes = np.empty((len(chosen), width), np.uint8)
    codes[:, curvature.order] = grid.codes(values).T
    position = np.empty_like(rising)
    position[rising] = np.arange(len(rising))
    out = {}
    for index, (qtype, several) in enumerate(bases.items()):
        mine = position[index * rows : (index + 1) * rows]
        base = np.stack(several)[best[qtype], np.arange(rows)]
        rounded = RoundedRows(pack(base, qtype, codes[mine]), spoiled[mine])
        out[qtype] = _refined(rounded, qtype, targets, curvature) if LAYOUTS[qtype].scales else rounded
    return out


def _refined(first: RoundedRows, qtype: str, targets: Floats, curvature: Hessian) -> RoundedRows:
    """Fit the scales to the integers, then the integers to the new scales, then the scales again."""
    width, rows = targets.shape
    blocks = fit_scales(first.blocks, qtype, targets, curvature)
    grid = make_grid([(qtype, blocks)], width, curvature.order)
    values = np.ascontiguousarray(dequantize_rows(blocks, qtype, width)[:, curvature.order].T)
    descend(values, values - targets, grid, curvature, sweeps=1)
    codes = np.empty((rows, width), np.uint8)
    codes[:, curvature.order] = grid.codes(values).T
    blocks = fit_scales(pack(blocks, qtype, codes), qtype, targets, curvature)
    values = dequantize_rows(blocks, qtype, width)[:, curvature.order].T
    refined = RoundedRows(blocks, curvature.output_error(np.ascontiguousarray(values - targets)))
    return _better(first, refined)


def _bases(
    weights: Floats, qtype: str, curvature: Hessian, exponents: tuple[float, ...]
) -> list[npt.NDArray[np.uint8]]:
    importance = curvature.importance
    if not importance.any():
        return [quantize_rows(weights, qtype, np.ones(weights.shape[1], np.float32))]
    scaled = importance / importance.max()
    powers = [_power(scaled, exponent, importance) for exponent in exponents]
    if type_traits(qtype).needs_importance:
        powers = [np.ones_like(scaled) if power is None else power for power in powers]
    return [quantize_rows(weights, qtype, power) for power in powers]


def _power(scaled: Floats, exponent: float, importance: Floats) -> Floats | None:
    """The importance to the power of an exponent.

    1 gives exactly the numbers that llama-quantize uses; 0 gives None.
    """
    if exponent == 1:
        return importance
    if exponent == 0:
        return None
    return scaled ** np.float32(exponent)


def _better(one: RoundedRows, other: RoundedRows) -> RoundedRows:
    keep = one.errors <= other.errors
    return RoundedRows(np.where(keep[:, None], one.blocks, other.blocks), np.where(keep, one.errors, other.errors))


_FITS = 2
_SCALE = (0,)  # offset of a block's F16 scale


def gptq_octet_rows(weights: Floats, bases: list[Bytes], qtype: str, octets: BlockHessian) -> tuple[Bytes, Floats]:
    """The best blocks and each row's part of the output error, starting from ggml's own search (`bases`).

    Args: weights: (rows, row_values).
    """
    curvature = octets.curvature
    rows, width = weights.shape
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    grid = make_octet_grid(bases, qtype, width, curvature.order)
    values, errors = feed_octets_forward(np.tile(targets, len(bases)), grid, octets)
    best = curvature.output_error(errors).reshape(-1, rows).argmin(axis=0)
    columns = best * rows + np.arange(rows)
    grid = grid.picked(columns)
    values, errors = (np.ascontiguousarray(x[:, columns]) for x in (values, errors))
    descend_octets(values, errors, grid, octets)
    blocks = _packed(np.stack(bases)[best, np.arange(rows)], qtype, grid, values, octets)
    spoiled = curvature.output_error(errors)
    for _ in range(_FITS):
        fitted, now = _refitted(blocks, qtype, targets, octets)
        keep = spoiled <= now
        blocks = np.where(keep[:, None], blocks, fitted)
        spoiled = np.where(keep, spoiled, now)
    return blocks, spoiled


def _refitted(blocks: Bytes, qtype: str, targets: Floats, octets: BlockHessian) -> tuple[Bytes, Floats]:
    """Fit the factors and scales to the codebook entries, then the entries to them."""
    curvature, width = octets.curvature, len(targets)
    blocks = fit_factors(blocks, qtype, LATTICES[qtype].step_offsets(), targets, curvature)
    blocks = fit_scales(blocks, qtype, targets, curvature, _SCALE)
    grid = make_octet_grid([blocks], qtype, width, curvature.order)
    values = np.ascontiguousarray(dequantize_rows(blocks, qtype, width)[:, curvature.order].T)
    errors = values - targets
    descend_octets(values, errors, grid, octets, sweeps=1)
    return _packed(blocks, qtype, grid, values, octets), curvature.output_error(errors)


def _packed(base: Bytes, qtype: str, grid: OctetGrid, values: Floats, octets: BlockHessian) -> Bytes:
    points, signs = grid.codes(values)
    rows, count = signs.shape
    order = octets.curvature.order[::OCTET] // OCTET
    natural = np.empty_like(order)
    natural[order] = np.arange(count)
    points = points.reshape(rows, count, -1)[:, natural].reshape(rows, -1)
    return pack_points(base, qtype, points, signs[:, natural])


# Chooses the integers of packed rows to minimize the change of the layer's output instead of its weights.
#
# First GPTQ's order and error feedback (arXiv 2210.17323, in the form of QuIP, arXiv 2307.13304) on a fixed grid,
# then sweeps of coordinate descent on the same objective.

# Columns handled one by one between two matrix products. Measured: 64 and 128 are within a tenth up to a width of
# 4096, 32 is a fifth slower there (log-archive.md, "GPTQ rounding").
_BLOCK = 64
# Measured: 0, 1, 2 and 3 sweeps leave 1.052, 1.012, 1 and 0.995 of the error (log-archive.md, "GPTQ rounding")
SWEEPS = 2


def feed_forward(targets: Floats, grid: Grid, curvature: Hessian) -> tuple[Floats, Floats]:
    """Round columns in order; each one compensates its part of the earlier errors to keep tr(E H E^T) small.

    Args: targets: (row_values, rows) weights, columns in the curvature's order.
    Returns: values, each on the grid, and values - targets.
    """
    values = np.empty_like(targets)
    return values, _feed_errors_forward(targets, values, grid, curvature.feedback)


def descend(values: Floats, errors: Floats, grid: Grid, curvature: Hessian, sweeps: int = SWEEPS) -> None:
    """Sweeps of coordinate descent from the result of `feed_forward`. In place."""
    for _ in range(sweeps):
        _descend(values, errors, grid, curvature.moments)


def _feed_errors_forward(targets: Floats, values: Floats, grid: Grid, feedback: Floats) -> Floats:
    k, rows = targets.shape
    errors = np.empty_like(targets)
    work = np.empty(rows, np.float32)
    for start in range(0, k, _BLOCK):
        stop = min(k, start + _BLOCK)
        goal = targets[start:stop] - feedback[:start, start:stop].T @ errors[:start]
        for i in range(start, stop):
            x = goal[i - start]
            if i > start:
                x -= feedback[start:i, i] @ errors[start:i]
            grid.nearest(i, x, values[i], work)
            np.subtract(values[i], targets[i], out=errors[i])
    return errors


def _descend(values: Floats, errors: Floats, grid: Grid, moments: Floats) -> None:
    """One sweep: each column in turn moves to its best grid value given all others. In place."""
    k, rows = values.shape
    work = np.empty(rows, np.float32)
    minimum = np.empty(rows, np.float32)
    changes = np.empty((_BLOCK, rows), np.float32)
    nearest = np.empty(rows, np.float32)
    for start in range(0, k, _BLOCK):
        stop = min(k, start + _BLOCK)
        slopes = moments[start:stop] @ errors
        for i in range(start, stop):
            slope = slopes[i - start]
            if i > start:
                slope += moments[i, start:i] @ changes[: i - start]
            np.multiply(slope, -1.0 / moments[i, i], out=minimum)
            minimum += values[i]
            grid.nearest(i, minimum, nearest, work)
            np.subtract(nearest, values[i], out=changes[i - start])
            values[i] = nearest
        errors[start:stop] += changes[: stop - start]


# Fits the scales of blocks again after the integers are chosen.


class ScaleParam(msgspec.Struct, frozen=True):
    """A stored scale per segment of a row; the segment's values are linear in it.

    `held` is (rows, segments), changed in place. `slope` (rows, row_values) is the change of the values per unit of
    it. `nearest` rounds numbers to ones that can be stored.
    """

    held: npt.NDArray[np.floating]
    slope: Floats
    nearest: Callable[[Floats], npt.NDArray[np.floating]]


def fit_scales(
    blocks: Bytes, qtype: str, targets: Floats, curvature: Hessian, offsets: tuple[int, ...] | None = None
) -> Bytes:
    """Packed rows with the scales of least output error, fitted block by block; the integers stay.

    A block's values are linear in its scales, so each scale has one best value given all others.

    Args: blocks: (rows, row_bytes). targets: (row_values, rows) weights, columns in the curvature's order. offsets:
    positions of the F16 scales in a block, if they differ from the type's layout.
    Returns: a new (rows, row_bytes); the same blocks if the type has no separate scale for each block.
    """
    scale_offsets = LAYOUTS[qtype].scales if offsets is None else offsets
    if not scale_offsets:
        return blocks
    traits = GgmlType[qtype].traits
    rows, width = len(blocks), len(targets)
    packed = blocks.reshape(-1, traits.block_bytes).copy()
    knobs = []
    for at in scale_offsets:
        scales = packed[:, at : at + 2].copy().view(np.float16).reshape(rows, -1)
        knobs.append(ScaleParam(scales, _slope(packed, qtype, at, scale_offsets, width), _half))
    turn(knobs, traits.block_values, _errors(blocks, qtype, targets, curvature), curvature)
    for at, knob in zip(scale_offsets, knobs, strict=True):
        packed[:, at : at + 2] = knob.held.reshape(-1, 1).view(np.uint8)
    return packed.reshape(rows, -1)


def fit_factors(
    blocks: Bytes, qtype: str, factors: Sequence[tuple[int, int]], targets: Floats, curvature: Hessian
) -> Bytes:
    """Like `fit_scales`, for the 4-bit factors of parts of a block: byte and shift of each."""
    traits = GgmlType[qtype].traits
    rows, width = len(blocks), len(targets)
    packed = blocks.reshape(-1, traits.block_bytes).copy()
    stored = np.stack([(packed[:, at] >> shift) & 15 for at, shift in factors], axis=1)
    first, second = (_with_factors(packed, factors, np.full_like(stored, value)) for value in (0, 1))
    values = (dequantize_rows(p.reshape(rows, -1), qtype, width) for p in (second, first))
    knob = ScaleParam(stored.reshape(rows, -1).astype(np.float32), np.subtract(*values), _nibble)
    turn([knob], traits.block_values // len(factors), _errors(blocks, qtype, targets, curvature), curvature)
    return _with_factors(packed, factors, knob.held.astype(np.uint8).reshape(stored.shape)).reshape(rows, -1)


def turn(knobs: list[ScaleParam], size: int, errors: Floats, curvature: Hessian) -> None:
    """Give each segment of `size` weights in turn the scales with the least output error.

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
            product = own @ direction
            curve = np.einsum("kr,kr->r", product, direction)
            options = np.einsum("kr,kr->r", here, direction)
            old = knob.held[:, segment].astype(np.float32)
            step = np.divide(options, curve, out=np.zeros_like(options), where=curve > 0)
            knob.held[:, segment] = knob.nearest(old - step)
            change = knob.held[:, segment].astype(np.float32) - old
            here += product * change
            moved += direction * change
        pull += moments.T @ moved


_LARGEST = float(np.finfo(np.float16).max)


def _half(values: Floats) -> npt.NDArray[np.floating]:
    return np.clip(values, -_LARGEST, _LARGEST)


def _nibble(values: Floats) -> npt.NDArray[np.floating]:
    return np.clip(np.rint(values), 0, 15)


def _errors(blocks: Bytes, qtype: str, targets: Floats, curvature: Hessian) -> Floats:
    errors: Floats = dequantize_rows(blocks, qtype, len(targets))[:, curvature.order].T - targets
    return errors


def _with_factors(packed: Bytes, factors: Sequence[tuple[int, int]], values: Bytes) -> Bytes:
    out = packed.copy()
    for (at, shift), value in zip(factors, values.T, strict=True):
        out[:, at] = (out[:, at] & ~np.uint8(15 << shift)) | (value << np.uint8(shift))
    return out


def _slope(packed: Bytes, qtype: str, at: int, offsets: tuple[int, ...], width: int) -> Floats:
    """Change of the values per unit of the scale at this offset in their block: (rows, row_values)."""
    alone = packed.copy()
    for other in offsets:
        alone[:, other : other + 2] = np.array([other == at], np.float16).view(np.uint8)
    rows = len(packed) * GgmlType[qtype].traits.block_values // width
    return dequantize_rows(alone.reshape(rows, -1), qtype, width)
