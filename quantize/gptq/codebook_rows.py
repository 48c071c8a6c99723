"""Rows in types of lattices: points and signs against the second moments, and the scales fitted to them."""

import numpy as np

from quantize.gptq.codebook_search import (
    OctetCurvature,
    OctetGrid,
    descend_octets,
    feed_octets_forward,
    make_octet_grid,
)
from quantize.gptq.codebooks import LATTICES, OCTET, pack_points
from quantize.gptq.hessian import Floats
from quantize.gptq.packing import Bytes
from quantize.gptq.scales import fit_factors, fit_scales
from quantize.native.blocks import dequantize_rows

_FITS = 2
_SCALE = (0,)  # where the F16 scale of a block is


def gptq_octet_rows(
    weights: Floats, bases: list[Bytes], qtype: str, octets: OctetCurvature
) -> tuple[Bytes, Floats]:
    """The best blocks and each row's part of the output error, from what ggml's own search found (`bases`).

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


def _refitted(blocks: Bytes, qtype: str, targets: Floats, octets: OctetCurvature) -> tuple[Bytes, Floats]:
    """Factors and scales fitted to the points, then points to those."""
    curvature, width = octets.curvature, len(targets)
    blocks = fit_factors(blocks, qtype, LATTICES[qtype].step_offsets(), targets, curvature)
    blocks = fit_scales(blocks, qtype, targets, curvature, _SCALE)
    grid = make_octet_grid([blocks], qtype, width, curvature.order)
    values = np.ascontiguousarray(dequantize_rows(blocks, qtype, width)[:, curvature.order].T)
    errors = values - targets
    descend_octets(values, errors, grid, octets, sweeps=1)
    return _packed(blocks, qtype, grid, values, octets), curvature.output_error(errors)


def _packed(base: Bytes, qtype: str, grid: OctetGrid, values: Floats, octets: OctetCurvature) -> Bytes:
    points, signs = grid.codes(values)
    rows, count = signs.shape
    order = octets.curvature.order[::OCTET] // OCTET
    natural = np.empty_like(order)
    natural[order] = np.arange(count)
    points = points.reshape(rows, count, -1)[:, natural].reshape(rows, -1)
    return pack_points(base, qtype, points, signs[:, natural])
