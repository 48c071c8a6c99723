"""Converts a GGUF decoder to fixed-shape graphs: `prefill.onnx` and `decode.onnx` with one file of weights.

`decode.onnx` processes the last token of a prompt, so `prefill.onnx` has no head. `fixed.json` holds the sizes and
the scales of all inputs and outputs, `embedding.bin` the token rows in float16, and `first.bin` the codes of the
first token's keys and values.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tokenizers import Tokenizer

from quantize.errors import InvalidOption, UnsupportedModel
from quantize.files.gguf_split import GgufModel
from quantize.onnx.decoder import DecoderShape, decoder_shape
from quantize.onnx.graph import GraphWriter
from quantize.onnx.static_shapes import MASKED, FixedShape, FixedWeights, Floats, walk
from quantize.types import CALIBRATION

# Computes the steps of a fixed decoder in float32, and records the range of each step's values on a text.

Range = tuple[float, float]


class FixedNumbers:
    """Implements `Steps` on arrays. `ranges` has the minimum and maximum of every step so far."""

    def __init__(self, weights: FixedWeights) -> None:
        self._weights = weights
        self._values: dict[str, Floats] = {}
        cos, sin = weights.rotary()
        self._values |= {"rope.cos": cos, "rope.sin": sin}
        self.ranges: dict[str, Range] = {}
        self._inputs: dict[str, Floats] = {}
        self._positions = np.zeros(0, np.int64)
        self.outputs: dict[str, Floats] = {}
        self.new: dict[str, Floats] = {}
        self._epsilon = 0.0

    def run(self, shape: FixedShape, inputs: dict[str, Any], positions: Any) -> dict[str, Floats]:
        """Run one pass; returns the outputs, and the new keys and values as `blk.N.keys` and `blk.N.values`."""
        self._inputs, self._positions, self._epsilon = inputs, positions, shape.model.epsilon
        self.outputs, self.new = {}, {}
        walk(self, shape, self._weights)
        return {**self.outputs, **self.new}

    def _note(self, name: str, values: Floats) -> Floats:
        low, high = self.ranges.get(name, (0.0, 0.0))
        self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        return values

    def _weight(self, name: str) -> Floats:
        if name not in self._values:
            self._values[name] = self._weights.get(name)
        return self._values[name]

    def input(self, name: str, shape: tuple[int, ...]) -> Floats:
        value = self._inputs[name]
        assert value.shape == shape, (name, value.shape, shape)
        return value if name.startswith("past.") or name == "mask" else self._note(name, value)

    def linear(self, name: str, x: Floats, weight: str) -> Floats:
        """Multiply by a weight's transpose."""
        return self._note(name, x @ self._weight(weight).T)

    def shifted(self, name: str, x: Floats, bias: str) -> Floats:
        """Add one value per column."""
        return self._note(name, x + self._weight(bias))

    def norm(self, name: str, x: Floats, weight: str) -> Floats:
        """Root mean square norm over the last axis."""
        scale = np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self._epsilon)
        return self._note(name, (x / scale).astype(np.float32) * self._weight(weight))

    def binary(self, name: str, op: str, a: Floats, b: Floats) -> Floats:
        result: Floats = a + b if op == "Add" else a - b if op == "Sub" else a * b
        return self._note(name, result)

    def unary(self, name: str, op: str, x: Floats) -> Floats:
        """Sigmoid, or Softmax over the last axis."""
        if op == "Sigmoid":
            return self._note(name, (1 / (1 + np.exp(-x))).astype(np.float32))
        raised = np.exp(x - x.max(-1, keepdims=True))
        return self._note(name, raised / raised.sum(-1, keepdims=True))

    def product(self, name: str, a: Floats, b: Floats) -> Floats:
        """Matrix product over the last two axes."""
        return self._note(name, a @ b)

    def reshape(self, _name: str, x: Floats, shape: tuple[int, ...]) -> Floats:
        """Reshape without changing values."""
        return x.reshape(shape)

    def transpose(self, _name: str, x: Floats, order: tuple[int, ...]) -> Floats:
        """Transpose without changing values."""
        return x.transpose(order)

    def halves(self, _name: str, x: Floats) -> tuple[Floats, Floats]:
        """Split the last axis into halves."""
        middle = x.shape[-1] // 2
        return x[..., :middle], x[..., middle:]

    def join(self, name: str, parts: tuple[Floats, ...], axis: int) -> Floats:
        return self._note(name, np.concatenate(parts, axis))

    def rows(self, name: str, table: str) -> Floats:
        """The rows of this pass's positions."""
        return self._note(name, self._values[table][self._positions])

    def cached(self, name: str, new: Floats, past: Floats, axis: int) -> Floats:
        self.new[name] = self._note(name, new)
        return np.concatenate((past, new), axis)

    def output(self, name: str, x: Floats) -> None:
        """Store a result."""
        self.outputs[name] = x


