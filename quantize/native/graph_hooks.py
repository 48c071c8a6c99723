"""Hooks for a running graph: for every node, or for the inputs of multiplications with named weights."""

from quantize.native.graph import GgmlTensor, name_of, op_id, tensor_at


class NodeHook:
    """A hook for the nodes of a running graph. Subclass it and pass it to `EvalContext.run`."""

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Whether the values of a node are needed. Called for every node, before it is computed."""
        raise NotImplementedError

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Read a requested node, just after it was computed. Returning False ends this graph."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called after each evaluation, even after a failed one."""


class Tap(NodeHook):
    """A hook for the inputs of multiplications with named weights."""

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Whether the values of this multiplication's input are needed. Called before it is computed."""
        raise NotImplementedError

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Read the input of a requested multiplication. Called after it was computed."""
        raise NotImplementedError

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Forward multiplications to `wants`."""
        del address
        weight = multiplied_weight(node)
        return weight is not None and self.wants(weight, node)

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Forward multiplications to `take`."""
        del address
        weight = multiplied_weight(node)
        assert weight is not None
        self.take(weight, node)
        return True


def multiplied_weight(node: GgmlTensor) -> str | None:
    """The name of the weight that a node multiplies by; None if the node is not a multiplication."""
    if node.op not in (op_id("MUL_MAT"), op_id("MUL_MAT_ID")) or not node.src[0]:
        return None
    return name_of(tensor_at(node.src[0]))
