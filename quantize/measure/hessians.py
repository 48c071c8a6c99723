"""Collects the Hessian of every layer's real inputs while llama.cpp evaluates a text."""

import threading
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from devices.errors import InputFault
from quantize.files.measurement_folder import SharedInputGroup
from quantize.gptq.hessian import add_gram, mirror
from quantize.native.graph import (
    GgmlTensor,
    NodeHook,
    Tap,
    multiplied_weight,
    name_of,
    op_id,
    read_floats,
    read_ints,
    tensor_at,
)
from quantize.native.source_weights import SourceWeights, quantizable

Floats = npt.NDArray[np.float32]
_MIN_TOKENS = 16  # smaller batches are lookups or single tokens. Source: llama.cpp, tools/imatrix/imatrix.cpp
# The input node of the head. Source: llama.cpp, src/models. Reading it avoids the head's product, which takes a
# quarter of the time for a large vocabulary.
_HEAD_INPUT = "result_norm"
# Tokens per column of the widest input, and the minimum. Measured: log-archive.md, "Quantization in minutes"
# ("Tokens").
_TOKENS_A_COLUMN = 40
_LEAST_TOKENS = 32_768
# assumed experts per token, a low estimate: more experts per token only mean more tokens per expert
_EXPERTS_A_TOKEN = 4


# Lengths of blocks with a shared scale when inputs are rounded to 8 bits: for weights in blocks of 32 and of 256.
# Source: ggml-common.h, block_q8_0 and block_q8_K.
PEAK_BLOCKS = (32, 256)


class BadActivations(InputFault):
    """A tensor's inputs are not finite on the calibration text, so the model is corrupt."""

    code = "bad_activations"

    def __init__(self, tensor: str) -> None:
        super().__init__(f"the inputs of {tensor} are not finite on the calibration text")
        self.tensor = tensor


class GroupTap(Tap):
    """Finds the weights that multiply the same input. Reads no values."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], str] = {}
        self._experts: dict[str, int] = {}
        self._order: dict[str, str] = {}
        self._inputs: dict[str, str] = {}

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Record the input; never request its values."""
        key = (int(node.src[1] or 0), int(node.src[2] or 0))
        self._order.setdefault(weight, self._first.setdefault(key, weight))
        self._experts.setdefault(weight, int(tensor_at(node.src[0]).ne[2]))
        self._inputs.setdefault(weight, name_of(tensor_at(node.src[1])))
        return False

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Never called."""
        raise NotImplementedError(weight)

    def groups(self, source: SourceWeights) -> tuple[SharedInputGroup, ...]:
        """The groups of quantizable weights in order of use; tables that are only looked up come last."""
        weights = {n for n in source.names if quantizable(source, n)}
        members: dict[str, list[str]] = {}
        for weight, first in self._order.items():
            if weight in weights:
                members.setdefault(first, []).append(weight)
        groups = [
            SharedInputGroup(
                name=names[0],
                members=tuple(names),
                width=source.shape(names[0])[2],
                experts=self._experts[names[0]],
                tied=names[0] == "token_embd.weight",
                input_node=_HEAD_INPUT if self._inputs[names[0]] == _HEAD_INPUT else "",
            )
            for names in members.values()
        ]
        unused = sorted(weights - self._order.keys())
        groups += [SharedInputGroup(name=n, members=(n,), width=source.shape(n)[2], seen=False) for n in unused]
        return tuple(groups)


def largest(values: Floats, count: int) -> Floats:
    """The largest of every `count` neighbours (a power of two) in each row: (rows, width / count).

    In halves, because numpy reduces short axes slowly: a fifth of the time of `max` for 32 values.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    for _ in range(count.bit_length() - 1):
        flat = np.maximum(flat[::2], flat[1::2])
    return flat.reshape(len(values), -1)


