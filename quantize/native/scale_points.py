"""Finds the scale points: inputs whose channels can be scaled down while their weights are scaled up."""

import msgspec

from quantize.native.graph import GgmlTensor, NodeHook, name_of, op_id, tensor_at

_MAX_SRC = 10
# Embeddings are read from this node too. Source: llama.cpp, src/models.
_ANSWER = "result_norm"


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a graph where channels can be scaled: an input of `width` channels of the weights `readers`.

    `maker` determines the size of each channel: the weight of a norm, or the matrix (one row per channel) whose
    product is multiplied by a gate.
    """

    maker: str
    readers: tuple[str, ...]
    width: int


class _Node(msgspec.Struct, frozen=True):
    """A node of a graph: its address, operation and row length, and the addresses and names of its sources."""

    address: int
    op: int
    width: int
    name: str
    reads: tuple[int, ...]
    names: tuple[str, ...]


class SeamTap(NodeHook):
    """Records every node of a graph; reads no values."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []

    def asks(self, address: int, node: GgmlTensor) -> bool:
        reads = tuple(int(a) for a in node.src[:_MAX_SRC] if a)
        names = tuple(name_of(tensor_at(a)) for a in reads)
        self._nodes.append(_Node(address, int(node.op), int(node.ne[0]), name_of(node), reads, names))
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Never called."""
        raise NotImplementedError

    def seams(self) -> tuple[ScalePoint, ...]:
        """All scale points, in order. Skips weights that are used twice: they would have to be scaled twice."""
        readers: dict[int, list[_Node]] = {}
        uses: dict[str, int] = {}
        for node in self._nodes:
            for address, name in zip(node.reads, node.names, strict=True):
                readers.setdefault(address, []).append(node)
                uses[name] = uses.get(name, 0) + 1
        nodes = {n.address: n for n in self._nodes}
        points = []
        for node in self._nodes:
            maker = _maker(node, nodes, readers)
            products = _products(node, readers) if maker else None
            if maker and products and all(uses[name] == 1 for name in (maker, *products)):
                points.append(ScalePoint(maker=maker, readers=tuple(products), width=node.width))
        return tuple(points)


def _maker(node: _Node, nodes: dict[int, _Node], readers: dict[int, list[_Node]]) -> str:
    """The weight that a node's channels are proportional to; empty if there is none or other nodes read it too."""
    if node.name.startswith(_ANSWER):
        return ""
    if node.op == op_id("MUL"):
        before = nodes.get(node.reads[0])
        if before is not None and before.op == op_id("RMS_NORM") and node.names[1].endswith(".weight"):
            return node.names[1]
    gated = {op_id("GLU"), op_id("MUL")}
    if node.op in gated and len(node.reads) == 2:
        product = nodes.get(node.reads[1])
        if product is None or product.op != op_id("MUL_MAT") or len(readers[product.address]) > 1:
            return ""
        return product.names[0] if product.names[0].endswith(".weight") else ""
    return ""


def _products(node: _Node, readers: dict[int, list[_Node]]) -> list[str] | None:
    """The weights that multiply a node's output; None if any other node reads it."""
    products: list[str] = []
    for reader in readers.get(node.address, ()):
        if reader.op in {op_id("MUL_MAT"), op_id("MUL_MAT_ID")} and reader.reads[1] == node.address:
            if not reader.names[0].endswith(".weight") or reader.reads[0] == node.address:
                return None
            products.append(reader.names[0])
        elif reader.op == op_id("RESHAPE") and reader.width == node.width:
            more = _products(reader, readers)
            if more is None:
                return None
            products += more
        else:
            return None
    return products
