"""What to read of a running graph: every node, or the inputs of multiplications with named weights."""

from quantize.native.graph import GgmlTensor, name_of, op_id, tensor_at


class NodeTap:
    """What to do with the nodes of a running graph. Subclass, and pass to `EvalContext.run`."""

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Whether the values of a node are needed. Called for every node, before it is computed."""
        raise NotImplementedError

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Read a node that was asked for, just computed. False ends this graph here."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called after each evaluation, also after one that failed."""


class Tap(NodeTap):
    """Watches the inputs of multiplications with named weights."""

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Whether the values of this multiplication's input are needed. Called before it is computed."""
        raise NotImplementedError

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Read the input of a wanted multiplication. Called after it was computed."""
        raise NotImplementedError

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Pass multiplications on to `wants`."""
        del address
        weight = multiplied_weight(node)
        return weight is not None and self.wants(weight, node)

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Pass multiplications on to `take`."""
        del address
        weight = multiplied_weight(node)
        assert weight is not None
        self.take(weight, node)
        return True


def multiplied_weight(node: GgmlTensor) -> str | None:
    """The name of the weight a node multiplies by; None if it is no multiplication."""
    if node.op not in (op_id("MUL_MAT"), op_id("MUL_MAT_ID")) or not node.src[0]:
        return None
    return name_of(tensor_at(node.src[0]))
