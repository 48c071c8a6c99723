"""A Moonshine model as two fixed-shape graphs for NPU compilers: `hear` reads audio, `say` writes a token.

Audio shorter than the graph's length is padded with silence. The padding is excluded from the norm over the whole
audio and from attention, so the results are the same as without padding. `hear` also computes the keys and values
for cross-attention once. The graphs use plain operators on 32-bit floats, which the compilers convert to 16 bits.
Source of the architecture: Moonshine (Jeffries et al., 2024), and the graphs that its authors publish.
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import UnsupportedModel
from quantize.onnx.graph import GraphWriter
from quantize.onnx.request import SPEECH_FACTS

DATA: Final = "speech.onnx.data"
GRAPHS: Final = ("hear", "say")
EMBEDDING: Final = "embedding.bin"
RATE: Final = 16_000
# Strides and widths of the three convolutions. Source: Moonshine, 3.1.
STRIDES: Final = (64, 3, 2)
_WIDTHS: Final = (127, 7, 3)
_EPSILON: Final = 1e-5

Floats = npt.NDArray[np.float32]


class SpeechShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of both graphs: `samples` of audio, `frames` after the convolutions, maximum number of `tokens`."""

    format: int = 1
    samples: int
    first: int
    frames: int
    tokens: int
    layers: int
    embd: int
    heads: int
    head_dim: int
    rotary: int
    vocab: int
    base: float


def frames_of(samples: int) -> tuple[int, int]:
    """Number of frames after the first convolution, and after all three."""
    first = (samples - _WIDTHS[0]) // STRIDES[0] + 1
    second = (first - _WIDTHS[1]) // STRIDES[1] + 1
    return first, (second - _WIDTHS[2]) // STRIDES[2] + 1


def rotary_rows(shape: SpeechShape, count: int) -> tuple[Floats, Floats]:
    """Cosines and sines of the first `count` positions, with each head's halves separated."""
    half = shape.rotary // 2
    angles = np.arange(count)[:, None] * shape.base ** -(np.arange(half) / half)
    unrotated = np.zeros((count, shape.head_dim - shape.rotary))
    cos = np.hstack((np.cos(angles), np.cos(angles), unrotated + 1))
    return cos.astype(np.float32), np.hstack((-np.sin(angles), np.sin(angles), unrotated)).astype(np.float32)


def write_speech(weights: Mapping[str, Floats], folder: Path, *, seconds: float, tokens: int) -> SpeechShape:
    """Write both graphs, their weights, the embedding and the facts into `folder`, which must exist.

    `weights` use the names of `layer_weights`. Raises: UnsupportedModel: one is missing or has another size.
    """
    shape = _shape(weights, seconds, tokens)
    with (folder / DATA).open("wb") as data:
        encoder = GraphWriter(data, DATA)
        _EncoderGraph(encoder, weights, shape).build()
        decoder = GraphWriter(data, DATA, before=encoder)
        _DecoderGraph(decoder, weights, shape).build()
        data.flush()
        for graph, name in ((encoder, GRAPHS[0]), (decoder, GRAPHS[1])):
            graph.save(folder / f"{name}.onnx")
        os.fsync(data.fileno())
    weights["embedding"].astype(np.float16).tofile(folder / EMBEDDING)
    (folder / SPEECH_FACTS).write_bytes(msgspec.json.encode(shape))
    return shape


def _shape(weights: Mapping[str, Floats], seconds: float, tokens: int) -> SpeechShape:
    needed = {"conv1", "conv2", "conv2.bias", "conv3", "conv3.bias", "embedding", "head", "frequencies"}
    layers = sum(name.endswith(".self_attn.q_proj") and name.startswith("encoder.") for name in weights)
    missing = sorted({*needed, *layer_weights(layers)} - set(weights))
    if missing or not layers:
        raise UnsupportedModel("the speech model", f"it has no {[*missing, 'layers'][0]}")
    embd, heads = weights["embedding"].shape[1], 8
    # A multiple of the first convolution's stride.
    samples = math.ceil(seconds * RATE / STRIDES[0]) * STRIDES[0] + STRIDES[0]
    first, frames = frames_of(samples)
    rotary = 2 * weights["frequencies"].size
    return SpeechShape(
        samples=samples,
        first=first,
        frames=frames,
        tokens=tokens,
        layers=layers,
        embd=embd,
        heads=heads,
        head_dim=embd // heads,
        rotary=rotary,
        vocab=weights["embedding"].shape[0],
        base=_base(weights["frequencies"]),
    )


