"""Measures the output error of each tensor by type on sampled rows, for every rounding method."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, read_json
from quantize.ggml_types import ANCHORS, SMALL_BLOCKS
from quantize.gptq.codebook_search import in_octets
from quantize.gptq.codebooks import LATTICES
from quantize.gptq.hessian import group_curvature
from quantize.gptq.rows import EXPONENTS, best_rows, choices, gptq_rows
from quantize.measurements import MeasureRequest, Step
from quantize.native.blocks import type_traits
from quantize.native.source_weights import SourceWeights
from quantize.types import Rounding

# Sampled rows and experts per tensor. Measured: 128 rows give the error within a tenth (log-archive.md, "GPTQ
# rounding").
SAMPLED_ROWS = 128
SAMPLED_EXPERTS = 4

# Steps from zero to the largest value of an 8-bit input block. Source: ggml-quants.c, quantize_row_q8_0_ref.
_STEPS = 127
# Key, next to the rounding methods, of the error from rounding the inputs.
_INPUTS = "inputs"

Errors = dict[str, dict[str, dict[str, float]]]


class ErrorsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Measure groups by name: those in `by_gptq` with every rounding method, the others only with ggml's."""

    measure: MeasureRequest
    groups: tuple[str, ...]
    by_gptq: tuple[str, ...]


def measured_types(row_values: int, qtypes: tuple[str, ...]) -> tuple[str, ...]:
    """The requested types that rows of this length can have, plus the anchor types for sensitivity.

    Types with small blocks are added if some types do not fit.
    """
    names = (*qtypes, *(t.name for t in ANCHORS))
    fitting = [q for q in names if row_values % type_traits(q).block_values == 0]
    if len(fitting) < len(names):
        fitting += [t.name for t in SMALL_BLOCKS if row_values % t.traits.block_values == 0]
    return tuple(dict.fromkeys(fitting))


def has_errors(folder: WorkFolder, group: SharedInputGroup, qtypes: tuple[str, ...], *, gptq: bool) -> bool:
    """Whether the cache holds a group's errors for all these types and, with `gptq`, all rounding methods."""
    return not _missing(folder, group, qtypes, gptq=gptq)


def _missing(
    folder: WorkFolder, group: SharedInputGroup, qtypes: tuple[str, ...], *, gptq: bool
) -> tuple[str, ...]:
    errors = load_errors(folder, group)
    rounding = Rounding.GPTQ if gptq else Rounding.STOCK
    stored = [errors.get(m, {}).get(rounding, {}) for m in group.members]
    return tuple(q for q in measured_types(group.width, qtypes) if not all(q in by_type for by_type in stored))


def load_errors(folder: WorkFolder, group: SharedInputGroup) -> Errors:
    """Relative output error by tensor, rounding and type; empty if nothing was measured."""
    errors: Errors = read_json(folder.part("errors", group.name, ".json")) or {}
    return {
        tensor: {r if r == _INPUTS else Rounding(r): by_type for r, by_type in by_rounding.items()}
        for tensor, by_rounding in errors.items()
    }


def measure_errors(request: ErrorsRequest, send: Step) -> int:
    """Measure groups one by one into the cache; skips cached ones. Returns the number of measured groups."""
    folder = WorkFolder.open(request.measure)
    source = SourceWeights(request.measure.source)
    groups = [g for g in folder.groups() or () if g.name in request.groups]
    done = 0
    for index, group in enumerate(groups):
        send(index, len(groups), group.name)
        gptq = group.name in request.by_gptq
        if qtypes := _missing(folder, group, request.measure.qtypes, gptq=gptq):
            errors = load_errors(folder, group)
            for name, tensor_errors in _measure_group(folder, source, group, qtypes, gptq=gptq).items():
                for rounding, by_type in tensor_errors.items():
                    errors.setdefault(name, {}).setdefault(rounding, {}).update(by_type)
            folder.keep_json(folder.part("errors", group.name, ".json"), errors)
            done += 1
    send(len(groups), len(groups), "")
    return done


