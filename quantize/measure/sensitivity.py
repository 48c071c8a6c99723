"""Measures sensitivity: the KL divergence after swapping tensors for coarser ones in place."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, read_json
from quantize.ggml_types import ANCHORS
from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measure.probe_groups import SCORED_STEP, ProbeGroup, probe_units
from quantize.measure.rounding_error import load_errors, measured_types
from quantize.measurements import MeasureRequest, Step
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import read_windows
from quantize.native.eval_context import EvalContext, Logits, Tokens
from quantize.native.partial_eval import NullTap, PartTap
from quantize.native.reference import ReferenceModel
from quantize.native.residual_cache import ResidualCache
from quantize.native.source_weights import SourceWeights, as_floats
from quantize.native.split_points import SplitPoint

_LOGITS_BYTES = 256 << 20  # memory for the reference's predictions
# Tokens per window of a swap. Shorter than WINDOW, so that the same number of tokens covers more places in the
# text: positions within one window are similar. Measured: log-archive.md, "Quantization in minutes" ("Bands").
PROBE_WINDOW = 256
_STREAMS = 16  # stored positions in the model at most; a swap is evaluated from the last one before it


class AlphaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Measure every band of layers (tier balanced) or every tensor (tier max)."""

    measure: MeasureRequest


class Swapped(msgspec.Struct, frozen=True, kw_only=True):
    """Mean KL divergence by unit, and the number of tokens per measurement."""

    tokens: int
    kld: dict[str, float]


def swaps_file(folder: WorkFolder, tier: str, probe_tokens: int) -> Path:
    """Path of the cached swap results of a tier."""
    return folder.path / f"swaps-{tier}-{probe_tokens}-{SCORED_STEP}.json"


def measure_swaps(request: AlphaRequest, send: Step) -> Swapped:
    """Swap, evaluate and restore unit by unit; store each result in the cache, which other jobs may also write."""
    measure = request.measure
    folder = WorkFolder.open(measure)
    groups = folder.groups() or ()
    units = probe_units(groups, measure.tier, swap_errors(folder, groups, measure))
    path = swaps_file(folder, measure.tier, measure.probe_tokens)
    measured: dict[str, float] = read_json(path) or {}
    with (
        folder.scratch() as scratch,
        as_floats(measure.source, scratch, measure.gpu_layers) as evaluated,
        ReferenceModel(
            evaluated, window=PROBE_WINDOW, threads=measure.threads, gpu_layers=measure.gpu_layers
        ) as model,
    ):
        windows = read_windows(
            model, measure.calibration, measure.probe_tokens, PROBE_WINDOW, spread=True, cache_dir=measure.cache_dir
        )
        source = SourceWeights(evaluated)
        keep = _scored_positions(model.num_vocab, len(windows))
        probe = _Probe(model, windows, keep, scratch, [u for u in units if u.name not in measured])
        loaded = set(model.weights)
        for index, unit in enumerate(units):
            send(index, len(units), unit.name)
            if unit.name in measured:
                continue
            swaps = {
                name: _spoiled(folder, source, name, group, measure)
                for group in unit.groups
                for name in group.members
                if name in unit.members and name in loaded
            }
            measured[unit.name] = 0.0  # nothing in the evaluated graph depends on it
            if swaps:
                with model.swapped(swaps):
                    measured[unit.name] = probe.kld(swaps)
            folder.keep_json(path, measured)
        send(len(units), len(units), "")
    return Swapped(tokens=int(windows.size), kld=measured)


