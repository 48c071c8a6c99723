"""Second moments of every layer's real inputs, collected while llama.cpp evaluates a text."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from quantize.errors import InputFault
from quantize.files.work_folder import Group
from quantize.gptq.products import gram
from quantize.native.graph import GgmlTensor, op_id, read_floats, read_ints, tensor_at
from quantize.native.source_weights import SourceWeights, quantizable
from quantize.native.taps import Tap

_MIN_TOKENS = 16  # smaller batches are lookups or single tokens. Source: llama.cpp, tools/imatrix/imatrix.cpp


class BadActivations(InputFault):
    """The inputs of a tensor are not finite on the calibration text: the model is damaged."""

    code = "bad_activations"

    def __init__(self, tensor: str) -> None:
        super().__init__(f"the inputs of {tensor} are not finite on the calibration text")
        self.tensor = tensor


class GroupTap(Tap):
    """Finds out which weights multiply the same input. Reads no values."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], str] = {}
        self._experts: dict[str, int] = {}
        self._order: dict[str, str] = {}

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Note the input; never ask for its values."""
        key = (int(node.src[1] or 0), int(node.src[2] or 0))
        self._order.setdefault(weight, self._first.setdefault(key, weight))
        self._experts.setdefault(weight, int(tensor_at(node.src[0]).ne[2]))
        return False

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Never called."""
        raise NotImplementedError(weight)

    def groups(self, source: SourceWeights) -> tuple[Group, ...]:
        """The groups of quantizable weights, in order of use; tables that are only looked up come last."""
        wanted = {n for n in source.names if quantizable(source, n)}
        members: dict[str, list[str]] = {}
        for weight, first in self._order.items():
            if weight in wanted:
                members.setdefault(first, []).append(weight)
        found = [
            Group(
                name=names[0],
                members=tuple(names),
                width=source.shape(names[0])[2],
                experts=self._experts[names[0]],
                tied=names[0] == "token_embd.weight",
            )
            for names in members.values()
        ]
        unused = sorted(wanted - self._order.keys())
        found += [Group(name=n, members=(n,), width=source.shape(n)[2], seen=False) for n in unused]
        return tuple(found)


class MomentTap(Tap):
    """Sums x x^T over tokens, for each wanted group and expert."""

    def __init__(self, groups: Iterable[Group], threads: int = 1) -> None:
        self._threads = threads
        self._groups: Mapping[str, Group] = {g.name: g for g in groups}
        shapes = {g.name: (g.experts, g.width, g.width) for g in self._groups.values()}
        self.sums: dict[str, npt.NDArray[np.float32]] = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
        self.tokens: dict[str, npt.NDArray[np.int64]] = {
            g.name: np.zeros(g.experts, np.int64) for g in self._groups.values()
        }

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Only the first weight of a wanted group, and only real batches."""
        if weight not in self._groups:
            return False
        inputs = tensor_at(node.src[1])
        count = inputs.ne[2] if node.op == op_id("MUL_MAT_ID") else inputs.ne[1]
        return int(count) >= _MIN_TOKENS

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Add the batch's outer products."""
        inputs = read_floats(tensor_at(node.src[1]))
        if not np.isfinite(inputs).all():
            raise BadActivations(weight)
        if node.op == op_id("MUL_MAT_ID"):
            self._take_routed(weight, inputs[0], read_ints(tensor_at(node.src[2]))[0, 0])
            return
        experts = self._groups[weight].experts
        for index, matrix in enumerate(inputs.reshape(-1, *inputs.shape[2:])):
            self._add(weight, index % experts, matrix)

    def _take_routed(self, weight: str, inputs: npt.NDArray[np.float32], routes: npt.NDArray[np.int32]) -> None:
        """Inputs (tokens, slots or 1, width); routes (tokens, slots) say which expert each slot went to."""
        slots = np.arange(routes.shape[1]) % inputs.shape[1]
        for expert in np.unique(routes):
            token, slot = np.nonzero(routes == expert)
            self._add(weight, int(expert), inputs[token, slots[slot]])

    def _add(self, weight: str, expert: int, rows: npt.NDArray[np.float32]) -> None:
        self.sums[weight][expert] += gram(rows, self._threads)
        self.tokens[weight][expert] += len(rows)

    def add(self, other: "MomentTap") -> None:
        """Add what another tap of the same groups has seen."""
        for name, sums in other.sums.items():
            self.sums[name] += sums
            self.tokens[name] += other.tokens[name]

    def means(self, name: str) -> npt.NDArray[np.float32]:
        """(experts, width, width) mean outer products; zero for an expert that no token reached."""
        counts = np.maximum(self.tokens[name], 1).astype(np.float32)
        means: npt.NDArray[np.float32] = self.sums[name] / counts[:, None, None]
        return means


def partition(groups: Iterable[Group], memory_bytes: int) -> list[list[Group]]:
    """Groups in subsets whose second moments fit a memory; a group larger than it stands alone."""
    subsets: list[list[Group]] = []
    room = 0
    for group in groups:
        if not subsets or group.moment_bytes > room:
            subsets.append([])
            room = memory_bytes
        subsets[-1].append(group)
        room -= group.moment_bytes
    return subsets
