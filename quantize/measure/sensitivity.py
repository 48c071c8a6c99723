"""Alpha: how much the model's predictions move for each unit of a tensor's output error, swapped in place."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.evidence import MeasureRequest, Step
from quantize.files.work_folder import Group, WorkFolder, read_json, write_json
from quantize.ggml_types import ANCHORS
from quantize.measure.divergence import kld_from, log_softmax
from quantize.measure.rounding_error import load_errors, measured_types
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.lane import Lane, Logits, Tokens
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights

_LOGITS_BYTES = 256 << 20  # of the reference's predictions kept in memory


class AlphaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Find alpha for every group (tier balanced) or every tensor (tier max)."""

    measure: MeasureRequest


class Alphas(msgspec.Struct, frozen=True, kw_only=True):
    """Alpha by unit, and the tokens each was judged on."""

    tokens: int
    values: dict[str, float]


def probe_units(groups: tuple[Group, ...], tier: str) -> list[tuple[str, tuple[str, ...], Group]]:
    """What is swapped together: (name of the unit, tensors, their group)."""
    if tier == "balanced":
        return [(g.name, g.members, g) for g in groups]
    return [(name, (name,), g) for g in groups for name in g.members]


def alpha_file(folder: WorkFolder, tier: str, probe_tokens: int) -> Path:
    """Where the alphas of a tier are kept."""
    return folder.path / f"alpha-{tier}-{probe_tokens}.json"


def measure_alpha(request: AlphaRequest, send: Step) -> Alphas:
    """Swap, evaluate, restore, unit by unit, into the cache after each (which another job may write to as well)."""
    measure = request.measure
    folder = WorkFolder.open(measure)
    source = SourceWeights(measure.source)
    units = probe_units(folder.groups() or (), measure.tier)
    path = alpha_file(folder, measure.tier, measure.probe_tokens)
    known: dict[str, float] = read_json(path) or {}
    with ReferenceModel(
        measure.source, window=WINDOW, threads=measure.threads, gpu_layers=measure.gpu_layers
    ) as model:
        windows = read_windows(model, measure.calibration, measure.probe_tokens, spread=True)
        keep = _kept_positions(model.num_vocab, len(windows))
        probe = _Probe(model, windows, keep)
        for index, (unit, names, group) in enumerate(units):
            send(index, len(units), unit)
            if unit in known:
                continue
            known[unit] = _alpha(probe, folder, source, names, group, measure)
            write_json(path, known)
        send(len(units), len(units), "")
    return Alphas(tokens=int(windows.size), values=known)


class _Probe:
    """The reference's predictions on a few windows, and how far others are from them."""

    def __init__(self, model: ReferenceModel, windows: npt.NDArray[np.int32], keep: npt.NDArray[np.bool_]) -> None:
        self.model = model
        self._windows = [window[None] for window in windows]
        self._keep = keep

        def predict(lane: Lane, _: int, window: Tokens) -> Logits:
            return log_softmax(self._logits(lane, window))

        self._reference = list(model.side_by_side(self._windows, predict))

    def _logits(self, lane: Lane, window: Tokens) -> Logits:
        logits: Logits = lane.run(window, self._keep).reshape(-1, self.model.num_vocab)
        return logits

    def kld(self) -> float:
        """Mean KL divergence of the model as it now is from the model as it was loaded."""

        def compare(lane: Lane, _: int, part: tuple[Tokens, Logits]) -> npt.NDArray[np.float64]:
            return kld_from(part[1], self._logits(lane, part[0]))

        parts = list(zip(self._windows, self._reference, strict=True))
        return float(np.concatenate(list(self.model.side_by_side(parts, compare))).mean())


def _kept_positions(num_vocab: int, windows: int) -> npt.NDArray[np.bool_]:
    """Every second position, or fewer where the vocabulary is so large that they would not fit."""
    step = max(2, -(-WINDOW * windows * num_vocab * 4 // _LOGITS_BYTES))
    keep = np.zeros(WINDOW, np.bool_)
    keep[step - 1 :: step] = True
    return keep


def _alpha(
    probe: _Probe,
    folder: WorkFolder,
    source: SourceWeights,
    names: tuple[str, ...],
    group: Group,
    measure: MeasureRequest,
) -> float:
    anchor = next(t.name for t in ANCHORS if t.name in measured_types(group.width, measure.qtypes))
    errors = load_errors(folder, group)
    swaps = {}
    loaded = set(probe.model.weights)
    for name in names:
        if name in loaded:
            swaps[name] = _spoiled(folder, source, name, group, anchor, measure.threads)
    error = sum(errors[n]["stock"][anchor] for n in swaps)
    if not swaps or error <= 0:
        return 0.0  # nothing in the evaluated graph depends on it
    with probe.model.swapped(swaps):
        return probe.kld() / error


def _spoiled(
    folder: WorkFolder, source: SourceWeights, name: str, group: Group, qtype: str, threads: int
) -> npt.NDArray[np.uint8]:
    """A tensor's bytes in its own type, after a trip through `qtype`."""
    matrices, _, width = source.shape(name)
    seen = folder.diagonals(group)
    parts = []
    for matrix in range(matrices):
        importance = None
        if seen is not None and not group.tied:
            importance = seen[0][min(matrix, len(seen[0]) - 1)]
        weights = source.rows(name, matrix)
        blocks = quantize_rows(weights, qtype, importance, threads=threads)
        values = dequantize_rows(blocks, qtype, width, threads=threads)
        parts.append(quantize_rows(values, source.source_qtype(name), threads=threads))
    return np.concatenate(parts)