class _Probe:
    """The reference's predictions on a few windows, for comparison with a changed model."""

    def __init__(
        self,
        model: ReferenceModel,
        windows: npt.NDArray[np.int32],
        keep: npt.NDArray[np.bool_],
        folder: Path,
        units: Iterable[ProbeGroup],
    ) -> None:
        self.model = model
        self._windows = list(enumerate(windows[:, None]))
        self._keep = keep
        self._cuts = model.cuts()
        self._streams = ResidualCache(folder, len(windows))
        firsts = (self._first(self._cuts.before(name) for name in unit.members) for unit in units)
        starts = sorted({cut.layer: cut for cut in firsts if cut is not None}.items())
        reads = [cut for _, cut in starts[:: -(-len(starts) // _STREAMS) or 1]]

        def predict(context: EvalContext, _: int, part: tuple[int, Tokens]) -> Logits:
            tap = PartTap(NullTap(), reads=reads)
            logits = self._logits(context, part[1], tap)
            for cut in reads:
                self._streams.write(cut, part[0], tap.found[cut.layer])
            return log_softmax(logits)

        self._reference = list(model.side_by_side(self._windows, predict))

    def _logits(self, context: EvalContext, window: Tokens, tap: PartTap) -> Logits:
        logits: Logits = context.run(window, self._keep, tap).reshape(-1, self.model.num_vocab)
        return logits

    @staticmethod
    def _first(cuts: Iterable[SplitPoint | None]) -> SplitPoint | None:
        """The first of several split points; None if one is missing."""
        points = list(cuts)
        return None if None in points else min((c for c in points if c), key=lambda c: c.index, default=None)

    def kld(self, changed: Iterable[str]) -> float:
        """Mean KL divergence between the model with these weights changed and the original model."""
        start = self._first(self._streams.last_before(self._cuts, name) for name in changed)

        def compare(
            context: EvalContext, _: int, part: tuple[tuple[int, Tokens], Logits]
        ) -> npt.NDArray[np.float64]:
            (number, window), expected = part
            start_state = (start, self._streams.read(start, number)) if start else None
            return kld_from(expected, self._logits(context, window, PartTap(NullTap(), start=start_state)))

        parts = list(zip(self._windows, self._reference, strict=True))
        return float(np.concatenate(list(self.model.side_by_side(parts, compare))).mean())


def _scored_positions(num_vocab: int, windows: int) -> npt.NDArray[np.bool_]:
    """Every second position, or fewer if the logits of a large vocabulary would not fit in memory."""
    step = max(SCORED_STEP, -(-PROBE_WINDOW * windows * num_vocab * 4 // _LOGITS_BYTES))
    keep = np.zeros(PROBE_WINDOW, np.bool_)
    keep[step - 1 :: step] = True
    return keep


def swap_errors(
    folder: WorkFolder, groups: tuple[SharedInputGroup, ...], measure: MeasureRequest
) -> dict[str, float]:
    """Relative error of each tensor's swap."""
    errors = {g.name: load_errors(folder, g) for g in groups}
    return {n: errors[g.name][n]["stock"][anchor_of(g, measure)] for g in groups for n in g.members}


def anchor_of(group: SharedInputGroup, measure: MeasureRequest) -> str:
    """The type that a group's tensors are swapped to."""
    return next(t.name for t in ANCHORS if t.name in measured_types(group.width, measure.qtypes))


def _spoiled(
    folder: WorkFolder, source: SourceWeights, name: str, group: SharedInputGroup, measure: MeasureRequest
) -> npt.NDArray[np.uint8]:
    """A tensor's bytes in its own type after quantizing to the anchor type and back."""
    seen = folder.diagonals(group)
    importance = seen[0] if seen is not None and not group.tied else None
    return requantized(source, name, anchor_of(group, measure), importance, threads=measure.threads)


def requantized(
    source: SourceWeights,
    name: str,
    qtype: str,
    importance: npt.NDArray[np.float32] | None = None,
    *,
    threads: int,
) -> npt.NDArray[np.uint8]:
    """A tensor's bytes in its own type after quantizing to `qtype` and back.

    `importance` has a row for each matrix of the tensor, or one for all: (rows, row_values).
    """
    matrices, _, width = source.shape(name)
    parts = []
    for matrix in range(matrices):
        weight = None if importance is None else importance[min(matrix, len(importance) - 1)]
        blocks = quantize_rows(source.rows(name, matrix), qtype, weight, threads=threads)
        values = dequantize_rows(blocks, qtype, width, threads=threads)
        parts.append(quantize_rows(values, source.source_qtype(name), threads=threads))
    return np.concatenate(parts)
