"""What the next layer will ask for, by its own router over what this layer's router read.

A layer adds little to what runs through all of them, so the next router mostly chooses the same from this layer's
input. Source of the idea: Eliseev and Mazur 2023, Fast inference of mixture-of-experts language models with
offloading, 2.3.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.runner.llama.native.tensor_layout import F32, Tensor

# From a routing back to its logits there are at most so many nodes.
_FAR: Final = 8
# The part of what predictions read that must be asked for; below it, so many layers go by without any.
_WORTH: Final = 0.5
_PAUSE_LAYERS: Final = 2000
# Of the newest predictions, about so many count.
_REMEMBERED: Final = 64.0


@dataclass(slots=True)
class _Router:
    """One layer's router: its matrix (experts, width), the norm before it (width,), and what is added to scores."""

    matrix: Any
    norm: Any
    bias: Any


class ExpertPredictor:
    """Learns each layer's router when it is first computed. Views of the model's weights: no longer than it."""

    def __init__(self) -> None:
        self._routers: dict[int, _Router | None] = {}
        self._hits = self._read = 0.0
        self._pause = 0

    def predict(self, row: int, routing: Tensor, used: int) -> list[int]:
        """The experts that layer `row` + 1 will ask for, the surest first; none where that cannot be computed."""
        logits, biased = _logits(routing)
        if logits is None:
            self._routers[row] = None
            return []
        if row not in self._routers:
            self._routers[row] = _router(logits, biased)
        here, following = self._routers[row], self._routers.get(row + 1)
        if here is None or following is None or self._pause > 0:
            self._pause -= 1
            return []
        width, tokens = int(logits.src[1].contents.ne[0]), int(logits.src[1].contents.ne[1])
        hidden = _array(logits.src[1].contents, (tokens, width))
        if here.norm is not None and following.norm is not None:
            hidden = hidden * (following.norm / here.norm)
        scores = hidden @ following.matrix.T
        if following.bias is not None:
            scores = 1 / (1 + np.exp(-scores)) + following.bias
        best = np.argpartition(-scores, used - 1, axis=1)[:, :used]
        order = np.take_along_axis(scores, best, axis=1).ravel().argsort()[::-1]
        return list(dict.fromkeys(best.ravel()[order].tolist()))

    def note(self, read: int, hits: int) -> None:
        """Of the experts `read` for a prediction, `hits` were asked for."""
        fading = 1 - min(1.0, read / _REMEMBERED)
        self._read = self._read * fading + read
        self._hits = self._hits * fading + hits
        if self._read > _REMEMBERED / 2 and self._hits < _WORTH * self._read:
            self._pause, self._read, self._hits = _PAUSE_LAYERS, 0.0, 0.0


def _logits(routing: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The product of a routing's router, and the node that adds a bias to its scores, if there is one."""
    node, biased = routing, None
    for _ in range(_FAR):
        if not node.src[0]:
            return None, None
        node = node.src[0].contents
        if node.name.startswith(b"ffn_moe_probs_biased-"):
            biased = node
        if node.name.startswith(b"ffn_moe_logits-"):
            whole = node.src[0] and node.src[1] and node.src[0].contents.name.endswith(b"ffn_gate_inp.weight")
            return (node, biased) if whole else (None, None)
    return None, None


def _router(logits: Tensor, biased: Tensor | None) -> _Router | None:
    weights, read = logits.src[0].contents, logits.src[1].contents
    if weights.type != F32 or read.type != F32:
        return None
    matrix = _array(weights, (int(weights.ne[1]), int(weights.ne[0])))
    norm = bias = None
    scale = read.src[1].contents if read.src[1] else None
    if scale is not None and scale.name.endswith(b"norm.weight") and scale.type == F32:
        norm = _array(scale, (int(scale.ne[0]),))
        norm = norm if np.all(norm) else None
    if biased is not None and biased.src[1] and biased.src[1].contents.type == F32:
        bias = _array(biased.src[1].contents, (matrix.shape[0],))
    return _Router(matrix, norm, bias)


def _array(tensor: Tensor, shape: tuple[int, ...]) -> Any:
    """A view of its float32 values, whose rows lie one behind the other."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor.data)).reshape(shape)
