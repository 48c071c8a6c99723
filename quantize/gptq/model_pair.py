"""The reference and the model as rounded so far, shown the same text."""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from quantize.evidence import MeasureRequest
from quantize.gptq.products import cross, gram
from quantize.gptq.stage_tap import StageTap
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.cuts import Cut
from quantize.native.lane import Lane, Tokens
from quantize.native.reference import ReferenceModel
from quantize.native.resume import PartTap
from quantize.native.streams import Streams
from quantize.native.taps import NodeTap

Floats = npt.NDArray[np.float32]
_EVERYWHERE = np.ones(WINDOW, np.bool_)
_MIN_WINDOWS = 4  # however little memory there is


def layer_name(tensor: str) -> str:
    """The layer in a name (blk.3); a tensor outside all layers is one of its own."""
    parts = tensor.split(".")
    return ".".join(parts[:2]) if parts[0] == "blk" else tensor


class _Side:
    """One of the two models, evaluated layer by layer: each layer from the stream that the one before left."""

    def __init__(self, model: ReferenceModel, folder: Path, windows: int) -> None:
        self._cuts = model.cuts()
        self._streams = Streams(folder, windows)

    def begin(self, name: str, goal: Cut | None) -> tuple[Cut | None, list[Cut]]:
        """Where an evaluation that is after one group begins, and what is read on the way: `goal`, if new."""
        start = self._streams.last_before(self._cuts, name)
        new = goal is not None and (start is None or goal.layer > start.layer)
        return start, [goal] if goal is not None and new else []

    def cut_before(self, name: str) -> Cut | None:
        """The last place before a group where an evaluation can begin."""
        return self._cuts.before(name)

    def cut_after(self, name: str) -> Cut | None:
        """The place where the layer of a group ends, if there is a layer after it."""
        return self._cuts.after(name)

    def run(
        self, lane: Lane, window: int, tokens: Tokens, tap: NodeTap, begin: tuple[Cut | None, list[Cut]]
    ) -> None:
        """Evaluate a part of the model, up to where `tap` and what is to be read end it."""
        start, reads = begin
        given = (start, self._streams.read(start, window)) if start else None
        part = PartTap(tap, start=given, reads=reads)
        lane.run(tokens, _EVERYWHERE, part, drop_logits=True)
        for cut in reads:
            self._streams.write(cut, window, part.found[cut.layer])

    def keep(self, begin: tuple[Cut | None, list[Cut]]) -> None:
        """All windows are through: the stream that was read last is the only one needed on."""
        for cut in begin[1]:
            self._streams.keep(cut)


class ModelPair:
    """Two loaded models, equal at first; `rounded` is overwritten tensor by tensor, in the order of the model.

    `residual` names the groups whose product goes into the residual stream, `followed` those whose inputs show.
    `folder` is an empty one for what is kept between evaluations.
    """

    def __init__(self, measure: MeasureRequest, max_tokens: int, folder: Path) -> None:
        loaded = [
            ReferenceModel(measure.source, window=WINDOW, threads=measure.threads, gpu_layers=measure.gpu_layers)
            for _ in range(2)
        ]
        self.reference, self.rounded = loaded
        self._threads = measure.threads if self.rounded.lanes == 1 else 1
        windows = read_windows(self.reference, measure.calibration, max_tokens, spread=True)
        widest = self._survey(windows)
        affordable = max(_MIN_WINDOWS, measure.memory_bytes // (4 * WINDOW * widest))
        self._parts = [window[None] for window in windows[:affordable]]
        self._sides = [
            _Side(model, folder / name, len(self._parts))
            for model, name in zip(loaded, ("reference", "rounded"), strict=True)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reference.close()
        self.rounded.close()

    def _survey(self, windows: Tokens) -> int:
        """Which groups feed the residual stream; the most values a token shows in one layer."""
        names = [w for w in self.reference.weights if w != "token_embd.weight"]
        tap = StageTap(names)
        self.reference.run(windows[:1, :32], np.ones(32, np.bool_), tap, drop_logits=True)
        self.residual = {name for name, seen in tap.seen.items() if seen.sums}
        self.followed = {name for name, seen in tap.seen.items() if seen.inputs}
        per_layer: dict[str, int] = {}
        for name, seen in tap.seen.items():
            values = sum(x.shape[1] for x in (*seen.inputs[:1], *seen.sums[:1]))
            layer = layer_name(name)
            per_layer[layer] = per_layer.get(layer, 0) + values
        return max(per_layer.values(), default=1)

    def watch_reference(self, names: list[str], missing: list[str]) -> dict[str, list[Floats]]:
        """What the reference shows of the groups of one layer, window by window; nothing if none is missing.

        (tokens, width) each: the residual sum of a group that has one, the inputs of the others.
        """
        found: dict[str, list[Floats]] = {name: [] for name in names}
        if not missing or not names:
            return found

        side = self._sides[0]
        begin = side.begin(names[0], side.cut_after(names[0]))

        def watch(lane: Lane, _: int, part: tuple[int, Tokens]) -> dict[str, Floats]:
            tap = StageTap(names, residual=self.residual)
            side.run(lane, *part, tap, begin)
            return {n: np.concatenate(s.sums if n in self.residual else s.inputs) for n, s in tap.seen.items()}

        for shown in self.reference.side_by_side(list(enumerate(self._parts)), watch):
            for name, values in shown.items():
                found[name].append(values)
        side.keep(begin)
        return found

    def watch_rounded(self, name: str, expected: list[Floats]) -> tuple[Floats, Floats]:
        """Second moments (k, k) of one group's inputs in the rounded model, and what pulls its output right.

        The pull is, for a group that feeds the residual stream, the mean of (expected sum - sum) x^T, (rows, k);
        for others the mean of (expected input) x^T, (k, k).
        """
        side = self._sides[1]
        # What comes before this layer is rounded for good: its stream is read on the way and begun from henceforth.
        begin = side.begin(name, side.cut_before(name))

        def watch(lane: Lane, _: int, part: tuple[int, Tokens, Floats]) -> tuple[Floats, Floats, int]:
            number, window, goal = part
            tap = StageTap([name], residual=self.residual)
            side.run(lane, number, window, tap, begin)
            seen = tap.seen[name]
            inputs = np.concatenate(seen.inputs)
            wanted = goal - np.concatenate(seen.sums) if name in self.residual else goal
            return gram(inputs), cross(wanted, inputs, self._threads), len(inputs)

        moments = pull = None
        tokens = 0
        parts = list(zip(range(len(self._parts)), self._parts, expected, strict=True))
        for one, other, count in self.rounded.side_by_side(parts, watch):
            moments = one if moments is None else np.add(moments, one, out=moments)
            pull = other if pull is None else np.add(pull, other, out=pull)
            tokens += count
        side.keep(begin)
        assert moments is not None
        assert pull is not None
        return moments / np.float32(tokens), pull / np.float32(tokens)
