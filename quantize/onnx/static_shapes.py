"""A decoder with fixed shapes for NPU compilers: one walk over the model for all kinds of computation.

`walk` names every step. `FixedNumbers` (fixed_folder.py) computes the steps and records the range of each;
`FixedGraph` (fixed_folder.py) writes them as a quantized ONNX graph. The caller looks up the token embeddings. Keys
and values of `past` tokens are inputs, and those of the `tokens` new ones are outputs, with transposed keys.
Positions select rows of constant tables.
"""

from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import UnsupportedModel
from quantize.files.gguf_header import GgufFile, TensorInfo
from quantize.files.gguf_split import GgufModel
from quantize.onnx.decoder import DecoderShape
from quantize.onnx.weights import PLAIN, dequantized, plain

Floats = npt.NDArray[np.float32]
# Subtracted from masked scores: enough for a probability of zero, small enough for a fine 16-bit scale.
MASKED: Final = -100.0
_BIASES: Final = (".attn_q.bias", ".attn_k.bias", ".attn_v.bias")


class FixedShape(msgspec.Struct, frozen=True):
    """One graph: it reads `tokens` at a time after `past` cached ones. With `head` it ends with logits."""

    model: DecoderShape
    tokens: int
    past: int
    head: bool

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.model.heads // self.model.kv_heads


class Steps(Protocol):
    """Carries out the steps; an implementation defines its type of values. `name` is the step's name."""

    def input(self, name: str, shape: tuple[int, ...]) -> Any: ...
    def linear(self, name: str, x: Any, weight: str) -> Any: ...
    def shifted(self, name: str, x: Any, bias: str) -> Any: ...
    def norm(self, name: str, x: Any, weight: str) -> Any: ...
    def binary(self, name: str, op: str, a: Any, b: Any) -> Any: ...
    def unary(self, name: str, op: str, x: Any) -> Any: ...
    def product(self, name: str, a: Any, b: Any) -> Any: ...
    def reshape(self, name: str, x: Any, shape: tuple[int, ...]) -> Any: ...
    def transpose(self, name: str, x: Any, order: tuple[int, ...]) -> Any: ...
    def halves(self, name: str, x: Any) -> tuple[Any, Any]: ...
    def join(self, name: str, parts: tuple[Any, ...], axis: int) -> Any: ...
    def rows(self, name: str, table: str) -> Any: ...
    def cached(self, name: str, new: Any, past: Any, axis: int) -> Any: ...
    def output(self, name: str, x: Any) -> None: ...