def filled(
    errors: dict[str, dict[str, float]], model: dict[str, dict[str, float]]
) -> dict[Rounding, dict[str, float]]:
    """Errors of a tensor by rounding and type, including those of 8-bit inputs.

    Missing values are computed with the ratios of another tensor of the same role.
    """
    stock, inputs = errors["stock"], errors[_INPUTS]
    by_rounding = {Rounding.STOCK: stock}
    for rounding in (Rounding.ROWS, Rounding.GPTQ):
        ratios = {q: e / max(model["stock"][q], 1e-30) for q, e in model[rounding].items()}
        by_rounding[rounding] = errors.get(rounding) or {q: stock[q] * r for q, r in ratios.items() if q in stock}
    return {r: {q: e + inputs[q] for q, e in by_type.items()} for r, by_type in by_rounding.items()}


def input_error(
    weights: npt.NDArray[np.float32], qtype: str, peaks: Mapping[int, npt.NDArray[np.float32]]
) -> float:
    """Output error from rounding the inputs to 8 bits, in the unit of tr(dW H dW^T).

    llama.cpp multiplies quantized weights with inputs in blocks of the same length, 32 or 256. The error of a value
    is uniform within half a step in both directions; a step is 1/127 of the block's largest value.

    Args: weights: (rows, row_values). peaks: by block length, (blocks,) mean squares of the largest value; empty
    for a table that is only looked up.
    """
    block = max((b for b in peaks if b <= type_traits(qtype).block_values), default=0)
    if not block:
        return 0.0
    squares = np.einsum("rk,rk->k", weights, weights, dtype=np.float64)
    return float(squares.reshape(-1, block).sum(axis=1) @ peaks[block]) / (12 * _STEPS**2)


def _measure_group(
    folder: WorkFolder, source: SourceWeights, group: SharedInputGroup, qtypes: tuple[str, ...], *, gptq: bool
) -> Errors:
    moments = folder.moments(group) if group.seen else None
    experts = np.unique(np.linspace(0, group.experts - 1, SAMPLED_EXPERTS).round().astype(int))
    peaks = folder.peaks(group)
    spoiled: dict[tuple[str, str, str], float] = {}
    total: dict[str, float] = {}
    for expert in experts:
        curvature = group_curvature(group, moments, int(expert), folder.tokens(group, int(expert)), feedback=gptq)
        octets = in_octets(curvature) if gptq and not LATTICES.keys().isdisjoint(qtypes) else None
        for name in group.members:
            weights = _sampled(source, name, int(expert))
            ordered = np.ascontiguousarray(weights[:, curvature.order].T)
            total[name] = total.get(name, 0.0) + float(curvature.output_error(ordered).sum(dtype=np.float64))
            # llama.cpp's imatrix has no importance for a table that is also the head.
            stock = 0.0 if group.tied else 1.0
            exponents = tuple(dict.fromkeys((stock, *EXPONENTS))) if gptq else (stock,)
            # Rounding by ggml takes most of the time, so each type is rounded only once for all purposes.
            tried = {q: choices(weights, q, curvature, exponents) for q in qtypes}
            rounded = {("stock", q): several[exponents.index(stock) % len(several)] for q, several in tried.items()}
            if gptq:
                rounded |= {("rows", q): best_rows(several) for q, several in tried.items()}
                by_type = gptq_rows(weights, qtypes, curvature, tried=tried, octets=octets)
                rounded |= {("gptq", q): r for q, r in by_type.items()}
            amounts = {key: float(result.errors.sum(dtype=np.float64)) for key, result in rounded.items()}
            here = {block: values[int(expert)] for block, values in peaks.items()}
            amounts |= {(_INPUTS, q): input_error(weights, q, here) for q in qtypes}
            for (rounding, qtype), amount in amounts.items():
                key = (name, rounding, qtype)
                spoiled[key] = spoiled.get(key, 0.0) + amount
    errors: Errors = {name: {} for name in group.members}
    for (name, rounding, qtype), error in spoiled.items():
        errors[name].setdefault(rounding, {})[qtype] = error / max(total[name], 1e-30)
    return errors


def _sampled(source: SourceWeights, name: str, expert: int) -> npt.NDArray[np.float32]:
    _, rows, _ = source.shape(name)
    picked = np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).round().astype(np.intp))
    return source.rows(name, expert, picked)