def _base(frequencies: Floats) -> float:
    """The base of the frequencies, which are its powers."""
    flat = frequencies.reshape(-1).astype(np.float64)
    return float(round(flat[1] ** -len(flat)))


def layer_weights(layers: int) -> Iterator[str]:
    """Names of the matrices that `write_speech` needs in addition to convolutions, embedding and head."""
    for layer in range(layers):
        for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
            for attention in attentions:
                yield from (f"{side}.{layer}.{attention}.{n}_proj" for n in "qkvo")
            for part in ("fc1", "fc2"):
                yield from (f"{side}.{layer}.{part}", f"{side}.{layer}.{part}.bias")


class _Graph:
    """Common code of both graphs."""

    def __init__(self, graph: GraphWriter, weights: Mapping[str, Floats], shape: SpeechShape) -> None:
        self._g = graph
        self._weights = weights
        self._shape = shape

    def _constant(self, name: str, values: Any) -> str:
        return self._g.constant(name, np.ascontiguousarray(values, np.float32))

    def _sizes(self, *sizes: int) -> str:
        return self._g.constant("sizes." + "x".join(map(str, sizes)), np.array(sizes, np.int64))

    def _weight(self, name: str) -> Floats:
        if name not in self._weights:
            raise UnsupportedModel("the speech model", f"it has no {name}")
        return self._weights[name]

    def _linear(self, x: str, name: str) -> str:
        product = self._g.node("MatMul", [x, self._constant(name, self._matrix(name))])
        bias = f"{name}.bias"
        if bias not in self._weights:
            return product
        return self._g.node("Add", [product, self._constant(bias, self._weight(bias))])

    def _matrix(self, name: str) -> Floats:
        """(inputs, outputs); includes the score scale in queries, and separates the halves of rotated heads."""
        matrix, s = self._weight(name), self._shape
        if name.endswith((".self_attn.q_proj", ".self_attn.k_proj")):
            heads = matrix.reshape(-1, s.heads, s.head_dim)
            pairs = heads[:, :, : s.rotary]
            apart = np.concatenate((pairs[:, :, 0::2], pairs[:, :, 1::2], heads[:, :, s.rotary :]), axis=2)
            matrix = apart.reshape(matrix.shape)
        return matrix * np.float32(s.head_dim**-0.5) if name.endswith(".q_proj") else matrix

    def _norm(self, x: str, name: str) -> str:
        gain = self._weight(name)
        pair = [self._constant(name, gain), self._constant(f"zeros.{gain.size}", np.zeros_like(gain))]
        return self._g.node("LayerNormalization", [x, *pair], axis=-1, epsilon=_EPSILON)

    def _heads(self, x: str, count: int, order: tuple[int, ...]) -> str:
        s = self._shape
        split = self._g.node("Reshape", [x, self._sizes(1, count, s.heads, s.head_dim)])
        return self._g.node("Transpose", [split], perm=list(order))

    def _projected(self, x: str, at: str, count: int) -> list[str]:
        """Queries, keys and values as (1, heads, count, head_dim)."""
        return [self._heads(self._linear(x, f"{at}.{n}_proj"), count, (0, 2, 1, 3)) for n in "qkv"]

    def _turned(self, x: str, cos: str, sin: str) -> str:
        """Rotate (1, heads, count, head_dim) by position."""
        s, g = self._shape, self._g
        half = s.rotary // 2
        cuts = ((half, s.rotary), (0, half), (s.rotary, s.head_dim))
        parts = [
            g.node("Slice", [x, self._sizes(a), self._sizes(b), g.constant("axis3", np.array([3], np.int64))])
            for a, b in cuts
            if b > a
        ]
        swapped = g.node("Concat", parts, axis=3)
        return g.node("Add", [g.node("Mul", [x, cos]), g.node("Mul", [swapped, sin])])

    def _mixed(self, q: str, keys: str, values: str, mask: str, count: int) -> str:
        """Attention of (1, heads, count, head_dim) queries to columns of keys and rows of values."""
        g, s = self._g, self._shape
        scores = g.node("Add", [g.node("MatMul", [q, keys]), mask])
        mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), values])
        rows = g.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        return g.node("Reshape", [rows, self._sizes(1, count, s.embd)])


