"""The best blocks for rows of weights, given what multiplies them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantize.gptq.curvature import Curvature, Floats
from quantize.gptq.grid import is_craftable, make_grid
from quantize.gptq.packing import LAYOUTS, Bytes, pack
from quantize.gptq.rounding import round_columns
from quantize.native.blocks import dequantize_rows, quantize_rows

# Exponents of the importance that ggml's own search for scales is tried with; each row keeps the best.
# Source: docs/quantization.md, "Craft".
EXPONENTS = (1.0, 0.5, 0.0)
# Weights on their way through one pass: bounds memory to about ten times as many float32.
_PASS_VALUES = 1 << 22
# Rows that are worth a thread: with fewer, numpy is done with a column before another thread may begin.
_MIN_SHARE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Packed rows (rows, row_bytes) and each row's part of the output error tr(dW H dW^T), (rows,)."""

    blocks: Bytes
    errors: Floats


def plain_rows(weights: Floats, qtype: str, curvature: Curvature, exponents: tuple[float, ...]) -> RoundedRows:
    """Rounding by ggml under each exponent of the importance; each row keeps the one that spoils least."""
    best: RoundedRows | None = None
    for blocks in _bases(weights, qtype, curvature, exponents):
        values = dequantize_rows(blocks, qtype, weights.shape[1])
        errors = curvature.output_error(np.ascontiguousarray((values - weights)[:, curvature.order].T))
        best = _better(best, RoundedRows(blocks, errors))
    assert best is not None
    return best


def craft_rows(
    weights: Floats,
    qtypes: tuple[str, ...],
    curvature: Curvature,
    exponents: tuple[float, ...] = EXPONENTS,
    *,
    threads: int = 1,
) -> dict[str, RoundedRows]:
    """Rows with integers chosen against the second moments, on the scales of each exponent; the best of them a row.

    Types without an integer grid are rounded by ggml. Several types are rounded in one pass, which is faster than
    one after the other.
    """
    shares = min(threads, len(weights) // _MIN_SHARE_ROWS)
    if shares > 1:
        with ThreadPoolExecutor(max_workers=shares) as pool:
            pieces = np.array_split(weights, shares)
            done = list(pool.map(lambda piece: craft_rows(piece, qtypes, curvature, exponents), pieces))
        return {q: _joined([part[q] for part in done]) for q in qtypes}
    found = {q: plain_rows(weights, q, curvature, exponents) for q in qtypes if not is_craftable(q)}
    craftable = sorted((q for q in qtypes if is_craftable(q)), key=lambda q: LAYOUTS[q].nonlinear)
    rows, width = weights.shape
    variants = [(q, base) for q in craftable for base in _bases(weights, q, curvature, exponents)]
    # As many variants and rows at a time as fit a pass.
    row_step = max(1, min(rows, _PASS_VALUES // width))
    variant_step = max(1, _PASS_VALUES // (width * row_step))
    parts: dict[str, list[RoundedRows]] = {q: [] for q in craftable}
    for first in range(0, rows, row_step):
        targets = np.ascontiguousarray(weights[first : first + row_step, curvature.order].T)
        best: dict[str, RoundedRows] = {}
        for start in range(0, len(variants), variant_step):
            chosen = [(q, base[first : first + row_step]) for q, base in variants[start : start + variant_step]]
            for qtype, rounded in _craft_pass(targets, chosen, curvature):
                best[qtype] = _better(best.get(qtype), rounded)
        for qtype, rounded in best.items():
            parts[qtype].append(rounded)
    return found | {qtype: _joined(pieces) for qtype, pieces in parts.items()}


def _joined(pieces: list[RoundedRows]) -> RoundedRows:
    return RoundedRows(np.concatenate([p.blocks for p in pieces]), np.concatenate([p.errors for p in pieces]))


def _craft_pass(
    targets: Floats, variants: list[tuple[str, Bytes]], curvature: Curvature
) -> list[tuple[str, RoundedRows]]:
    """Round the same rows on several grids at once."""
    width, rows = targets.shape
    stacked = np.tile(targets, len(variants))
    grid = make_grid(variants, width, curvature.order)
    values = round_columns(stacked, grid, curvature)
    errors = curvature.output_error(values - stacked)
    ordered = grid.codes(values)
    codes = np.empty((rows * len(variants), width), np.uint8)
    codes[:, curvature.order] = ordered.T
    out = []
    for index, (qtype, base) in enumerate(variants):
        part = slice(index * rows, (index + 1) * rows)
        out.append((qtype, RoundedRows(pack(base, qtype, codes[part]), errors[part])))
    return out


def _bases(
    weights: Floats, qtype: str, curvature: Curvature, exponents: tuple[float, ...]
) -> list[npt.NDArray[np.uint8]]:
    importance = curvature.importance
    if not importance.any():
        return [quantize_rows(weights, qtype, np.ones(weights.shape[1], np.float32))]
    scaled = importance / importance.max()
    return [quantize_rows(weights, qtype, _power(scaled, exponent, importance)) for exponent in exponents]


def _power(scaled: Floats, exponent: float, importance: Floats) -> Floats | None:
    """The importance to an exponent; 1 gives the very numbers llama-quantize would use, 0 none at all."""
    if exponent == 1:
        return importance
    if exponent == 0:
        return None
    return scaled ** np.float32(exponent)


def _better(one: RoundedRows | None, other: RoundedRows) -> RoundedRows:
    if one is None:
        return other
    keep = one.errors <= other.errors
    return RoundedRows(np.where(keep[:, None], one.blocks, other.blocks), np.where(keep, one.errors, other.errors))
