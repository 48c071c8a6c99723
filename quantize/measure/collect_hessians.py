"""Tasks of the measuring child process that load the model: find its groups, collect Hessians."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quantize.files.imatrix import Importance, write_imatrix
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, read_json
from quantize.measure.hessians import GroupTap, HessianAccumulator, HessianHook, tokens_needed
from quantize.measurements import MeasureRequest, Step
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.eval_context import EvalContext, Tokens
from quantize.native.graph import NodeHook
from quantize.native.partial_eval import PartTap
from quantize.native.reference import ReferenceModel
from quantize.native.residual_cache import ResidualCache
from quantize.native.source_weights import SourceWeights, as_floats
from quantize.native.split_points import SplitPoint


class MomentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Collect the Hessians of the named groups.

    `then` is the first group of the next pass, if there is one. Each pass stores the residual stream in the folder
    `streams`, and the next pass continues from it. Without `streams` every pass starts at the first layer.
    """

    measure: MeasureRequest
    groups: tuple[str, ...]
    then: str = ""
    streams: Path | None = None


def survey(request: MeasureRequest, send: Step) -> int:
    """Find the weights that share an input and store the groups in the cache.

    Returns the number of tokens for the Hessians.
    """
    folder = WorkFolder.open(request)
    source = SourceWeights(request.source)
    with _load(request, request.source) as model:
        windows = read_windows(model, request.calibration, request.max_tokens, cache_dir=request.cache_dir)
        tap = GroupTap()
        model.run(windows[:1, :32], np.ones(32, np.bool_), tap)
        groups = tap.groups(source)
    tokens = min(int(windows.size), tokens_needed(groups) // WINDOW * WINDOW)
    folder.keep_json(folder.path / "tokens.json", tokens)
    folder.keep_json(folder.path / "groups.json", groups)
    send(1, 1, "")
    return tokens


def collect_moments(request: MomentsRequest, send: Step) -> int:
    """Evaluate the calibration text and write the groups' Hessians. Returns the number of evaluated tokens."""
    measure = request.measure
    folder = WorkFolder.open(measure)
    groups = [g for g in folder.groups() or () if g.name in request.groups]
    everywhere = np.ones(WINDOW, np.bool_)
    sums = HessianAccumulator(groups)
    with (
        folder.scratch() as scratch,
        as_floats(measure.source, scratch, measure.gpu_layers) as path,
        _load(measure, path) as model,
    ):
        tokens = read_json(folder.path / "tokens.json")
        windows = read_windows(model, measure.calibration, tokens, spread=True, cache_dir=measure.cache_dir)
        parts = _Parts(model, request, folder.groups() or (), len(windows))

        def watch(context: EvalContext, index: int, part: tuple[int, Tokens]) -> None:
            number, window = part
            try:
                tap = parts.tap(HessianHook(sums, number, range(number - index, number)), number)
                context.run(window[None], everywhere, tap, drop_logits=True)
                parts.save(tap, number)
            finally:
                sums.end(number)

        for done, _ in enumerate(model.side_by_side(list(enumerate(windows)), watch)):
            send(done, len(windows), f"{done * WINDOW} tokens")
    for group in groups:
        means = sums.means(group.name)
        diagonals = np.ascontiguousarray(means.diagonal(axis1=1, axis2=2))
        path = folder.part("moments", group.name, ".diagonal.npz")
        with folder.keeping(path) as partial, partial.open("wb") as file:
            seen = np.maximum(sums.tokens[group.name], 1)[:, None]
            values: dict[str, Any] = {"mean": diagonals, "tokens": sums.tokens[group.name]}
            values |= {f"peaks{b}": (p / seen).astype(np.float32) for b, p in sums.peaks[group.name].items()}
            np.savez(file, **values)
        folder.keep_array(folder.part("moments", group.name, ".npy"), means)
    parts.done()
    send(len(windows), len(windows), "")
    return int(windows.size)


class _Parts:
    """The part of the model that a pass evaluates, and the residual streams it reads and writes."""

    def __init__(
        self, model: ReferenceModel, request: MomentsRequest, groups: tuple[SharedInputGroup, ...], windows: int
    ) -> None:
        self._streams = ResidualCache(request.streams, windows) if request.streams else None
        self._start: SplitPoint | None = None
        self._goal: SplitPoint | None = None
        if self._streams is None:
            return
        cuts = model.cuts()
        nodes = {g.name: g.input_node or g.name for g in groups}
        starts = [self._streams.last_before(cuts, nodes[name]) for name in request.groups]
        if None not in starts:
            self._start = min((s for s in starts if s is not None), key=lambda c: c.layer, default=None)
        goal = cuts.before(nodes[request.then]) if request.then else None
        if goal is not None and (self._start is None or self._start.layer < goal.layer):
            self._goal = goal

    def tap(self, inner: NodeHook, window: int) -> PartTap:
        start = None
        if self._streams is not None and self._start is not None:
            start = (self._start, self._streams.read(self._start, window))
        return PartTap(inner, start=start, reads=[self._goal] if self._goal else [])

    def save(self, tap: PartTap, window: int) -> None:
        """Store a window's residual stream for the next pass."""
        if self._streams is not None and self._goal is not None:
            self._streams.write(self._goal, window, tap.found[self._goal.layer])

    def done(self) -> None:
        """End the pass and delete the streams that it started from."""
        if self._streams is not None:
            self._streams.keep(self._goal or self._start)


def write_importance(folder: WorkFolder, groups: tuple[SharedInputGroup, ...], dataset: str) -> None:
    """Write the importance matrix of all groups with known diagonals, in llama.cpp's GGUF format.

    A head tied to the embedding table gets llama.cpp's name for heads. llama-quantize then treats the table as
    usual.
    """
    entries = {}
    for group in groups:
        diagonals = folder.diagonals(group)
        if diagonals is None:
            continue
        mean, tokens = diagonals
        sums = (mean * tokens[:, None]).astype(np.float32)
        for name in group.members:
            key = "output.weight" if group.tied else name
            entries[key] = Importance(sums, tokens.astype(np.float32))
    write_imatrix(folder.imatrix, entries, dataset, WINDOW)


def _load(request: MeasureRequest, path: Path) -> ReferenceModel:
    return ReferenceModel(path, window=WINDOW, threads=request.threads, gpu_layers=request.gpu_layers)
