"""Converts a BERT model in GGUF to an encoder folder in the format of sentence-transformers' exports."""

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import BadFile, UnsupportedModel
from quantize.files.gguf_split import GgufModel
from quantize.onnx.graph import GraphWriter
from quantize.onnx.tokenizer import texts, token_types
from quantize.onnx.weights import dequantized

ARCHITECTURE: Final = "bert"
MEAN: Final = 1  # Source: llama.h, enum llama_pooling_type
_CLS: Final = 2
_RANK: Final = 4
# Subtracted from the scores of padding: the probability becomes zero, in 16 bits too.
_MASKED: Final = 100.0
_FLOAT: Final = 1  # Source: onnx.proto, TensorProto.DataType
_WORD_BEGINS: Final = "\u2581"
# Source: llama.h, enum llama_token_type.
_NORMAL: Final = 1

Floats = npt.NDArray[np.float32]


class EncoderShape(msgspec.Struct, frozen=True):
    """Dimensions from the header; `pooling` as in llama.h."""

    layers: int
    embd: int
    heads: int
    context: int
    epsilon: float
    pooling: int

    @property
    def ranks(self) -> bool:
        """Whether it is a reranker, which scores a document for a query."""
        return self.pooling == _RANK


def encoder_shape(model: GgufModel) -> EncoderShape:
    """Dimensions from the header. Raises: UnsupportedModel: one is missing, or unsupported pooling."""
    head = model.parts[0]

    def whole(key: str) -> int:
        value = head.arch_int(key)
        if value is None or value <= 0:
            raise UnsupportedModel(head.name, f"the file does not say {head.architecture}.{key}")
        return value

    pooling = head.arch_int("pooling_type") or MEAN
    if pooling not in {MEAN, _CLS, _RANK}:
        raise UnsupportedModel(head.name, f"its pooling ({pooling}) cannot be converted to ONNX")
    epsilon = head.arch_value("attention.layer_norm_epsilon", 1e-12)
    return EncoderShape(
        layers=whole("block_count"),
        embd=whole("embedding_length"),
        heads=whole("attention.head_count"),
        context=whole("context_length"),
        epsilon=float(epsilon) if isinstance(epsilon, int | float) else 1e-12,
        pooling=pooling,
    )


class EncoderTensors:
    """The weights of an encoder's file, dequantized by name."""

    def __init__(self, model: GgufModel) -> None:
        self._tensors = {info.name: (part, info) for part, info in model.tensors()}
        self._name = model.parts[0].name

    def values(self, name: str) -> Floats:
        """A tensor, rows first. Raises: BadFile: it is missing, or not finite."""
        if name not in self._tensors:
            raise BadFile(self._name, f"the tensor {name} is missing")
        part, info = self._tensors[name]
        shape = tuple(reversed(info.shape))
        values = dequantized(part.tensor_bytes(info), info.ggml_type.name, shape[-1]).reshape(shape)
        if not np.isfinite(values).all():
            raise BadFile(self._name, f"{name} contains infinite values or NaN")
        return values


