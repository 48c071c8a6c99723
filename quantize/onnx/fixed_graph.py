"""Writing the steps of a fixed decoder as a quantized ONNX graph, as the compiler of Qualcomm's NPU takes it.

Activations have 16 bits and one scale a step, weights 8 or 4 bits and one scale a row, cached keys and values 8
bits. Every value that enters or leaves the graph is an integer: nothing is left for the CPU. Source: ONNX
Runtime, QNN execution provider (node units of DequantizeLinear, operator, QuantizeLinear), and AIMET's discussions.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from quantize.onnx.fixed_numbers import Range
from quantize.onnx.graph import GraphWriter
from quantize.onnx.static_shapes import FixedShape, FixedWeights, walk

_TOP: Final = {"uint16": 65535, "uint8": 255}
# Ranges are widened by this on both sides: other texts reach a little further than those of the calibration.
_SLACK: Final = 0.05


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A value is scale * (code - zero); codes are uint16 or uint8."""

    scale: float
    zero: int
    kind: str = "uint16"

    def codes(self, values: Any) -> Any:
        """The codes of float values."""
        found = np.rint(np.asarray(values, np.float64) / self.scale) + self.zero
        return found.clip(0, _TOP[self.kind]).astype(self.kind)

    def values(self, codes: Any) -> Any:
        """The float32 values of codes."""
        return ((codes.astype(np.float32) - self.zero) * np.float32(self.scale)).astype(np.float32)


def scale_of(found: Range, kind: str = "uint16", slack: float = _SLACK) -> Scale:
    """The scale for a range; zero is always among its values."""
    low, high = min(0.0, found[0]), max(0.0, found[1])
    low, high = low * (1 + slack), high * (1 + slack)
    scale = max((high - low) / _TOP[kind], 1e-9)
    return Scale(scale=scale, zero=int(min(_TOP[kind], max(0, round(-low / scale)))), kind=kind)


class _Value(msgspec.Struct, frozen=True):
    """`name` is the tensor behind DequantizeLinear, `codes` the one before it."""

    name: str
    codes: str
    scale: Scale


