"""Facts of a GGUF header that decide memory, layer by layer, for any architecture."""

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from quantize.files.gguf_file import GgufFile, LazyArray, TensorInfo
from quantize.files.gguf_split import GgufModel
from quantize.ggml_types import GgmlType

# Tensors that are looked up by row and never multiplied, and one-dimensional or recurrent parameters.
NOT_MULTIPLIED = re.compile(
    r"(^token_embd|^token_types|^position_embd|per_layer_token_embd|conv1d|_norm\.|\.bias$)"
)
_BLOCK: Final = re.compile(r"^blk\.(\d{1,5})\.")
# Tensors that show that a layer has a state of fixed size, or a cache that grows with the context.
RECURRENT = ("ssm_", "shortconv", "time_mix", "kda")
CACHED = ("attn_k.", "attn_qkv.", "attn_kv_a_mqa.", "attn_kv.", "attn_k_b.")

# architecture: one full-attention layer in this many. Source: load_swa_pattern in llama.cpp's models/*.cpp.
SWA_EVERY = {
    "gemma2": 2, "gpt-oss": 2, "modern-bert": 3, "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone4": 4,
    "exaone-moe": 4, "laguna": 4, "llama4": 4, "mellum": 4, "muse-glimmer": 4, "olmo2": 4, "smallthinker": 4,
    "gemma3n": 5, "gemma3": 6, "gemma-embedding": 6, "plamo3": 8,
}  # fmt: skip
# In these the first layer of each group has full attention, in the others the last.
DENSE_FIRST = frozenset({"cohere2moe", "laguna", "modern-bert", "smallthinker"})
# These have windows only in the size with this many layers. Source: models/exaone4.cpp.
SWA_WITH_LAYERS = {"exaone4": 64}
# gemma3n caches only its first 20 layers; gemma4's header gives its number. Source: models/gemma3n.cpp.
CACHED_LAYERS = {"gemma3n": 20}
DEFAULT_FULL_ATTENTION_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4}
# Architectures whose table of embeddings per layer llama.cpp can read row by row from the file, and the smallest
# table for which that is done. Source: TENSOR_READ_LAZY in llama.cpp's models/*.cpp.
LAZY_ARCHITECTURES: Final = frozenset({"gemma4", "qwen4exp"})
LAZY_BYTES: Final = 1 << 30
TABLE: Final = "per_layer_token_embd.weight"
# Architectures whose full-attention layers also cache one key of an index. Source: llama-memory-hybrid-idx.cpp.
INDEXED_ARCHITECTURES: Final = frozenset({"qwen4exp"})
# Architectures whose layers cache a window and, for each few tokens, one row of the rest, for every sequence apart.
# Source: llama-kv-cache-dsv4.cpp.
COMPRESSED_ARCHITECTURES: Final = frozenset({"deepseek4"})
# Tokens per compressed row for which a layer has an index; its compressor sees two such groups at once.
INDEXED_RATIO: Final = 4
# Architectures whose own MTP heads llama.cpp runs, each tried here: GLM 4.5, GLM 4.7 Flash, DeepSeek V3, Qwen 3.5.
MTP_ARCHITECTURES: Final = frozenset({"glm4moe", "deepseek2", "qwen35", "qwen35moe"})
# Architectures whose recurrent states llama.cpp can roll back (llm_arch_supports_rs_rollback), each tried here.
ROLLBACK_ARCHITECTURES: Final = frozenset({"lfm2", "nemotron_h", "qwen35", "qwen35moe"})


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One block: values added to K and to V per token, and bytes of state per sequence.

    `index_values` are those of the index that chooses which tokens attention reads: at most `most_read` (0: all).
    `row_tokens`: a compressed layer caches one row for this many tokens beyond its window (0: none).
    """

    key_values: int = 0
    value_values: int = 0
    index_values: int = 0
    most_read: int = 0
    row_tokens: int = 0
    sliding: bool = False
    state_bytes: int = 0


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that decide memory. `tensors` are all of the file's, `skipped_bytes` those of trailing draft layers.

    `has_head`: these are one head for the token after the next one, of a kind that the runner can use.
    """

    architecture: str
    layers: tuple[Layer, ...]
    embedding: int
    heads: int
    attention: int
    feed_forward: int
    vocabulary: int
    context_train: int
    sliding_window: int
    experts: int
    experts_used: int
    file_bytes: int
    tensors: tuple[TensorInfo, ...]
    skipped_bytes: int = 0
    has_head: bool = False
    tied: bool = False

    @property
    def lazy_table(self) -> TensorInfo | None:
        """The table that is better read row by row from the file than held in memory."""
        if self.architecture not in LAZY_ARCHITECTURES:
            return None
        return next((t for t in self.tensors if t.name == TABLE and t.nbytes >= LAZY_BYTES), None)

    @property
    def compressed(self) -> bool:
        """Whether each sequence has a cache of its own, most of it compressed."""
        return self.architecture in COMPRESSED_ARCHITECTURES

    def rows_attended(self, layer: Layer, depth: float) -> float:
        """Cached rows that the layer's attention computes with for a token after `depth` others."""
        near = min(depth, self.sliding_window) if layer.sliding and self.sliding_window else depth
        most = layer.most_read or depth
        return near + min(depth / layer.row_tokens, most) if layer.row_tokens else min(near, most)

    @property
    def rolls_back(self) -> bool:
        """Whether its recurrent states can be rolled back by some tokens."""
        return self.architecture in ROLLBACK_ARCHITECTURES and self.sliding_window == 0

    @property
    def recurrent(self) -> bool:
        """Whether some layer has a state of fixed size for each sequence."""
        return any(layer.state_bytes for layer in self.layers)


