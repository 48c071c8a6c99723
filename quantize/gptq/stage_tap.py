"""Reading the inputs of some weights, and the residual stream that their products go into, off a running graph."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quantize.native.graph import GgmlTensor, op_id, read_floats, tensor_at
from quantize.native.taps import NodeTap, multiplied_weight

Floats = npt.NDArray[np.float32]
# Nodes that only pass values on from a product to the sum it goes into.
_PASSING = ("GET_ROWS", "RESHAPE", "VIEW", "CONT")


@dataclass
class Seen:
    """What one model showed of one group in one batch: inputs, and the residual stream its product went into."""

    inputs: list[Floats] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)


class StageTap(NodeTap):
    """Reads inputs of some groups and the residual sums their products go into."""

    def __init__(self, names: list[str], *, residual: set[str] | None = None) -> None:
        """With `residual` (the groups that have a sum) the graph ends once the last group is complete."""
        self.seen = {name: Seen() for name in names}
        self._products: dict[int, str] = {}
        self._residual = residual
        self._last = names[-1]

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Products of the groups, and the first sum with other tokens' values each of them goes into."""
        weight = multiplied_weight(node)
        if weight is not None:
            if weight in self.seen:
                self._forget(weight)
                self._products[address] = weight
            return weight in self.seen
        name = self._product_in(node)
        if name is None:
            return False
        if node.op == op_id("ADD") and not _adds_bias(node):
            return True
        if node.op in {op_id(n) for n in _PASSING}:
            self._products[address] = name
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Copy what was asked for."""
        del address
        weight = multiplied_weight(node)
        if weight is not None:
            self.seen[weight].inputs.append(_matrix(tensor_at(node.src[1])))
            complete = self._residual is not None and weight not in self._residual
            return not (complete and weight == self._last)
        name = self._product_in(node)
        assert name is not None
        self._forget(name)
        self.seen[name].sums.append(_matrix(node))
        return self._residual is None or name != self._last

    def _product_in(self, node: GgmlTensor) -> str | None:
        return self._products.get(int(node.src[0] or 0)) or self._products.get(int(node.src[1] or 0))

    def _forget(self, name: str) -> None:
        self._products = {a: n for a, n in self._products.items() if n != name}


def _adds_bias(node: GgmlTensor) -> bool:
    """Whether one side of a sum is a single row, the same for every token."""
    return any(int(tensor_at(node.src[i]).ne[1]) == 1 for i in (0, 1)) and int(node.ne[1]) > 1


def _matrix(tensor: GgmlTensor) -> Floats:
    values = read_floats(tensor)
    return values.reshape(-1, values.shape[-1]).copy()