class FixedGraph:
    """Implements `Steps` over nodes. `scales` are those of the graph's inputs and outputs, by their names."""

    def __init__(
        self, graph: GraphWriter, weights: FixedWeights, ranges: Mapping[str, Range], shape: FixedShape, bits: int
    ) -> None:
        self._graph = graph
        self._weights = weights
        self._ranges = ranges
        self._shape = shape
        self._bits = bits
        self._tables = dict(zip(("rope.cos", "rope.sin"), weights.rotary(), strict=True))
        self._positions = ""
        self.scales: dict[str, Scale] = {}

    def build(self) -> None:
        """Write the graph's nodes. Raises: UnsupportedModel, BadFile."""
        self._positions = self._graph.input("positions", "int32", (self._shape.tokens,))
        walk(self, self._shape, self._weights)

    def _constants(self, scale: Scale) -> list[str]:
        key = f"scale.{scale.kind}.{scale.scale!r}.{scale.zero}"
        step = self._graph.constant(key, np.array(scale.scale, np.float32))
        return [step, self._graph.constant(f"{key}.zero", np.array(scale.zero, scale.kind))]

    def _value(self, codes: str, scale: Scale) -> _Value:
        made = self._graph.node("DequantizeLinear", [codes, *self._constants(scale)])
        return _Value(made, codes, scale)

    def _rounded(self, made: str, scale: Scale, out: str | None = None) -> _Value:
        return self._value(self._graph.node("QuantizeLinear", [made, *self._constants(scale)], out=out), scale)

    def _step(self, name: str, op: str, inputs: list[str], **facts: Any) -> _Value:
        return self._rounded(self._graph.node(op, inputs, **facts), scale_of(self._ranges[name]))

    def _moved(self, x: _Value, op: str, inputs: list[str], **facts: Any) -> _Value:
        """A step that moves values about keeps their codes."""
        return self._rounded(self._graph.node(op, inputs, **facts), x.scale)

    def input(self, name: str, shape: tuple[int, ...]) -> _Value:
        """An input of integer codes."""
        if name.startswith("past."):
            _, layer, which = name.split(".")
            scale = self._cache_scale(f"blk.{layer}.{which}s")
        else:
            scale = scale_of(self._ranges[name], slack=0.0)
        self.scales[name] = scale
        return self._value(self._graph.input(name, scale.kind, shape), scale)

    def _cache_scale(self, name: str) -> Scale:
        return scale_of(self._ranges[name], "uint8")

    def _matrix(self, name: str) -> str:
        g, key = self._graph, f"{name}.{self._bits}"
        matrix = np.ascontiguousarray(self._weights.get(name).T)  # (inputs, rows)
        top = 2 ** (self._bits - 1) - 1
        scales = np.maximum(np.abs(matrix).max(0), 1e-9).astype(np.float32) / np.float32(top)
        codes = np.rint(matrix / scales).clip(-top, top).astype(np.int8)
        kind = "int8" if self._bits == 8 else "int4"  # noqa: PLR2004 - bits of a byte
        zero = g.constant(f"{key}.zero", np.zeros(len(scales), np.int8), kind=kind)
        stored = g.constant(key, codes, kind=kind)
        return g.node("DequantizeLinear", [stored, g.constant(f"{key}.scale", scales), zero], axis=1)

    def linear(self, name: str, x: _Value, weight: str) -> _Value:
        """A product with a matrix of the model."""
        return self._step(name, "MatMul", [x.name, self._matrix(weight)])

    def shifted(self, name: str, x: _Value, bias: str) -> _Value:
        """Add one value a column."""
        return self._step(name, "Add", [x.name, self._small(bias).name])

    def _small(self, name: str) -> _Value:
        """One value a column, in 16 bits."""
        values = self._weights.get(name)
        scale = scale_of((float(values.min()), float(values.max())), slack=0.0)
        return self._value(self._graph.constant(name, scale.codes(values)), scale)

    def norm(self, name: str, x: _Value, weight: str) -> _Value:
        """Root mean square norm."""
        gain = self._small(weight)
        epsilon = self._shape.model.epsilon
        return self._step(name, "RMSNormalization", [x.name, gain.name], axis=-1, epsilon=epsilon)

    def binary(self, name: str, op: str, a: _Value, b: _Value) -> _Value:
        """Add, Sub or Mul."""
        return self._step(name, op, [a.name, b.name])

    def unary(self, _name: str, op: str, x: _Value) -> _Value:
        """Sigmoid, or Softmax over the last axis."""
        facts: dict[str, Any] = {"axis": -1} if op == "Softmax" else {}
        return self._rounded(self._graph.node(op, [x.name], **facts), scale_of((0.0, 1.0), slack=0.0))

    def product(self, name: str, a: _Value, b: _Value) -> _Value:
        """Matrix product over the last two axes."""
        return self._step(name, "MatMul", [a.name, b.name])

    def reshape(self, _name: str, x: _Value, shape: tuple[int, ...]) -> _Value:
        """The same values."""
        wanted = self._graph.constant("shape." + "x".join(map(str, shape)), np.array(shape, np.int64))
        return self._moved(x, "Reshape", [x.name, wanted])

    def transpose(self, _name: str, x: _Value, order: tuple[int, ...]) -> _Value:
        """The same values."""
        return self._moved(x, "Transpose", [x.name], perm=list(order))

    def halves(self, _name: str, x: _Value) -> tuple[_Value, _Value]:
        """Of the last axis."""
        g, half = self._graph, self._shape.model.head_dim // 2
        axis = g.constant("const.axis3", np.array([3], np.int64))
        found = []
        for begin in (0, half):
            ends = [g.constant(f"const.{n}", np.array([n], np.int64)) for n in (begin, begin + half)]
            found.append(self._moved(x, "Slice", [x.name, *ends, axis]))
        return found[0], found[1]

    def join(self, name: str, parts: tuple[_Value, ...], axis: int) -> _Value:
        """One behind the other."""
        return self._step(name, "Concat", [p.name for p in parts], axis=axis)

    def rows(self, _name: str, table: str) -> _Value:
        """The rows of a constant table at the positions."""
        scale = scale_of((-1.0, 1.0), slack=0.0)
        stored = self._value(self._graph.constant(table, scale.codes(self._tables[table])), scale)
        return self._moved(stored, "Gather", [stored.name, self._positions], axis=0)

    def cached(self, name: str, new: _Value, past: _Value, axis: int) -> _Value:
        """The past in 8 bits, and what is new behind it; the new part is an output."""
        scale = self._cache_scale(name)
        layer, which = name.split(".")[1:]
        out = f"new.{layer}.{which.removesuffix('s')}"
        m, t = self._shape.model, self._shape.tokens
        dims = (1, m.kv_heads, m.head_dim, t) if which == "keys" else (1, m.kv_heads, t, m.head_dim)
        self._graph.output(out, scale.kind, dims)
        self.scales[out] = scale
        added = self._rounded(new.name, scale, out=out)
        return self._moved(added, "Concat", [past.name, added.name], axis=axis)

    def output(self, name: str, x: _Value) -> None:
        """A result of integer codes."""
        m = self._shape.model
        self._graph.output(name, x.scale.kind, (1, self._shape.tokens, m.vocab))
        self._graph.rename(x.codes, name)
        self.scales[name] = x.scale
