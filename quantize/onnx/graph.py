"""Writes one ONNX graph: nodes stay in memory, weights go directly to a separate file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

# Weights are memory-mapped at multiples of this. Source: ONNX external data documentation (page size and more).
_ALIGNMENT = 4096
# Smaller constants stay in the graph, where shape inference can read them.
_INLINE_BYTES = 1024
_OPSET = 21
_IR_VERSION = 10
_KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "int8": TensorProto.INT8,
    "int4": TensorProto.INT4,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}


class GraphWriter:
    """Collects nodes and constants; most methods return the name of the new value."""

    def __init__(
        self, data: BinaryIO, data_name: str, opset: int = _OPSET, before: "GraphWriter | None" = None
    ) -> None:
        """Create a writer. `before` wrote to the same file; its weights are not stored again."""
        self._opset = opset
        self._data = data
        self._data_name = data_name
        self._nodes: list[Any] = []
        # Weights in the file, by name.
        self.stored: dict[str, Any] = {} if before is None else before.stored
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _KINDS[kind], list(shape)))
        return name

    def output(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """Declare a result of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, _KINDS[kind], list(shape)))
        return name

    def constant(self, name: str, values: npt.NDArray[Any], kind: str = "") -> str:
        """Store weights or a small constant once under a name. `kind` int4 packs int8 codes from -8 to 7."""
        if name in self._constants:
            return name
        dims, number = values.shape, _KINDS[kind or values.dtype.name]
        values = _packed(values) if kind == "int4" else np.ascontiguousarray(values)
        if values.nbytes <= _INLINE_BYTES:
            self._constants[name] = helper.make_tensor(name, number, dims, values.tobytes(), raw=True)
            return name
        if name in self.stored:
            self._constants[name] = self.stored[name]
            return name
        at = math.ceil(self._data.tell() / _ALIGNMENT) * _ALIGNMENT
        self._data.write(b"\0" * (at - self._data.tell()))
        self._data.write(values.data)
        tensor = TensorProto(name=name, data_type=number, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._data_name), ("offset", at), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._constants[name] = self.stored[name] = tensor
        return name

    def node(
        self, op: str, inputs: Sequence[str], *, out: str | None = None, domain: str = "", **facts: Any
    ) -> str:
        """Add a node with one result."""
        return self.nodes(op, inputs, (out or self._fresh(op),), domain=domain, **facts)[0]

    def nodes(
        self, op: str, inputs: Sequence[str], outs: Sequence[str], *, domain: str = "", **facts: Any
    ) -> tuple[str, ...]:
        """Add a node with several results; an empty name skips a result."""
        self._nodes.append(
            helper.make_node(op, list(inputs), list(outs), name=self._fresh(op), domain=domain, **facts)
        )
        return tuple(outs)

    def rename(self, before: str, after: str) -> None:
        """Rename a node's result everywhere it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == before:
                        names[i] = after

    def save(self, path: Path) -> None:
        """Write the graph. The weights must already be flushed."""
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, initializer=list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid("com.microsoft", 1)]
        model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        model.producer_name = "tessera"
        path.write_bytes(model.SerializeToString(deterministic=True))

    def _fresh(self, op: str) -> str:
        self._count += 1
        return f"{op}_{self._count}"


def _packed(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pack two 4-bit codes per byte, the first in the low half. Source: ONNX, INT4."""
    flat = (codes.reshape(-1) & 15).astype(np.uint8)
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    pairs: npt.NDArray[Any] = flat[0::2] | (flat[1::2] << 4)
    return pairs