def model_shape(model: GgufModel) -> ModelShape:
    """The shape of a model from its checked header. Unknown architectures use llama's rules for missing values."""
    return shape_of(model.parts[0], [tensor for _, tensor in model.tensors()], model.file_bytes)


@lru_cache(1 << 14)  # a placement reads the names of all weights hundreds of times
def block_of(name: str) -> int | None:
    """Number of the block that a weight belongs to; None for weights outside blocks."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def is_repacked(tensor: TensorInfo, isa: frozenset[str], *, as_head: bool = False) -> bool:
    """Whether the CPU backend stores its own copy of a weight. `as_head`: token_embd used as output head."""
    if NOT_MULTIPLIED.search(tensor.name) and not as_head:
        return False
    return _has_packed_form(tensor.shape, tensor.ggml_type, isa)


@lru_cache(1024)  # a model has hundreds of weights of a few shapes, and a placement asks hundreds of times
def _has_packed_form(shape: tuple[int, ...], ggml_type: GgmlType, isa: frozenset[str]) -> bool:
    dims = [n for n in shape if n > 1]
    if len(dims) not in {2, 3}:
        return False
    if "amx_int8" in isa and ggml_type.traits.amx and len(dims) == 2:  # noqa: PLR2004 - a plain matrix
        return True
    return any(shape[1] % multiple == 0 and needs <= isa for multiple, needs in ggml_type.traits.repack)


def shape_of(head: GgufFile, tensors: Sequence[TensorInfo], file_bytes: int) -> ModelShape:
    """The shape from a header alone, before the file is downloaded."""
    blocks: defaultdict[int, list[TensorInfo]] = defaultdict(list)
    for tensor in tensors:
        block = block_of(tensor.name)
        if block is not None:
            blocks[block].append(tensor)
    total = head.arch_int("block_count") or 0
    trunk = max(0, total - (head.arch_int("nextn_predict_layers") or 0))
    names = {tensor.name for tensor in tensors}
    window = head.arch_int("attention.sliding_window") or 0
    layers = tuple(_layer(head, i, blocks.get(i, []), window, trunk) for i in range(min(trunk, 4096)))
    skipped = [t for i, block in blocks.items() if i >= trunk > 0 for t in block]
    return ModelShape(
        architecture=head.architecture,
        layers=layers,
        embedding=head.arch_int("embedding_length") or 0,
        heads=head.arch_int("attention.head_count") or 1,
        attention=max((_query_width(head, i) for i in range(min(trunk, 4096))), default=0),
        feed_forward=head.arch_int("feed_forward_length") or head.arch_int("expert_feed_forward_length") or 0,
        vocabulary=_vocabulary(head, tensors),
        context_train=head.arch_int("context_length") or 0,
        sliding_window=window,
        experts=head.arch_int("expert_count") or 0,
        experts_used=head.arch_int("expert_used_count") or 0,
        file_bytes=file_bytes,
        tensors=tuple(tensors),
        skipped_bytes=sum(t.nbytes for t in skipped),
        has_head=_has_head(head, names, trunk, total),
        tied="output.weight" not in names,
    )


def _has_head(head: GgufFile, names: set[str], trunk: int, total: int) -> bool:
    """Whether the head passes the assertions of llama.cpp, which would otherwise end the process."""
    required = [f"blk.{trunk}.nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm")]
    if head.architecture not in MTP_ARCHITECTURES or total - trunk != 1 or not names.issuperset(required):
        return False
    if head.architecture != "deepseek2":
        return True
    latent = ("attention.key_length_mla", "attention.q_lora_rank")
    return all(head.arch_int(key) for key in latent) and not head.arch_value("attention.temperature_scale")


def _vocabulary(head: GgufFile, tensors: Sequence[TensorInfo]) -> int:
    embedding = next((t for t in tensors if t.name == "token_embd.weight"), None)
    if embedding is not None and len(embedding.shape) > 1:
        return embedding.shape[1]
    return head.arch_int("vocab_size") or 0


def _per_layer(head: GgufFile, key: str, layer: int) -> int | None:
    """A value that is given once or for each layer."""
    value = head.arch_value(key)
    if isinstance(value, LazyArray):
        return int(value.numbers()[layer]) if layer < value.count else None
    if isinstance(value, tuple):
        value = value[layer] if layer < len(value) else None
    return int(value) if isinstance(value, int) else None


def _layer(head: GgufFile, index: int, tensors: list[TensorInfo], window: int, total: int) -> Layer:
    if head.architecture in COMPRESSED_ARCHITECTURES:
        return _compressed_layer(head, index)
    names = [t.name.partition(".")[2].partition(".")[2] for t in tensors]
    recurrent = any(name.startswith(RECURRENT) for name in names)
    cached = any(name.startswith(CACHED) for name in names) or (not names and not recurrent)
    sliding = bool(window) and _is_sliding(head, index)
    keys, values = _widths(head, index, sliding=sliding) if cached and _has_cache(head, index, total) else (0, 0)
    indexed = bool(keys) and head.architecture in INDEXED_ARCHITECTURES
    return Layer(
        key_values=keys,
        value_values=values,
        index_values=(head.arch_int("attention.indexer.key_length") or 0) if indexed else 0,
        most_read=(head.arch_int("attention.indexer.top_k") or 0) if indexed else 0,
        sliding=sliding,
        state_bytes=_state_bytes(head) if recurrent else 0,
    )


def _compressed_layer(head: GgufFile, index: int) -> Layer:
    """A layer whose K is also its V. The states of its compressors are rows of 32 bits with their scores."""
    keys, tokens = (
        head.arch_int("attention.key_length") or 0,
        _per_layer(head, "attention.compress_ratios", index) or 0,
    )
    indexed = tokens == INDEXED_RATIO
    index_values = (head.arch_int("attention.indexer.key_length") or 0) if indexed else 0
    rows = 2 * tokens * 2 * (keys + index_values) if indexed else tokens * keys
    return Layer(
        key_values=keys,
        index_values=index_values,
        most_read=(head.arch_int("attention.indexer.top_k") or 0) if indexed else 0,
        row_tokens=tokens,
        sliding=True,
        state_bytes=4 * 2 * rows,
    )


def _has_cache(head: GgufFile, index: int, total: int) -> bool:
    if isinstance(head.arch_value("attention.recurrent_layers"), tuple | LazyArray):
        return not _per_layer(head, "attention.recurrent_layers", index)
    shared = head.arch_int("attention.shared_kv_layers") or 0
    limit = min(CACHED_LAYERS.get(head.architecture, total), total - shared)
    interval = head.arch_int("full_attention_interval") or DEFAULT_FULL_ATTENTION_INTERVAL.get(head.architecture)
    return index < limit and (not interval or (index + 1) % interval == 0)


def _is_sliding(head: GgufFile, index: int) -> bool:
    layers = head.arch_int("block_count") or 0
    if SWA_WITH_LAYERS.get(head.architecture, layers) != layers:
        return False
    pattern = head.arch_value("attention.sliding_window_pattern")
    if isinstance(pattern, tuple | LazyArray):
        return bool(_per_layer(head, "attention.sliding_window_pattern", index))
    every = pattern if isinstance(pattern, int) and pattern > 0 else SWA_EVERY.get(head.architecture, 0)
    if not every:
        return False
    return index % every != 0 if head.architecture in DENSE_FIRST else index % every < every - 1


def _widths(head: GgufFile, index: int, *, sliding: bool) -> tuple[int, int]:
    """Values per token in K and V. Compressed attention (MLA) stores one latent row as K and no V."""
    heads = _per_layer(head, "attention.head_count", index) or head.arch_int("attention.head_count") or 1
    kv_heads = _per_layer(head, "attention.head_count_kv", index)
    kv_heads = heads if kv_heads is None else kv_heads
    default = (head.arch_int("embedding_length") or 0) // max(1, head.arch_int("attention.head_count") or 1)
    suffix = "_swa" if sliding else ""
    key = head.arch_int(f"attention.key_length{suffix}") or head.arch_int("attention.key_length") or default
    value = head.arch_int(f"attention.value_length{suffix}") or head.arch_int("attention.value_length") or default
    if head.arch_int("attention.kv_lora_rank") and head.arch_int("attention.key_length_mla"):
        return key * kv_heads, 0
    return key * kv_heads, value * kv_heads


def _query_width(head: GgufFile, index: int) -> int:
    """Values of all query heads of a layer together."""
    heads = _per_layer(head, "attention.head_count", index) or 0
    return heads * (head.arch_int("attention.key_length_mla") or head.arch_int("attention.key_length") or 0)


def _state_bytes(head: GgufFile) -> int:
    """State of one recurrent layer for one sequence, float32. Source: llama-hparams.cpp, n_embd_r and n_embd_s."""
    width = head.arch_int("embedding_length") or 0
    wkv = head.arch_int("wkv.head_size") or 0
    if wkv:
        shift = head.arch_int("token_shift_count") or 2
        return 4 * width * (shift + wkv)
    conv = head.arch_int("shortconv.l_cache") or 0
    if conv:
        return 4 * width * (conv - 1)
    kernel = head.arch_int("ssm.conv_kernel") or 0
    heads, kda = head.arch_int("attention.head_count") or 0, head.arch_int("kda.head_dim") or 0
    if kda:
        return 4 * (3 * (kernel - 1 if kernel else 3) * heads * kda + kda * kda * heads)
    inner, state = head.arch_int("ssm.inner_size") or 0, head.arch_int("ssm.state_size") or 0
    groups = head.arch_int("ssm.group_count") or 0
    return 4 * (max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner)
