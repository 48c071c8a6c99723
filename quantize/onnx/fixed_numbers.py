"""Computing the steps of a fixed decoder in float32, and the range that each step's values have on a text."""

from typing import Any

import numpy as np

from quantize.onnx.static_shapes import MASKED, FixedShape, FixedWeights, Floats, walk

Range = tuple[float, float]


class FixedNumbers:
    """Implements `Steps` over arrays. `ranges` has the least and greatest value of every step seen so far."""

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
        """One pass; returns the outputs, and the new keys and values under `blk.N.keys` and `blk.N.values`."""
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
        """An input of this pass."""
        found = self._inputs[name]
        assert found.shape == shape, (name, found.shape, shape)
        return found if name.startswith("past.") or name == "mask" else self._note(name, found)

    def linear(self, name: str, x: Floats, weight: str) -> Floats:
        """Multiply by a weight's transpose."""
        return self._note(name, x @ self._weight(weight).T)

    def shifted(self, name: str, x: Floats, bias: str) -> Floats:
        """Add one value a column."""
        return self._note(name, x + self._weight(bias))

    def norm(self, name: str, x: Floats, weight: str) -> Floats:
        """Root mean square norm over the last axis."""
        scale = np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + self._epsilon)
        return self._note(name, (x / scale).astype(np.float32) * self._weight(weight))

    def binary(self, name: str, op: str, a: Floats, b: Floats) -> Floats:
        """Add, Sub or Mul."""
        found: Floats = a + b if op == "Add" else a - b if op == "Sub" else a * b
        return self._note(name, found)

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
        """The same values."""
        return x.reshape(shape)

    def transpose(self, _name: str, x: Floats, order: tuple[int, ...]) -> Floats:
        """The same values."""
        return x.transpose(order)

    def halves(self, _name: str, x: Floats) -> tuple[Floats, Floats]:
        """Of the last axis."""
        middle = x.shape[-1] // 2
        return x[..., :middle], x[..., middle:]

    def join(self, name: str, parts: tuple[Floats, ...], axis: int) -> Floats:
        """One behind the other."""
        return self._note(name, np.concatenate(parts, axis))

    def rows(self, name: str, table: str) -> Floats:
        """The rows of this pass's positions."""
        return self._note(name, self._values[table][self._positions])

    def cached(self, name: str, new: Floats, past: Floats, axis: int) -> Floats:
        """The past, and what is new behind it."""
        self.new[name] = self._note(name, new)
        return np.concatenate((past, new), axis)

    def output(self, name: str, x: Floats) -> None:
        """A result."""
        self.outputs[name] = x


def first_token(weights: FixedWeights, shape: FixedShape, token: int) -> tuple[FixedNumbers, dict[str, Floats]]:
    """What computes, and the keys and values of the one token that every sequence begins with.

    Models give the first token values a thousand times larger than all others (an attention sink), which would take
    all 16 bits for themselves: it is computed here once, in float32, and comes to the graphs from the cache.
    """
    numbers, m = FixedNumbers(weights), shape.model
    table = weights.get("token_embd.weight")
    inputs = {"hidden": table[[token]][None], "mask": np.zeros((1, 1, shape.group, 1), np.float32)} | _empty(m)
    found = numbers.run(FixedShape(m, 1, 0, head=False), inputs, np.zeros(1, np.int64))
    ranges = {name: r for name, r in numbers.ranges.items() if name in found}
    numbers.ranges = ranges
    return numbers, found


def _empty(m: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layer in range(m.layers):
        found[f"past.{layer}.key"] = np.zeros((1, m.kv_heads, m.head_dim, 0), np.float32)
        found[f"past.{layer}.value"] = np.zeros((1, m.kv_heads, 0, m.head_dim), np.float32)
    return found


def calibrate(
    weights: FixedWeights, shape: FixedShape, begin: int, sequences: list[list[int]]
) -> tuple[dict[str, Range], dict[str, Floats]]:
    """Ranges of every step over token sequences that follow the token `begin`, and that token's keys and values."""
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