class FixedWeights:
    """The model's matrices as float32 (rows, row_values), with the halves of each query and key head separated."""

    def __init__(self, model: GgufModel, shape: DecoderShape) -> None:
        self._tensors: dict[str, tuple[GgufFile, TensorInfo]] = {t.name: (part, t) for part, t in model.tensors()}
        self._shape = shape
        self._name = model.parts[0].name
        self._head_norms = any(name.endswith(".attn_q_norm.weight") for name in self._tensors)
        odd = [n for n in self._tensors if n.endswith(".bias") and not n.endswith(_BIASES)]
        if odd:
            raise UnsupportedModel(self._name, f"{odd[0]} is not written with fixed shapes")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str) -> Floats:
        """A tensor. Raises: UnsupportedModel: no such tensor. BadFile."""
        if name not in self._tensors:
            raise UnsupportedModel(self._name, f"it has no tensor {name}")
        part, info = self._tensors[name]
        raw, kind = part.tensor_bytes(info), info.ggml_type.name
        dims = tuple(reversed(info.shape))
        values = (
            plain(raw, kind, dims, name) if kind in PLAIN else dequantized(raw, kind, info.shape[0]).reshape(dims)
        )
        floats = np.asarray(values, np.float32)
        if name.endswith(("attn_q.weight", "attn_q.bias")):
            floats = self._halves(floats, self._shape.heads)
        # The queries include the score scale; if their heads have a norm, the norm's weight does.
        if name.endswith("attn_q_norm.weight" if self._head_norms else ("attn_q.weight", "attn_q.bias")):
            return floats * np.float32(self._shape.head_dim**-0.5)
        if name.endswith("attn_q.weight"):
            return floats
        return self._halves(floats, self._shape.kv_heads) if name.endswith("attn_k.weight") else floats

    def _halves(self, matrix: Floats, heads: int) -> Floats:
        """Convert Llama's neighbouring pairs of queries and keys to halves; other models have halves already."""
        if self._shape.architecture != "llama":
            return matrix
        paired = matrix.reshape(heads, self._shape.head_dim // 2, 2, -1)
        return np.ascontiguousarray(paired.transpose(0, 2, 1, 3)).reshape(matrix.shape)

    def head(self) -> str:
        """The matrix of the logits; the embedding if it is tied."""
        return "output.weight" if "output.weight" in self._tensors else "token_embd.weight"

    def rotary(self) -> tuple[Floats, Floats]:
        """Cosines and sines, (context, head_dim / 2)."""
        s = self._shape
        frequencies = s.rope_base ** -(np.arange(0, s.head_dim, 2, dtype=np.float64) / s.head_dim)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self.get("rope_freqs.weight").astype(np.float64)
        angles = np.arange(s.context, dtype=np.float64)[:, None] * (frequencies / s.rope_factor)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def walk(steps: Steps, shape: FixedShape, weights: FixedWeights) -> None:
    """Run every step of one graph, in order. Equal steps have the same name in every graph of a model."""
    s, t, c = shape.model, shape.tokens, shape.past
    half, rows = s.head_dim // 2, shape.group * t
    x = steps.input("hidden", (1, t, s.embd))
    mask = steps.input("mask", (1, 1, rows, c + t))
    cos, sin = steps.rows("cos", "rope.cos"), steps.rows("sin", "rope.sin")

    def turned(name: str, value: Any) -> Any:
        """Rotate (1, heads, tokens, head_dim) by position."""
        a, b = steps.halves(f"{name}.halves", value)
        first = steps.binary(
            f"{name}.first", "Sub",
            steps.binary(f"{name}.ac", "Mul", a, cos), steps.binary(f"{name}.bs", "Mul", b, sin),
        )  # fmt: skip
        second = steps.binary(
            f"{name}.second", "Add",
            steps.binary(f"{name}.bc", "Mul", b, cos), steps.binary(f"{name}.as", "Mul", a, sin),
        )  # fmt: skip
        return steps.join(f"{name}.turned", (first, second), 3)

    def heads(name: str, value: Any, count: int) -> Any:
        split = steps.reshape(f"{name}.split", value, (1, t, count, 2 * half))
        return steps.transpose(f"{name}.heads", split, (0, 2, 1, 3))

    def projected(at: str, which: str, value: Any) -> Any:
        projection = steps.linear(f"{at}{which}", value, f"{at}attn_{which}.weight")
        bias = f"{at}attn_{which}.bias"
        return steps.shifted(f"{at}{which}.shifted", projection, bias) if bias in weights else projection

    for layer in range(s.layers):
        at = f"blk.{layer}."
        normed = steps.norm(f"{at}attn_norm", x, f"{at}attn_norm.weight")
        q, k, v = (projected(at, n, normed) for n in ("q", "k", "v"))
        q, k = heads(f"{at}q", q, s.heads), heads(f"{at}k", k, s.kv_heads)
        if f"{at}attn_q_norm.weight" in weights:
            q = steps.norm(f"{at}q_norm", q, f"{at}attn_q_norm.weight")
            k = steps.norm(f"{at}k_norm", k, f"{at}attn_k_norm.weight")
        q, k = turned(f"{at}q", q), turned(f"{at}k", k)
        k = steps.transpose(f"{at}k.columns", k, (0, 1, 3, 2))
        v = heads(f"{at}v", v, s.kv_heads)
        keys = steps.cached(f"{at}keys", k, steps.input(f"past.{layer}.key", (1, s.kv_heads, s.head_dim, c)), 3)
        values = steps.cached(
            f"{at}values", v, steps.input(f"past.{layer}.value", (1, s.kv_heads, c, s.head_dim)), 2
        )
        grouped = steps.reshape(f"{at}q.grouped", q, (1, s.kv_heads, rows, s.head_dim))
        scores = steps.binary(f"{at}masked", "Add", steps.product(f"{at}scores", grouped, keys), mask)
        mixed = steps.product(f"{at}mixed", steps.unary(f"{at}probabilities", "Softmax", scores), values)
        mixed = steps.reshape(f"{at}mixed.heads", mixed, (1, s.heads, t, s.head_dim))
        mixed = steps.transpose(f"{at}mixed.tokens", mixed, (0, 2, 1, 3))
        mixed = steps.reshape(f"{at}mixed.flat", mixed, (1, t, s.heads * s.head_dim))
        x = steps.binary(
            f"{at}attended", "Add", x, steps.linear(f"{at}attn_output", mixed, f"{at}attn_output.weight")
        )
        normed = steps.norm(f"{at}ffn_norm", x, f"{at}ffn_norm.weight")
        gate = steps.linear(f"{at}gate", normed, f"{at}ffn_gate.weight")
        active = steps.binary(f"{at}active", "Mul", gate, steps.unary(f"{at}sigmoid", "Sigmoid", gate))
        wide = steps.binary(f"{at}wide", "Mul", active, steps.linear(f"{at}up", normed, f"{at}ffn_up.weight"))
        x = steps.binary(f"{at}out", "Add", x, steps.linear(f"{at}down", wide, f"{at}ffn_down.weight"))
    if shape.head:
        normed = steps.norm("output_norm", x, "output_norm.weight")
        steps.output("logits", steps.linear("logits", normed, weights.head()))
