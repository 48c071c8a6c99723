"""The best blocks for rows of weights, given what multiplies them."""

from collections.abc import Mapping, Sequence
from functools import reduce

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.gptq.codebook_rows import gptq_octet_rows
from quantize.gptq.codebook_search import OctetCurvature, in_octets
from quantize.gptq.codebooks import LATTICES
from quantize.gptq.grid import has_grid, make_grid
from quantize.gptq.hessian import Curvature, Floats
from quantize.gptq.packing import LAYOUTS, Bytes, pack
from quantize.gptq.rounding import descend, feed_forward
from quantize.gptq.scales import fit_scales
from quantize.native.blocks import dequantize_rows, quantize_rows, type_traits

# Exponents of the importance that ggml's own search for scales is tried with; each row keeps the best.
# Source: docs/quantization.md, "GPTQ rounding".
EXPONENTS = (1.0, 0.5, 0.0)
# Weights on their way through one pass: bounds memory to about ten times as many float32.
_PASS_VALUES = 1 << 22
# Rows of a pass: more bring nothing, numpy's calls are long enough.
_SHARE_ROWS = 1024
# The same where each octet of a row is compared with all points of a lattice.
_OCTET_ROWS = 256


class RoundedRows(msgspec.Struct, frozen=True):
    """Packed rows (rows, row_bytes) and each row's part of the output error tr(dW H dW^T), (rows,)."""

    blocks: Bytes
    errors: Floats


def plain_rows(weights: Floats, qtype: str, curvature: Curvature, exponents: tuple[float, ...]) -> RoundedRows:
    """Rounding by ggml under each exponent of the importance; each row keeps the one that spoils least."""
    return best_rows(choices(weights, qtype, curvature, exponents))


def choices(
    weights: Floats, qtype: str, curvature: Curvature, exponents: tuple[float, ...]
) -> tuple[RoundedRows, ...]:
    """Rounding by ggml under each exponent of the importance; a single one where no importance is known."""
    found = []
    for blocks in _bases(weights, qtype, curvature, exponents):
        values = dequantize_rows(blocks, qtype, weights.shape[1])
        errors = curvature.output_error(np.ascontiguousarray((values - weights)[:, curvature.order].T))
        found.append(RoundedRows(blocks, errors))
    return tuple(found)


def best_rows(several: Sequence[RoundedRows]) -> RoundedRows:
    """Of each row the choice that spoils least."""
    return reduce(_better, several)


def gptq_rows(
    weights: Floats,
    qtypes: tuple[str, ...],
    curvature: Curvature,
    exponents: tuple[float, ...] = EXPONENTS,
    tried: Mapping[str, Sequence[RoundedRows]] | None = None,
    octets: OctetCurvature | None = None,
) -> dict[str, RoundedRows]:
    """Rows with integers chosen against the second moments, on the scales of each exponent; the best of them a row.

    Types without a way to choose are rounded by ggml. Several types are rounded in one pass, which is faster than
    one after the other. `tried` are the `choices` of each type and `octets` the curvature as types of
    lattices need it, where they were made before.
    """
    plain = [q for q in qtypes if not has_grid(q) and q not in LATTICES]
    found = {
        q: best_rows(tried[q]) if tried is not None else plain_rows(weights, q, curvature, exponents) for q in plain
    }
    bases = {
        q: [r.blocks for r in tried[q]] if tried is not None else _bases(weights, q, curvature, exponents)
        for q in qtypes
        if q not in plain
    }
    for qtype in (q for q in qtypes if q in LATTICES):
        octets = octets or in_octets(curvature)
        found[qtype] = _gptq_octets(weights, bases[qtype], qtype, octets)
    gridded = sorted((q for q in qtypes if has_grid(q)), key=lambda q: LAYOUTS[q].nonlinear)
    rows, width = weights.shape
    # As many rows and types at a time as fit a pass.
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
    return found | {q: _joined([part[q] for part in parts]) for q in gridded}


def _gptq_octets(weights: Floats, bases: list[Bytes], qtype: str, octets: OctetCurvature) -> RoundedRows:
    parts = [slice(first, first + _OCTET_ROWS) for first in range(0, len(weights), _OCTET_ROWS)]
    return _joined([RoundedRows(*gptq_octet_rows(weights[p], [b[p] for b in bases], qtype, octets)) for p in parts])


def _joined(results: list[RoundedRows]) -> RoundedRows:
    return RoundedRows(np.concatenate([p.blocks for p in results]), np.concatenate([p.errors for p in results]))


def _gptq_pass(targets: Floats, bases: dict[str, list[Bytes]], curvature: Curvature) -> dict[str, RoundedRows]:
    """Round the same rows on the grids of several types at once.

    Each row continues with the grid that is best once errors are fed forward: sweeps, the larger part of the work,
    seldom change which that is (docs/log.md, "Quantization in minutes").
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


def _refined(first: RoundedRows, qtype: str, targets: Floats, curvature: Curvature) -> RoundedRows:
    """Scales fitted to the integers, integers to those scales, and scales once more."""
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
    weights: Floats, qtype: str, curvature: Curvature, exponents: tuple[float, ...]
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
    """The importance to an exponent; 1 gives the very numbers llama-quantize would use, 0 none at all."""
    if exponent == 1:
        return importance
    if exponent == 0:
        return None
    return scaled ** np.float32(exponent)


def _better(one: RoundedRows, other: RoundedRows) -> RoundedRows:
    keep = one.errors <= other.errors
    return RoundedRows(np.where(keep[:, None], one.blocks, other.blocks), np.where(keep, one.errors, other.errors))