class _EncoderGraph(_Graph):
    """Computes from audio the keys and values that every written token attends to."""

    def build(self) -> None:
        g, s = self._g, self._shape
        sound = g.input("sound", "float32", (1, s.samples))
        weights = g.input("weights", "float32", (1, 1, s.first))
        mask = g.input("mask", "float32", (1, 1, 1, s.frames))
        x = self._front(sound, weights)
        rows = zip(("cos", "sin"), rotary_rows(s, s.frames), strict=True)
        cos, sin = (self._constant(f"{name}.{s.frames}", table) for name, table in rows)
        for layer in range(s.layers):
            at = f"encoder.{layer}"
            normed = self._norm(x, f"{at}.input_layernorm")
            q, k, v = self._projected(normed, f"{at}.self_attn", s.frames)
            q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
            mixed = self._mixed(q, g.node("Transpose", [k], perm=[0, 1, 3, 2]), v, mask, s.frames)
            x = g.node("Add", [x, self._linear(mixed, f"{at}.self_attn.o_proj")])
            wide = self._linear(self._norm(x, f"{at}.post_attention_layernorm"), f"{at}.fc1")
            wide = g.node("Gelu", [wide], domain="com.microsoft")
            x = g.node("Add", [x, self._linear(wide, f"{at}.fc2")])
        x = self._norm(x, "encoder.norm")
        for layer in range(s.layers):
            at = f"decoder.{layer}.encoder_attn"
            for which, order, dims in (
                ("key", (0, 2, 3, 1), (1, s.heads, s.head_dim, s.frames)),
                ("value", (0, 2, 1, 3), (1, s.heads, s.frames, s.head_dim)),
            ):
                heads = self._heads(self._linear(x, f"{at}.{which[0]}_proj"), s.frames, order)
                g.rename(heads, g.output(f"heard.{layer}.{which}", "float32", dims))

    def _front(self, sound: str, weights: str) -> str:
        """Three convolutions, with a norm over the whole audio in between, (1, frames, embd)."""
        g, s = self._g, self._shape
        step, blocks = STRIDES[0], s.samples // STRIDES[0]
        rows = g.node("Reshape", [sound, self._sizes(1, blocks, step)])
        axis = g.constant("axis1", np.array([1], np.int64))
        near, far = (g.node("Slice", [rows, self._sizes(a), self._sizes(a + s.first), axis]) for a in (0, 1))
        # A window of 127 samples every 64 samples is two neighbouring blocks without the last sample.
        kernel = np.pad(self._weight("conv1")[:, 0, :], ((0, 0), (0, 2 * step - _WIDTHS[0]))).T
        windows = g.node("Concat", [near, far], axis=2)
        x = g.node("Tanh", [g.node("MatMul", [windows, self._constant("conv1", kernel)])])
        mean = self._over_all(x, weights)
        apart = g.node("Sub", [x, mean])
        spread = self._over_all(g.node("Mul", [apart, apart]), weights)
        spread = g.node("Sqrt", [g.node("Add", [spread, self._constant("epsilon", np.array(_EPSILON))])])
        x = g.node("Mul", [g.node("Div", [apart, spread]), self._constant("groupnorm", self._weight("groupnorm"))])
        x = g.node("Add", [x, self._constant("groupnorm.bias", self._weight("groupnorm.bias"))])
        x = g.node("Transpose", [x], perm=[0, 2, 1])
        for name, stride in (("conv2", STRIDES[1]), ("conv3", STRIDES[2])):
            pair = [self._constant(f"{name}{end}", self._weight(f"{name}{end}")) for end in ("", ".bias")]
            x = g.node("Conv", [x, *pair], strides=[stride], kernel_shape=[self._weight(name).shape[2]])
            x = g.node("Gelu", [x], domain="com.microsoft")
        return g.node("Transpose", [x], perm=[0, 2, 1])

    def _over_all(self, x: str, weights: str) -> str:
        """The mean over the frames that contain audio, and over channels: (1, 1, 1)."""
        last = self._g.constant("last", np.array([-1], np.int64))
        return self._g.node("ReduceMean", [self._g.node("MatMul", [weights, x]), last], keepdims=1)