def first_token(weights: FixedWeights, shape: FixedShape, token: int) -> tuple[FixedNumbers, dict[str, Floats]]:
    """A `FixedNumbers`, and the keys and values of the token that starts every sequence.

    Models give the first token values a thousand times larger than all others (an attention sink), which would use
    up the whole 16-bit range. They are therefore computed here once, in float32, and the graphs read them from the
    cache.
    """
    numbers, m = FixedNumbers(weights), shape.model
    table = weights.get("token_embd.weight")
    inputs = {"hidden": table[[token]][None], "mask": np.zeros((1, 1, shape.group, 1), np.float32)} | _empty(m)
    outputs = numbers.run(FixedShape(m, 1, 0, head=False), inputs, np.zeros(1, np.int64))
    ranges = {name: r for name, r in numbers.ranges.items() if name in outputs}
    numbers.ranges = ranges
    return numbers, outputs


def _empty(m: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for layer in range(m.layers):
        inputs[f"past.{layer}.key"] = np.zeros((1, m.kv_heads, m.head_dim, 0), np.float32)
        inputs[f"past.{layer}.value"] = np.zeros((1, m.kv_heads, 0, m.head_dim), np.float32)
    return inputs


def calibrate(
    weights: FixedWeights, shape: FixedShape, begin: int, sequences: list[list[int]]
) -> tuple[dict[str, Range], dict[str, Floats]]:
    """Ranges of every step over token sequences after the token `begin`, and that token's keys and values."""
    numbers, first = first_token(weights, shape, begin)
    table = weights.get("token_embd.weight")
    m = shape.model
    past: dict[str, Any] = {}
    for layer in range(m.layers):
        past[f"past.{layer}.key"] = first[f"blk.{layer}.keys"]
        past[f"past.{layer}.value"] = first[f"blk.{layer}.values"]
    for ids in sequences:
        t = len(ids)
        at = FixedShape(m, t, 1, head=True)
        mask = np.hstack((np.zeros((t, 1), np.float32), np.triu(np.full((t, t), MASKED, np.float32), 1)))
        hidden = table[np.array(ids)][None]
        inputs = {"hidden": hidden, "mask": np.tile(mask, (at.group, 1))[None, None]} | past
        numbers.run(at, inputs, np.arange(1, t + 1))
    low, high = float(table.min()), float(table.max())
    return numbers.ranges | {"hidden": (low, high), "mask": (MASKED, 0.0)}, first


# Writes the steps of a fixed decoder as a quantized ONNX graph for the compiler of Qualcomm's NPU.
#
# Activations have 16 bits and one scale per step, weights 8 or 4 bits and one scale per row, cached keys and values
# 8 bits. All inputs and outputs of the graph are integers, so no work is left for the CPU. Source: ONNX Runtime,
# QNN execution provider (node units of DequantizeLinear, operator, QuantizeLinear), and AIMET.

_TOP: Final = {"uint16": 65535, "uint8": 255}
# Margin added to ranges on both sides: other texts have slightly larger values than the calibration text.
_SLACK: Final = 0.05


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Quantization of a value: scale * (code - zero), with uint16 or uint8 codes."""

    scale: float
    zero: int
    kind: str = "uint16"

    def codes(self, values: Any) -> Any:
        codes = np.rint(np.asarray(values, np.float64) / self.scale) + self.zero
        return codes.clip(0, _TOP[self.kind]).astype(self.kind)

    def values(self, codes: Any) -> Any:
        """The float32 values of codes."""
        return ((codes.astype(np.float32) - self.zero) * np.float32(self.scale)).astype(np.float32)


def scale_of(limits: Range, kind: str = "uint16", slack: float = _SLACK) -> Scale:
    """The scale for a range; zero is always within it."""
    low, high = min(0.0, limits[0]), max(0.0, limits[1])
    low, high = low * (1 + slack), high * (1 + slack)
    scale = max((high - low) / _TOP[kind], 1e-9)
    return Scale(scale=scale, zero=int(min(_TOP[kind], max(0, round(-low / scale)))), kind=kind)


class _Value(msgspec.Struct, frozen=True):
    """`name` is the tensor after DequantizeLinear, `codes` the one before it."""

    name: str
    codes: str
    scale: Scale


class FixedGraph:
    """Implements `Steps` with nodes. `scales` are those of the graph's inputs and outputs, by name."""

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
        value = self._graph.node("DequantizeLinear", [codes, *self._constants(scale)])
        return _Value(value, codes, scale)

    def _rounded(self, source: str, scale: Scale, out: str | None = None) -> _Value:
        return self._value(self._graph.node("QuantizeLinear", [source, *self._constants(scale)], out=out), scale)

    def _step(self, name: str, op: str, inputs: list[str], **facts: Any) -> _Value:
        return self._rounded(self._graph.node(op, inputs, **facts), scale_of(self._ranges[name]))

    def _moved(self, x: _Value, op: str, inputs: list[str], **facts: Any) -> _Value:
        """Add a node that only moves values and keeps their codes."""
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
        kind = "int8" if self._bits == 8 else "int4"
        zero = g.constant(f"{key}.zero", np.zeros(len(scales), np.int8), kind=kind)
        stored = g.constant(key, codes, kind=kind)
        return g.node("DequantizeLinear", [stored, g.constant(f"{key}.scale", scales), zero], axis=1)

    def linear(self, name: str, x: _Value, weight: str) -> _Value:
        """Multiply by a matrix of the model."""
        return self._step(name, "MatMul", [x.name, self._matrix(weight)])

    def shifted(self, name: str, x: _Value, bias: str) -> _Value:
        return self._step(name, "Add", [x.name, self._small(bias).name])

    def _small(self, name: str) -> _Value:
        """One value per column, in 16 bits."""
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
        """Reshape without changing values."""
        target = self._graph.constant("shape." + "x".join(map(str, shape)), np.array(shape, np.int64))
        return self._moved(x, "Reshape", [x.name, target])

    def transpose(self, _name: str, x: _Value, order: tuple[int, ...]) -> _Value:
        """Transpose without changing values."""
        return self._moved(x, "Transpose", [x.name], perm=list(order))

    def halves(self, _name: str, x: _Value) -> tuple[_Value, _Value]:
        """Split the last axis into halves."""
        g, half = self._graph, self._shape.model.head_dim // 2
        axis = g.constant("const.axis3", np.array([3], np.int64))
        halves = []
        for begin in (0, half):
            ends = [g.constant(f"const.{n}", np.array([n], np.int64)) for n in (begin, begin + half)]
            halves.append(self._moved(x, "Slice", [x.name, *ends, axis]))
        return halves[0], halves[1]

    def join(self, name: str, parts: tuple[_Value, ...], axis: int) -> _Value:
        """Concatenate along an axis."""
        return self._step(name, "Concat", [p.name for p in parts], axis=axis)

    def rows(self, _name: str, table: str) -> _Value:
        scale = scale_of((-1.0, 1.0), slack=0.0)
        stored = self._value(self._graph.constant(table, scale.codes(self._tables[table])), scale)
        return self._moved(stored, "Gather", [stored.name, self._positions], axis=0)

    def cached(self, name: str, new: _Value, past: _Value, axis: int) -> _Value:
        """Concatenate the 8-bit past and the new values; the new part is an output."""
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
        """Declare an output of integer codes."""
        m = self._shape.model
        self._graph.output(name, x.scale.kind, (1, self._shape.tokens, m.vocab))
        self._graph.rename(x.codes, name)
        self.scales[name] = x.scale


FACTS: Final = "fixed.json"
DATA: Final = "fixed.onnx.data"
GRAPHS: Final = ("prefill", "decode")
CHUNK_TOKENS: Final = 64
# RMSNormalization exists as a separate operator from this opset on.
OPSET: Final = 23
# Number and length of sequences; enough for the ranges of activations.
_SEQUENCES, _LENGTH = 6, 128


class FixedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Data for the runner in addition to the graphs. `past` cells are cached, the first for the token `begin`."""

    format: int = 1
    architecture: str
    piece: int
    past: int
    layers: int
    embd: int
    vocab: int
    kv_heads: int
    head_dim: int
    group: int
    begin: int
    ends: tuple[int, ...]
    bits: int
    scales: dict[str, Scale]


def write_fixed(
    model: GgufModel, folder: Path, tokenizer_json: str, ends: list[int], *, past: int = 512, bits: int = 8
) -> FixedFacts:
    """Write the graphs and their files into `folder`, which must exist.

    Raises: UnsupportedModel: a part of the model has no fixed-shape form. InvalidOption: `past` or `bits`. BadFile.
    """
    shape = decoder_shape(model)
    if bits not in (4, 8):
        raise InvalidOption("--bits", f"{bits} is neither 4 nor 8")
    if not CHUNK_TOKENS <= past <= shape.context:
        raise InvalidOption(
            "--context", f"{past} tokens is not between {CHUNK_TOKENS} and the model's {shape.context}"
        )
    weights = FixedWeights(model, shape)
    # Families without a BOS token (some of Qwen's files) separate texts with the EOS token.
    ending = model.metadata.get("tokenizer.ggml.eos_token_id")
    begin = model.metadata.get("tokenizer.ggml.bos_token_id", ending)
    if not isinstance(begin, int) or not 0 <= begin < shape.vocab:
        raise UnsupportedModel(model.parts[0].name, "it names no token that a text begins with")
    ids = Tokenizer.from_str(tokenizer_json).encode(_text(), add_special_tokens=False).ids
    spread = max(1, (len(ids) - _LENGTH) // _SEQUENCES)
    sequences = [ids[i * spread : i * spread + _LENGTH] for i in range(_SEQUENCES)]
    ranges, first = calibrate(weights, FixedShape(shape, CHUNK_TOKENS, past, head=True), begin, sequences)
    scales: dict[str, Scale] = {}
    with (folder / DATA).open("wb") as data:
        before: GraphWriter | None = None
        for name, tokens in zip(GRAPHS, (CHUNK_TOKENS, 1), strict=True):
            graph = GraphWriter(data, DATA, OPSET, before)
            at = FixedShape(shape, tokens, past, head=name == "decode")
            built = FixedGraph(graph, weights, ranges, at, bits)
            built.build()
            data.flush()
            graph.save(folder / f"{name}.onnx")
            scales |= built.scales
            before = graph
        os.fsync(data.fileno())
    weights.get("token_embd.weight").astype(np.float16).tofile(folder / "embedding.bin")
    with (folder / "first.bin").open("wb") as file:
        for layer in range(shape.layers):
            for which in ("key", "value"):
                name = f"blk.{layer}.{which}s"
                file.write(scale_of(ranges[name], "uint8").codes(first[name]).tobytes())
    facts = _describe(shape, past, begin, ends, bits, scales)
    (folder / FACTS).write_bytes(msgspec.json.encode(facts))
    return facts


def _text() -> str:
    return CALIBRATION.read_text(encoding="utf-8")


def _describe(
    shape: DecoderShape, past: int, begin: int, ends: list[int], bits: int, scales: dict[str, Scale]
) -> FixedFacts:
    return FixedFacts(
        architecture=shape.architecture, piece=CHUNK_TOKENS, past=past, layers=shape.layers, embd=shape.embd,
        vocab=shape.vocab, kv_heads=shape.kv_heads, head_dim=shape.head_dim, group=shape.heads // shape.kv_heads,
        begin=begin, ends=tuple(ends), bits=bits, scales=scales,
    )  # fmt: skip