class EncoderGraph:
    """Builds the graph with float32 weights: half of an encoder is its vocabulary, and texts are short."""

    def __init__(
        self,
        model: GgufModel,
        shape: EncoderShape,
        graph: GraphWriter,
        tokens: int | None = None,
        *,
        contrib: bool = True,
    ) -> None:
        """Create a builder.

        With `tokens`, the graph takes one text of exactly that many tokens, in operators that NPU compilers
        support. None leaves the sizes open. Without `contrib` only standard ONNX operators are used; open sizes
        need `contrib`.
        """
        self._contrib = contrib
        self._tokens = tokens
        self._values = EncoderTensors(model).values
        self._shape = shape
        self._graph = graph
        self.n_params = 0

    def build(self) -> None:
        """Write all nodes, from token ids to rows or to a score. Raises: BadFile: a tensor is missing."""
        g, shape = self._graph, self._shape
        dims, whole = (("batch", "tokens"), "int64") if self._tokens is None else ((1, self._tokens), "int32")
        ids, mask, kinds = (g.input(n, whole, dims) for n in ("input_ids", "attention_mask", "token_type_ids"))
        x = g.node("Gather", [self._constant("token_embd.weight"), ids])
        x = g.node("Add", [x, g.node("Gather", [self._constant("token_types.weight"), kinds])])
        x = g.node("Add", [x, self._positions(ids)])
        x = self._norm(x, "token_embd_norm")
        valid = g.node("Cast", [mask], to=6 if self._tokens is None else _FLOAT)
        if self._tokens is not None:
            masked = g.node("Sub", [valid, g.constant("const.one", np.array(1, np.float32))])
            far = g.node("Mul", [masked, g.constant("const.far", np.array(_MASKED, np.float32))])
            valid = g.node("Reshape", [far, g.constant("const.mask", np.array([1, 1, 1, self._tokens], np.int64))])
        for layer in range(shape.layers):
            at = f"blk.{layer}."
            q, k, v = (self._linear(x, f"{at}attn_{n}") for n in "qkv")
            mixed = self._mixed(q, k, v, valid)
            x = self._norm(g.node("Add", [x, self._linear(mixed, f"{at}attn_output")]), f"{at}attn_output_norm")
            wide = self._gelu(self._linear(x, f"{at}ffn_up"))
            x = self._norm(g.node("Add", [x, self._linear(wide, f"{at}ffn_down")]), f"{at}layer_output_norm")
        if not shape.ranks:
            out = g.output("last_hidden_state", "float32", (*dims, shape.embd))
            g.node("Identity", [x], out=out)
            return
        first = g.node("Gather", [x, g.constant("first", np.array(0, np.int64))], axis=1)
        score = self._linear(g.node("Tanh", [self._linear(first, "cls")]), "cls.output")
        g.node("Identity", [score], out=g.output("logits", "float32", (dims[0], 1)))

    def _gelu(self, x: str) -> str:
        g = self._graph
        if self._contrib:
            return g.node("Gelu", [x], domain="com.microsoft")
        root, half, one = (
            g.constant(f"const.gelu{n}", np.array(n, np.float32)) for n in (float(np.sqrt(0.5)), 0.5, 1.0)
        )
        share = g.node("Add", [g.node("Erf", [g.node("Mul", [x, root])]), one])
        return g.node("Mul", [g.node("Mul", [x, share]), half])

    def _positions(self, ids: str) -> str:
        """The rows of the first positions, one per id."""
        g = self._graph
        if self._tokens is not None:
            rows = self._values("position_embd.weight")[None, : self._tokens]
            self.n_params += rows.size
            return g.constant("position_embd.weight", np.ascontiguousarray(rows))
        one, zero = (g.constant(n, np.array([v], np.int64)) for n, v in (("one", 1), ("zero", 0)))
        length = g.node("Gather", [g.node("Shape", [ids]), one])
        return g.node("Slice", [self._constant("position_embd.weight"), zero, length, zero])

    def _mixed(self, q: str, k: str, v: str, valid: str) -> str:
        g, s = self._graph, self._shape
        if self._tokens is None:
            facts: dict[str, Any] = {"num_heads": s.heads}
            return g.node("MultiHeadAttention", [q, k, v, "", valid], domain="com.microsoft", **facts)
        split = g.constant("const.heads", np.array([1, self._tokens, s.heads, s.embd // s.heads], np.int64))
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        q, k, v = (
            g.node("Transpose", [g.node("Reshape", [x, split])], perm=list(order))
            for x, order in zip((q, k, v), orders, strict=True)
        )
        scale = g.constant("const.scale", np.array((s.embd // s.heads) ** -0.5, np.float32))
        scores = g.node("Add", [g.node("MatMul", [g.node("Mul", [q, scale]), k]), valid])
        mixed = g.node(
            "Transpose", [g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])], perm=[0, 2, 1, 3]
        )
        flat = g.constant("const.flat", np.array([1, self._tokens, s.embd], np.int64))
        return g.node("Reshape", [mixed, flat])

    def _norm(self, x: str, name: str) -> str:
        weights = [x, self._constant(f"{name}.weight"), self._constant(f"{name}.bias")]
        return self._graph.node("LayerNormalization", weights, axis=-1, epsilon=self._shape.epsilon)

    def _linear(self, x: str, name: str) -> str:
        product = self._graph.node("MatMul", [x, self._constant(f"{name}.weight", transposed=True)])
        return self._graph.node("Add", [product, self._constant(f"{name}.bias")])

    def _constant(self, name: str, *, transposed: bool = False) -> str:
        values = self._values(name)
        self.n_params += values.size
        return self._graph.constant(name, np.ascontiguousarray(values.T) if transposed else values)


def encoder_config(shape: EncoderShape, vocab: int) -> dict[str, Any]:
    """The content of `config.json`."""
    head = "BertForSequenceClassification" if shape.ranks else "BertModel"
    return {
        "model_type": ARCHITECTURE,
        "architectures": [head],
        "hidden_size": shape.embd,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "vocab_size": vocab,
        "layer_norm_eps": shape.epsilon,
    }


def pooling_config(shape: EncoderShape) -> dict[str, Any]:
    """The content of `1_Pooling/config.json`."""
    cls = shape.pooling == _CLS
    return {
        "word_embedding_dimension": shape.embd,
        "pooling_mode_cls_token": cls,
        "pooling_mode_mean_tokens": not cls,
    }


def wordpiece_json(model: GgufModel) -> dict[str, Any]:
    """The content of `tokenizer.json`: WordPiece in Hugging Face's format.

    Raises: UnsupportedModel: another vocabulary.
    """
    head = model.parts[0]
    if head.metadata.get("tokenizer.ggml.model") != "bert":
        raise UnsupportedModel(head.name, "its vocabulary is no WordPiece")
    listed = texts(head, "tokenizer.ggml.tokens")
    types = token_types(head, len(listed)).tolist()
    spelled = [_spelled(text, kind) for text, kind in zip(listed, types, strict=True)]

    def named(key: str, default: int) -> str:
        value = head.metadata.get(f"tokenizer.ggml.{key}_token_id", default)
        return spelled[value] if isinstance(value, int) and 0 <= value < len(spelled) else spelled[default]

    cls, sep, unknown = named("bos", 0), named("seperator", 0), named("unknown", 0)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first, end = {"SpecialToken": {"id": cls, "type_id": 0}}, {"SpecialToken": {"id": sep, "type_id": 0}}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    last = {"SpecialToken": {"id": sep, "type_id": 1}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **flags}
            for i, (text, kind) in enumerate(zip(spelled, types, strict=True))
            if kind != _NORMAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, a, end],
            "pair": [first, a, end, b, last],
            "special_tokens": {t: {"id": t, "ids": [spelled.index(t)], "tokens": [t]} for t in (cls, sep)},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: i for i, text in enumerate(spelled)},
        },
    }


def _spelled(text: str, kind: int) -> str:
    if kind != _NORMAL:
        return text
    return text.removeprefix(_WORD_BEGINS) if text.startswith(_WORD_BEGINS) else f"##{text}"
