"""A BERT's layers as one small 8-bit graph, for embedding many texts when exact results are not needed.

Weights have one scale per row, activations one scale per text (dynamic quantization). Everything between the
products is float32. The input of the graph is the sum of the three embeddings, which are looked up outside of it.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from quantize.errors import UnsupportedModel
from quantize.files.gguf_split import GgufModel, read_gguf_model
from quantize.onnx.encoder import ARCHITECTURE, MEAN, EncoderShape, EncoderTensors, encoder_shape

INPUT: Final = "rows"
OUTPUT: Final = "pooled"
_OPSETS: Final = {"": 21, "com.microsoft": 1}
_IR_VERSION: Final = 10
_MOST: Final = 127  # maximum of a signed byte; -128 is not used
_KINDS: Final = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8, "int64": TensorProto.INT64}

Floats = npt.NDArray[np.float32]


class QuickEncoder(msgspec.Struct, frozen=True):
    """`graph` turns rows (1, tokens, embd) float32 into one row (1, embd).

    `words` and `positions` are embeddings.
    """

    graph: bytes
    words: npt.NDArray[np.float16]
    positions: Floats

    def rows(self, tokens: list[int]) -> Floats:
        """The graph's input for a text, (1, tokens, embd)."""
        rows: Floats = self.words[tokens].astype(np.float32) + self.positions[: len(tokens)]
        return rows[None]


def quick_encoder(path: Path) -> QuickEncoder:
    """The encoder of a GGUF file.

    Raises: UnsupportedModel: not a BERT embedding model. BadFile: a tensor is missing, has another shape or is not
    finite.
    """
    model = read_gguf_model(path)
    shape = encoder_shape(model)
    if model.architecture != ARCHITECTURE or shape.ranks:
        raise UnsupportedModel(path.name, "it is no BERT that embeds texts")
    return _Builder(model, shape).encoder()


class _Builder:
    def __init__(self, model: GgufModel, shape: EncoderShape) -> None:
        self._values = EncoderTensors(model).values
        self._shape = shape
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def encoder(self) -> QuickEncoder:
        shape = self._shape
        x = self._node("LayerNormalization", [INPUT, *self._norm("token_embd_norm")], epsilon=shape.epsilon)
        thirds = self._weight("thirds", np.array([shape.embd] * 3, np.int64))
        for layer in range(shape.layers):
            at = f"blk.{layer}."
            together = self._product(x, [f"{at}attn_{n}" for n in "qkv"])
            q, k, v = self._parts("Split", [together, thirds], 3, axis=-1)
            # One text without padding: without a mask ONNX Runtime fuses the softmax with both products.
            mixed = self._node("MultiHeadAttention", [q, k, v], own=True, num_heads=shape.heads)
            x = self._added(self._product(mixed, [f"{at}attn_output"]), x, f"{at}attn_output_norm")
            wide = self._node("Gelu", [self._product(x, [f"{at}ffn_up"])], own=True)
            x = self._added(self._product(wide, [f"{at}ffn_down"]), x, f"{at}layer_output_norm")
        at = self._weight("at", np.array([1] if shape.pooling == MEAN else 0, np.int64))
        if shape.pooling == MEAN:
            self._node("ReduceMean", [x, at], out=OUTPUT, keepdims=0)
        else:
            self._node("Gather", [x, at], out=OUTPUT, axis=1)
        return QuickEncoder(
            self._graph(),
            self._values("token_embd.weight").astype(np.float16),
            self._values("position_embd.weight") + self._values("token_types.weight")[0],
        )

    def _graph(self) -> bytes:
        embd = self._shape.embd
        graph = helper.make_graph(
            self._nodes,
            "encoder",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [1, "tokens", embd])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, embd])],
            initializer=self._weights,
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        written: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION).SerializeToString()
        return written

    def _product(self, x: str, names: list[str]) -> str:
        """Compute x @ concat(weights).T + concat(biases) in 8 bits."""
        values = np.concatenate([self._values(f"{name}.weight") for name in names])
        scales = np.abs(values).max(axis=1) / np.float32(_MOST)
        scales[scales == 0] = 1
        codes = np.rint(values / scales[:, None]).astype(np.int8)
        bias = np.concatenate([self._values(f"{name}.bias") for name in names])
        first = names[0]
        inputs = [x, self._weight(f"{first}.codes", codes.T), self._weight(f"{first}.scales", scales)]
        return self._node("DynamicQuantizeMatMul", [*inputs, "", self._weight(f"{first}.bias", bias)], own=True)

    def _added(self, x: str, before: str, norm: str) -> str:
        total = self._node("Add", [x, before])
        return self._node("LayerNormalization", [total, *self._norm(norm)], epsilon=self._shape.epsilon)

    def _norm(self, name: str) -> list[str]:
        return [self._weight(f"{name}.{part}", self._values(f"{name}.{part}")) for part in ("weight", "bias")]

    def _node(self, op: str, inputs: list[str], *, own: bool = False, out: str = "", **facts: Any) -> str:
        """Add a node with one result; `own` marks an operator specific to ONNX Runtime."""
        return self._parts(op, inputs, 1, own=own, out=out, **facts)[0]

    def _parts(
        self, op: str, inputs: list[str], count: int, *, own: bool = False, out: str = "", **facts: Any
    ) -> list[str]:
        name = f"{op}_{len(self._nodes)}"
        outs = [out] if out else [f"{name}.{i}" for i in range(count)]
        domain = "com.microsoft" if own else ""
        self._nodes.append(helper.make_node(op, inputs, outs, name=name, domain=domain, **facts))
        return outs

    def _weight(self, name: str, values: npt.NDArray[Any]) -> str:
        kind = _KINDS[values.dtype.name]
        self._weights.append(helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True))
        return name
