"""The graph of a Llama, Qwen2 or Qwen3 decoder, built from operators with fast ONNX Runtime kernels."""

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import UnsupportedModel
from quantize.files.gguf_header import GgufFile, TensorInfo
from quantize.files.gguf_split import GgufModel
from quantize.onnx.graph import GraphWriter
from quantize.onnx.weights import BLOCK_VALUES, PLAIN, BlockWeights, blocks, is_exact, plain

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_MS = "com.microsoft"
_FLOAT = 1  # onnx.TensorProto.FLOAT


class DecoderShape(msgspec.Struct, frozen=True):
    """Dimensions of the model, in values; `rope_factor` divides every position (1: no change)."""

    architecture: str
    layers: int
    embd: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocab: int
    epsilon: float
    rope_base: float
    rope_factor: float


def decoder_shape(model: GgufModel) -> DecoderShape:
    """Dimensions from the header.

    Raises: UnsupportedModel: another architecture, experts, or an unknown rotary embedding.
    """
    head = model.parts[0]
    if head.architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(
            head.name, f"{head.architecture or 'this model'} cannot be converted to ONNX (known: {supported})"
        )
    if head.arch_int("expert_count"):
        raise UnsupportedModel(head.name, "models with experts cannot be converted to ONNX")

    def whole(key: str, default: int | None = None) -> int:
        value = head.arch_int(key)
        value = default if value is None else value
        if value is None or value <= 0:
            raise UnsupportedModel(head.name, f"the file does not say {head.architecture}.{key}")
        return value

    def number(key: str, default: float) -> float:
        value = head.arch_value(key, default)
        return float(value) if isinstance(value, int | float) else default

    embd, heads = whole("embedding_length"), whole("attention.head_count")
    head_dim = whole("attention.key_length", embd // heads)
    if whole("rope.dimension_count", head_dim) != head_dim or whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(head.name, "rotary embeddings over a part of a head cannot be converted to ONNX")
    scaling = head.arch_value("rope.scaling.type", "none")
    if scaling not in {"none", "linear"}:
        raise UnsupportedModel(head.name, f"rotary scaling {scaling!r} cannot be converted to ONNX")
    vocab = next((t.shape[-1] for _, t in model.tensors() if t.name == "token_embd.weight"), 0)
    return DecoderShape(
        architecture=head.architecture,
        layers=whole("block_count"),
        embd=embd,
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        context=whole("context_length"),
        vocab=vocab,
        epsilon=number("attention.layer_norm_rms_epsilon", 1e-5),
        rope_base=number("rope.freq_base", 10000.0),
        rope_factor=number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
    )


class DecoderGraph:
    """Builds the graph of one model. `requantized` lists the tensors that are not exact, by type."""

    def __init__(
        self, model: GgufModel, shape: DecoderShape, graph: GraphWriter, accuracy_level: int, *, all_logits: bool
    ) -> None:
        self._tensors: dict[str, tuple[GgufFile, TensorInfo]] = {t.name: (part, t) for part, t in model.tensors()}
        self._shape = shape
        self._name = model.parts[0].name
        self._graph = graph
        self._accuracy = accuracy_level
        self._all_logits = all_logits
        self.resident_bytes = 0
        self.n_params = sum(t.num_values for _, t in model.tensors())
        self.requantized: dict[str, list[str]] = {}

    def build(self) -> None:
        """Write the whole model. Raises: UnsupportedModel, BadFile."""
        g, s = self._graph, self._shape
        ids = g.input("input_ids", "int64", ("batch", "tokens"))
        mask = g.input("attention_mask", "int64", ("batch", "all_tokens"))
        lengths, total = self._lengths(mask)
        cos, sin = self._rotary()
        hidden = self._embed(ids)
        delta = ""
        for layer in range(s.layers):
            normed, hidden = self._add_norm(hidden, delta, f"blk.{layer}.attn_norm.weight")
            delta = self._attention(layer, normed, (lengths, total, cos, sin))
            normed, hidden = self._add_norm(hidden, delta, f"blk.{layer}.ffn_norm.weight")
            delta = self._feed_forward(layer, normed)
        normed, _ = self._add_norm(hidden, delta, "output_norm.weight")
        width: int | str = "tokens"
        if not self._all_logits:
            # Only the newest position is sampled: avoids a (tokens, vocabulary) matrix in prefill.
            width = 1
            bounds = [self._ints("minus_one", -1), self._ints("end", 2**31), self._ints("one", 1)]
            normed = g.node("Slice", [normed, *bounds])
        head = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        g.node(
            "Identity", [self._linear(normed, head)], out=g.output("logits", "float32", ("batch", width, s.vocab))
        )

    def _ints(self, name: str, *values: int) -> str:
        return self._graph.constant(f"const.{name}", np.array(values, np.int64))

    def _lengths(self, mask: str) -> tuple[str, str]:
        g = self._graph
        counted = g.node("ReduceSum", [mask, self._ints("one", 1)], keepdims=0)
        lengths = g.node("Cast", [g.node("Sub", [counted, self._ints("one", 1)])], to=6)
        width = g.node("Gather", [g.node("Shape", [mask]), g.constant("const.axis", np.array(1, np.int64))])
        return lengths, g.node("Cast", [width], to=6)

    def _rotary(self) -> tuple[str, str]:
        s = self._shape
        half = np.arange(0, s.head_dim, 2, dtype=np.float64)
        frequencies = s.rope_base ** -(half / s.head_dim)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._floats("rope_freqs.weight").astype(np.float64)
        angles = np.arange(s.context, dtype=np.float64)[:, None] * (frequencies / s.rope_factor)
        cos = self._graph.constant("rope.cos", np.cos(angles).astype(np.float32))
        return cos, self._graph.constant("rope.sin", np.sin(angles).astype(np.float32))

    def _find(self, name: str) -> tuple[GgufFile, TensorInfo]:
        if name not in self._tensors:
            raise UnsupportedModel(self._name, f"it has no tensor {name}")
        return self._tensors[name]

    def _floats(self, name: str) -> npt.NDArray[np.float32]:
        """A small tensor (a norm, a bias) as float32."""
        part, info = self._find(name)
        shape = tuple(reversed(info.shape))
        return plain(part.tensor_bytes(info), info.ggml_type.name, shape, name).astype(np.float32)

    def _blocks(self, name: str) -> BlockWeights:
        part, info = self._find(name)
        qtype = info.ggml_type.name
        width, rows = info.shape
        if not is_exact(qtype) and name not in self.requantized.setdefault(qtype, []):
            self.requantized[qtype].append(name)
        return blocks(part.tensor_bytes(info), qtype, rows, width, name)

    def _is_plain(self, name: str) -> bool:
        _, info = self._find(name)
        if len(info.shape) != 2:
            raise UnsupportedModel(self._name, f"{name} is not a matrix: {info.shape}")
        return info.ggml_type.name in PLAIN

    def _plain_matrix(self, name: str) -> str:
        """A float matrix (rows, row_values) as float32; 16-bit sources stay 16-bit in the file."""
        g = self._graph
        part, info = self._find(name)
        values = plain(part.tensor_bytes(info), info.ggml_type.name, tuple(reversed(info.shape)), name)
        return g.constant(name, values)

    def _packed(self, name: str) -> tuple[BlockWeights, str, str]:
        weights = self._blocks(name)
        packed = self._graph.constant(name, weights.packed)
        return weights, packed, self._graph.constant(f"{name}.scales", weights.scales)

    def _embed(self, ids: str) -> str:
        g, name = self._graph, "token_embd.weight"
        if self._is_plain(name):
            self.resident_bytes += self._find(name)[1].nbytes
            rows = g.node("Gather", [self._plain_matrix(name), ids], axis=0)
            return g.node("Cast", [rows], to=_FLOAT)
        # Plain operators unpack the rows, so that a tied head can share the packed matrix.
        weights, packed, scales = self._packed(name)
        codes = g.node("Gather", [packed, ids], axis=0)
        if weights.bits == 4:
            low = g.node("BitwiseAnd", [codes, g.constant("const.nibble", np.array(15, np.uint8))])
            high = g.node("BitShift", [codes, g.constant("const.four", np.array(4, np.uint8))], direction="RIGHT")
            ends = [g.node("Unsqueeze", [half, self._ints("minus_one", -1)]) for half in (low, high)]
            paired = g.node("Concat", ends, axis=-1)
            codes = g.node("Reshape", [paired, self._ints("blocks", 0, 0, -1, BLOCK_VALUES)])
        zero = g.constant(f"const.zero{weights.bits}", np.array(weights.zero, np.float32))
        centred = g.node("Sub", [g.node("Cast", [codes], to=_FLOAT), zero])
        steps = g.node("Unsqueeze", [g.node("Gather", [scales, ids], axis=0), self._ints("minus_one", -1)])
        return g.node("Reshape", [g.node("Mul", [centred, steps]), self._ints("row", 0, 0, self._shape.embd)])

    def _linear(self, x: str, name: str, bias: str = "") -> str:
        """Multiply by a weight: x @ W.T + bias, W stored as (rows, row_values)."""
        g = self._graph
        if self._is_plain(name):
            self.resident_bytes += 4 * math.prod(self._find(name)[1].shape)  # held as float32, see Cast
            matrix = g.node("Transpose", [g.node("Cast", [self._plain_matrix(name)], to=_FLOAT)], perm=[1, 0])
            product = g.node("MatMul", [x, matrix])
        else:
            weights, packed, scales = self._packed(name)
            # plus a copy in the kernels' layout
            self.resident_bytes += 2 * (weights.packed.nbytes + weights.scales.nbytes)
            rows, per_row = weights.scales.shape
            product = g.node(
                "MatMulNBits",
                [x, packed, scales],
                domain=_MS,
                K=per_row * weights.block_values,
                N=rows,
                bits=weights.bits,
                block_size=weights.block_values,
                accuracy_level=self._accuracy,
            )
        if bias not in self._tensors:
            return product
        return g.node("Add", [product, g.constant(bias, self._floats(bias))])

    def _norm(self, x: str, weight: str) -> str:
        scale = self._graph.constant(weight, self._floats(weight))
        facts: dict[str, Any] = {"axis": -1, "epsilon": self._shape.epsilon, "stash_type": 1}
        return self._graph.node("SimplifiedLayerNormalization", [x, scale], **facts)

    def _add_norm(self, hidden: str, delta: str, weight: str) -> tuple[str, str]:
        """(norm(hidden + delta), hidden + delta); the first layer has no delta."""
        if not delta:
            return self._norm(hidden, weight), hidden
        scale = self._graph.constant(weight, self._floats(weight))
        outs = (f"{weight}.normed", "", "", f"{weight}.sum")
        outputs = self._graph.nodes(
            "SkipSimplifiedLayerNormalization",
            [hidden, delta, scale],
            outs,
            domain=_MS,
            epsilon=self._shape.epsilon,
        )
        return outputs[0], outputs[3]

    def _head_norm(self, x: str, weight: str, heads: int) -> str:
        """Normalize each head's query or key (Qwen3); other models pass through."""
        if weight not in self._tensors:
            return x
        g, dim = self._graph, self._shape.head_dim
        split = g.node("Reshape", [x, self._ints(f"heads{heads}", 0, 0, heads, dim)])
        return g.node("Reshape", [self._norm(split, weight), self._ints(f"flat{heads}", 0, 0, heads * dim)])

    def _attention(self, layer: int, x: str, shared: tuple[str, str, str, str]) -> str:
        g, s, at = self._graph, self._shape, f"blk.{layer}."
        q = self._linear(x, f"{at}attn_q.weight", f"{at}attn_q.bias")
        k = self._linear(x, f"{at}attn_k.weight", f"{at}attn_k.bias")
        v = self._linear(x, f"{at}attn_v.weight", f"{at}attn_v.bias")
        q = self._head_norm(q, f"{at}attn_q_norm.weight", s.heads)
        k = self._head_norm(k, f"{at}attn_k_norm.weight", s.kv_heads)
        before, after = ("batch", s.kv_heads, "past", s.head_dim), ("batch", s.kv_heads, "all_tokens", s.head_dim)
        past = [g.input(f"past_key_values.{layer}.{n}", "float32", before) for n in ("key", "value")]
        present = [g.output(f"present.{layer}.{n}", "float32", after) for n in ("key", "value")]
        mixed, *_ = g.nodes(
            "GroupQueryAttention",
            [q, k, v, *past, *shared],
            [f"{at}attention", *present],
            domain=_MS,
            num_heads=s.heads,
            kv_num_heads=s.kv_heads,
            scale=float(s.head_dim**-0.5),
            do_rotary=1,
            # GGUF stores Llama's queries and keys as neighbouring pairs, those of other models as halves.
            rotary_interleaved=int(s.architecture == "llama"),
        )
        return self._linear(mixed, f"{at}attn_output.weight", f"{at}attn_output.bias")

    def _feed_forward(self, layer: int, x: str) -> str:
        g, at = self._graph, f"blk.{layer}.ffn_"
        gate = self._linear(x, f"{at}gate.weight")
        active = g.node("Mul", [gate, g.node("Sigmoid", [gate])])
        wide = g.node("Mul", [active, self._linear(x, f"{at}up.weight")])
        return self._linear(wide, f"{at}down.weight")
