"""The reference and the model as rounded so far, shown the same text."""

from typing import Self

import numpy as np
import numpy.typing as npt

from quantize.evidence import MeasureRequest
from quantize.gptq.products import cross, gram
from quantize.gptq.stage_tap import Seen, StageTap
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.lane import Lane, Tokens
from quantize.native.reference import ReferenceModel

Floats = npt.NDArray[np.float32]
_EVERYWHERE = np.ones(WINDOW, np.bool_)
_MIN_WINDOWS = 4  # however little memory there is


def layer_name(tensor: str) -> str:
    """The layer in a name (blk.3); a tensor outside all layers is one of its own."""
    parts = tensor.split(".")
    return ".".join(parts[:2]) if parts[0] == "blk" else tensor


class ModelPair:
    """Two loaded models, equal at first; `rounded` is overwritten tensor by tensor.

    `residual` names the groups whose product goes into the residual stream, `followed` those whose inputs show.
    """

    def __init__(self, measure: MeasureRequest, max_tokens: int) -> None:
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

        def watch(lane: Lane, _: int, part: Tokens) -> dict[str, Floats]:
            seen = self._seen(lane, part, names)
            return {n: np.concatenate(s.sums if n in self.residual else s.inputs) for n, s in seen.items()}

        for shown in self.reference.side_by_side(self._parts, watch):
            for name, values in shown.items():
                found[name].append(values)
        return found

    def watch_rounded(self, name: str, expected: list[Floats]) -> tuple[Floats, Floats]:
        """Second moments (k, k) of one group's inputs in the rounded model, and what pulls its output right.

        The pull is, for a group that feeds the residual stream, the mean of (expected sum - sum) x^T, (rows, k);
        for others the mean of (expected input) x^T, (k, k).
        """

        def watch(lane: Lane, _: int, part: tuple[Tokens, Floats]) -> tuple[Floats, Floats, int]:
            window, goal = part
            seen = self._seen(lane, window, [name])[name]
            inputs = np.concatenate(seen.inputs)
            wanted = goal - np.concatenate(seen.sums) if name in self.residual else goal
            return gram(inputs), cross(wanted, inputs, self._threads), len(inputs)

        moments = pull = None
        tokens = 0
        for one, other, count in self.rounded.side_by_side(list(zip(self._parts, expected, strict=True)), watch):
            moments = one if moments is None else np.add(moments, one, out=moments)
            pull = other if pull is None else np.add(pull, other, out=pull)
            tokens += count
        assert moments is not None
        assert pull is not None
        return moments / np.float32(tokens), pull / np.float32(tokens)

    def _seen(self, lane: Lane, part: Tokens, names: list[str]) -> dict[str, Seen]:
        tap = StageTap(names, residual=self.residual)
        lane.run(part, _EVERYWHERE, tap, drop_logits=True)
        return tap.seen