class HessianAccumulator:
    """Sums of x x^T over tokens for several groups and experts, added window by window from several contexts.

    `peaks[group][block]` are sums of the squares of the largest value in each block of a token's values. Windows
    are added in their order, so the sums do not depend on timing or on the number of contexts.
    """

    def __init__(self, groups: Iterable[SharedInputGroup]) -> None:
        self.groups: dict[str, SharedInputGroup] = {g.name: g for g in groups}
        self.sums: dict[str, npt.NDArray[np.float32]] = {
            g.name: np.zeros((g.experts, g.width, g.width), np.float32) for g in self.groups.values()
        }
        self.tokens: dict[str, npt.NDArray[np.int64]] = {
            g.name: np.zeros(g.experts, np.int64) for g in self.groups.values()
        }
        self.peaks: dict[str, dict[int, npt.NDArray[np.float64]]] = {
            g.name: {b: np.zeros((g.experts, g.width // b)) for b in PEAK_BLOCKS if g.width % b == 0}
            for g in self.groups.values()
        }
        self._turn = threading.Condition()
        self._passed: dict[str, set[int]] = {name: set() for name in self.groups}
        self._ended: set[int] = set()

    def add(self, name: str, window: int, waits_for: range, parts: Iterable[tuple[int, Floats]]) -> None:
        """Add rows (tokens, width) of experts after all windows in `waits_for` have been added or have ended."""
        passed = self._passed[name]
        with self._turn:
            self._turn.wait_for(lambda: all(w in passed or w in self._ended for w in waits_for))
        for expert, rows in parts:
            add_gram(self.sums[name][expert], rows)
            highest, block = np.abs(rows), 1
            for longer, sums in self.peaks[name].items():  # each is a multiple of the previous one
                highest, block = largest(highest, longer // block), longer
                sums[expert] += np.einsum("tb,tb->b", highest, highest, dtype=np.float64)
            self.tokens[name][expert] += len(rows)
        with self._turn:
            passed.add(window)
            self._turn.notify_all()

    def end(self, window: int) -> None:
        """Mark a window as finished or failed; wakes the windows that wait for it."""
        with self._turn:
            self._ended.add(window)
            self._turn.notify_all()

    def means(self, name: str) -> npt.NDArray[np.float32]:
        """(experts, width, width) mean outer products; zero for an unused expert. Ends the sums."""
        sums = self.sums.pop(name)
        for matrix in sums:
            mirror(matrix)
        sums /= np.maximum(self.tokens[name], 1).astype(np.float32)[:, None, None]
        return sums


class HessianHook(NodeHook):
    """Adds one window's inputs of the requested groups, and ends the graph after the last of them."""

    def __init__(self, sums: HessianAccumulator, window: int = 0, waits_for: range = range(0)) -> None:
        self._sums = sums
        self._window = window
        self._waits_for = waits_for
        self._nodes = {g.input_node: g.name for g in sums.groups.values() if g.input_node}
        self._last = next(reversed(sums.groups), "")

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Request only the first weight of a requested group, or its input node, and only real batches."""
        del address
        if self._nodes and name_of(node) in self._nodes:
            return int(node.ne[1]) >= _MIN_TOKENS
        weight = multiplied_weight(node)
        group = self._sums.groups.get(weight or "")
        if group is None or group.input_node:
            return False
        inputs = tensor_at(node.src[1])
        count = inputs.ne[2] if node.op == op_id("MUL_MAT_ID") else inputs.ne[1]
        return int(count) >= _MIN_TOKENS

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Add the batch's outer products."""
        del address
        name = self._nodes.get(name_of(node)) if self._nodes else None
        inputs = read_floats(node if name else tensor_at(node.src[1]))
        weight = name or multiplied_weight(node)
        assert weight is not None
        if not np.isfinite(inputs).all():
            raise BadActivations(weight)
        if name is None and node.op == op_id("MUL_MAT_ID"):
            parts = list(_routed(inputs[0], read_ints(tensor_at(node.src[2]))[0, 0]))
        else:
            experts = self._sums.groups[weight].experts
            parts = [(i % experts, m) for i, m in enumerate(inputs.reshape(-1, *inputs.shape[2:]))]
        self._sums.add(weight, self._window, self._waits_for, parts)
        return weight != self._last


def _routed(inputs: Floats, routes: npt.NDArray[np.int32]) -> Iterator[tuple[int, Floats]]:
    """Split inputs by expert.

    Inputs: (tokens, slots or 1, width); routes: (tokens, slots), the expert of each slot.
    """
    slots = np.arange(routes.shape[1]) % inputs.shape[1]
    for expert in np.unique(routes):
        token, slot = np.nonzero(routes == expert)
        yield int(expert), inputs[token, slots[slot]]


def partition(groups: Iterable[SharedInputGroup], memory_bytes: int) -> list[list[SharedInputGroup]]:
    """Split groups into subsets whose Hessians fit in memory; a larger group gets its own subset."""
    subsets: list[list[SharedInputGroup]] = []
    bytes_left = 0
    for group in groups:
        if not subsets or group.moment_bytes > bytes_left:
            subsets.append([])
            bytes_left = memory_bytes
        subsets[-1].append(group)
        bytes_left -= group.moment_bytes
    return subsets


def tokens_needed(groups: Iterable[SharedInputGroup]) -> int:
    """Tokens needed for good Hessians: a multiple of the width. A routed expert sees only a part of them."""
    widest = max((g.width for g in groups if g.seen and g.experts == 1), default=0)
    routed = max((g.width * g.experts // _EXPERTS_A_TOKEN for g in groups if g.experts > 1), default=0)
    return max(tokens_for_width(widest), tokens_for_width(routed))


def tokens_for_width(width: int) -> int:
    """Tokens needed for Hessians of one width."""
    return max(_LEAST_TOKENS, _TOKENS_A_COLUMN * width)