class _DecoderGraph(_Graph):
    """Computes one token after the written ones, with attention to the audio."""

    def build(self) -> None:
        g, s = self._g, self._shape
        x = g.input("hidden", "float32", (1, 1, s.embd))
        cos, sin = (g.input(n, "float32", (1, 1, 1, s.head_dim)) for n in ("cos", "sin"))
        written = g.input("written", "float32", (1, 1, 1, s.tokens + 1))
        mask = g.input("mask", "float32", (1, 1, 1, s.frames))
        for layer in range(s.layers):
            at = f"decoder.{layer}"
            normed = self._norm(x, f"{at}.input_layernorm")
            q, k, v = self._projected(normed, f"{at}.self_attn", 1)
            q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
            k = g.node("Transpose", [k], perm=[0, 1, 3, 2])
            past = [
                g.input(f"past.{layer}.key", "float32", (1, s.heads, s.head_dim, s.tokens)),
                g.input(f"past.{layer}.value", "float32", (1, s.heads, s.tokens, s.head_dim)),
            ]
            keys = g.node("Concat", [past[0], k], axis=3)
            values = g.node("Concat", [past[1], v], axis=2)
            g.rename(k, g.output(f"new.{layer}.key", "float32", (1, s.heads, s.head_dim, 1)))
            g.rename(v, g.output(f"new.{layer}.value", "float32", (1, s.heads, 1, s.head_dim)))
            mixed = self._mixed(q, keys, values, written, 1)
            x = g.node("Add", [x, self._linear(mixed, f"{at}.self_attn.o_proj")])
            normed = self._norm(x, f"{at}.post_attention_layernorm")
            q = self._heads(self._linear(normed, f"{at}.encoder_attn.q_proj"), 1, (0, 2, 1, 3))
            encoded = [
                g.input(f"heard.{layer}.key", "float32", (1, s.heads, s.head_dim, s.frames)),
                g.input(f"heard.{layer}.value", "float32", (1, s.heads, s.frames, s.head_dim)),
            ]
            mixed = self._mixed(q, encoded[0], encoded[1], mask, 1)
            x = g.node("Add", [x, self._linear(mixed, f"{at}.encoder_attn.o_proj")])
            x = g.node("Add", [x, self._gated(self._norm(x, f"{at}.final_layernorm"), at)])
        logits = self._linear(self._norm(x, "decoder.norm"), "head")
        g.rename(logits, g.output("logits", "float32", (1, 1, s.vocab)))

    def _gated(self, x: str, at: str) -> str:
        """SiLU of the second half of a wide layer, multiplied by its first half."""
        g = self._g
        wide = self._weight(f"{at}.fc1").shape[1] // 2
        both = self._linear(x, f"{at}.fc1")
        axis = g.constant("axis2", np.array([2], np.int64))
        plain, gate = (g.node("Slice", [both, self._sizes(a), self._sizes(a + wide), axis]) for a in (0, wide))
        active = g.node("Mul", [gate, g.node("Sigmoid", [gate])])
        return self._linear(g.node("Mul", [active, plain]), f"{at}.fc2")
