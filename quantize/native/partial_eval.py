"""Evaluates a part of a model, starting from the residual stream that an earlier run stored before a layer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantize.native.graph import GgmlTensor, NodeHook, name_of, read_floats, write_bytes
from quantize.native.split_points import SplitPoint, restore, silence

Floats = npt.NDArray[np.float32]


class GraphDiffers(Exception):
    """A graph differs from the one in which the split points were found; holds the expected and the actual node."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the graph has {found!r} where {expected!r} was")


class NullTap(NodeHook):
    """Reads nothing; the graph is computed to its end."""

    def asks(self, address: int, node: GgmlTensor) -> bool:
        del address, node
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Never called."""
        raise NotImplementedError


class PartTap(NodeHook):
    """Skips the graph before a split point, whose values are given, and reads the values at other split points.

    `inner` sees the nodes after the start. The graph ends when `inner` ends it, but not before the last value is
    read. Without `inner` it ends there. `found` has a copy of the values by layer, (tokens, width).
    """

    def __init__(
        self,
        inner: NodeHook | None,
        *,
        start: tuple[SplitPoint, Floats] | None = None,
        reads: Sequence[SplitPoint] = (),
    ) -> None:
        self.found: dict[int, Floats] = {}
        self._inner = inner
        self._start = start
        self._reads = {cut.index: cut for cut in reads}
        self._next = 0
        self._silenced: list[tuple[GgmlTensor, int]] = []
        self._wants_by_node: dict[int, tuple[SplitPoint | None, bool]] = {}

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Skip nodes before the start; forward later ones."""
        index = self._next
        self._next += 1
        if self._start is not None and index <= self._start[0].index:
            cut = self._start[0]
            if index not in cut.shared:
                silence(node, self._silenced)
            if index == cut.index:
                _check(cut, node)
            return index == cut.index
        read = self._reads.get(index)
        if read is not None:
            _check(read, node)
        is_wanted = self._inner is not None and self._inner.asks(address, node)
        if read is None and not is_wanted:
            return False
        self._wants_by_node[address] = (read, is_wanted)
        return True

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Write the given values, or read the requested ones."""
        if self._start is not None and address not in self._wants_by_node:
            values = np.ascontiguousarray(self._start[1], np.float32)
            restore(self._silenced)
            self._start = None
            write_bytes(node, values.view(np.uint8).reshape(-1))
            return True
        read, is_wanted = self._wants_by_node[address]
        if read is not None:
            values = read_floats(node)
            self.found[read.layer] = values.reshape(-1, values.shape[-1]).copy()
            del self._reads[read.index]
        if is_wanted:
            assert self._inner is not None
            if not self._inner.takes(address, node):
                self._inner = None
        return self._inner is not None or bool(self._reads)

    def ended(self) -> None:
        """Clean up after an interrupted evaluation."""
        restore(self._silenced)


def _check(cut: SplitPoint, node: GgmlTensor) -> None:
    if name_of(node) != cut.name:
        raise GraphDiffers(cut.name, name_of(node))
