"""Finds split points, the nodes of a graph where an evaluation can start.

At these nodes the residual stream contains the results of everything before them.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from quantize.native.graph import GgmlTensor, NodeHook, name_of, op_id, tensor_at

_LAYER = re.compile(r"^blk\.(\d+)\.")
_PARAMETER = re.compile(r"\.(weight|bias)$")
_TYPE_F32 = 0
_MAX_SRC = 10
# Maximum distance between a layer's first weight and the node that feeds it: a norm and a few views lie between.
_NEAR = 12


class SplitPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A split point: everything after node `index` needs only that node and the nodes in `shared` from before it.

    `layer` is the first layer after it; the node's values are (tokens, `width`) float32. The nodes in `shared`
    multiply nothing and use no weights. They are what all layers share, such as a mask in another type.
    """

    layer: int
    index: int
    name: str
    width: int
    shared: frozenset[int]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a node for finding split points.

    `storage` is the address of the memory it writes to, `reads` the addresses it is computed from. `stream` tells
    whether it could be the residual stream; `uses` are the weights it takes.
    """

    name: str
    storage: int
    address: int
    reads: tuple[int, ...]
    width: int = 0
    stream: bool = False
    multiplies: bool = False
    uses: tuple[str, ...] = ()

    @property
    def layers(self) -> set[int]:
        return {int(m[1]) for m in map(_LAYER.match, self.uses) if m}


class Cuts(msgspec.Struct, frozen=True, kw_only=True):
    """The split points of a graph by layer, and the first node with each name or using a weight of that name."""

    by_layer: dict[int, SplitPoint]
    first: dict[str, int]

    def before(self, name: str, among: Collection[int] | None = None) -> SplitPoint | None:
        """The last split point before a weight is used or a node is computed, optionally among some layers."""
        index = self.first.get(name, -1)
        earlier = [c for n, c in self.by_layer.items() if c.index < index and (among is None or n in among)]
        return max(earlier, key=lambda c: c.index, default=None)


class GraphTap(NodeHook):
    """Records every node of a graph and computes none; the evaluation's results are meaningless."""

    def __init__(self, tokens: int) -> None:
        self.nodes: list[Node] = []
        self._tokens = tokens
        self._silenced: list[tuple[GgmlTensor, int]] = []

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Record the node and skip it."""
        sources = [tensor_at(a) for a in node.src[:_MAX_SRC] if a]
        names = [name_of(s) for s in sources]
        self.nodes.append(
            Node(
                name=name_of(node),
                address=address,
                storage=int(node.view_src or address),
                reads=tuple(
                    int(s.view_src or a) for s, a in zip(sources, (a for a in node.src if a), strict=False)
                ),
                width=int(node.ne[0]),
                stream=node.type == _TYPE_F32 and not node.view_src and list(node.ne[1:]) == [self._tokens, 1, 1],
                multiplies=node.op in (op_id("MUL_MAT"), op_id("MUL_MAT_ID")),
                uses=tuple(n for n in names if _PARAMETER.search(n)),
            )
        )
        silence(node, self._silenced)
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Never called."""
        raise NotImplementedError

    def ended(self) -> None:
        """Restore the operations of the nodes."""
        restore(self._silenced)


def silence(node: GgmlTensor, into: list[tuple[GgmlTensor, int]]) -> None:
    """Skip a node when its graph is computed, until `restore`."""
    into.append((node, int(node.op)))
    node.op = 0  # Source: ggml.h, GGML_OP_NONE: every backend skips it


def restore(silenced: list[tuple[GgmlTensor, int]]) -> None:
    """Undo `silence`, because llama.cpp may use the graph again."""
    for node, op in silenced:
        node.op = op
    silenced.clear()


def find_cuts(nodes: Sequence[Node]) -> Cuts:
    """The split points by layer, for layers from the second on that have one."""
    first: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in (node.name, *node.uses):
            first.setdefault(name, index)
    first_use: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for layer in node.layers:
            first_use.setdefault(layer, index)
    touching: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        touching.setdefault(node.storage, []).append(index)
    cuts = {}
    for layer, used in first_use.items():
        if layer == 0:
            continue
        for index in range(used - 1, max(-1, used - _NEAR), -1):
            cut = _cut_at(nodes, touching, index, layer)
            if cut is not None:
                cuts[layer] = cut
                break
    return Cuts(by_layer=cuts, first=first)


def _cut_at(nodes: Sequence[Node], touching: Mapping[int, list[int]], index: int, layer: int) -> SplitPoint | None:
    """The split point at one node, if the following nodes need no other expensive node before it."""
    node = nodes[index]
    if not node.stream or any(min(later.layers, default=layer) < layer for later in nodes[index + 1 :]):
        return None
    shared: set[int] = set()
    # Every node that touches a memory area that is read is needed: one node writes a cache and another reads it.
    pending = [s for later in nodes[index + 1 :] for s in (later.storage, *later.reads)]
    seen = {node.address}
    while pending:
        storage = pending.pop()
        if storage in seen:
            continue
        seen.add(storage)
        for before in touching.get(storage, ()):
            if before > index or before in shared:
                continue
            if nodes[before].multiplies or nodes[before].uses:
                return None
            shared.add(before)
            pending += nodes[before].reads
    return SplitPoint(layer=layer, index=index, name=node.name, width=node.width, shared=frozenset(shared))
