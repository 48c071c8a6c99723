"""Choices for the CPU: attention, Tessera's own kernels, repacked weights, and experts streamed from disk."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from devices.disk_speed import disk_of, read_gbs
from engine.core.expert_stats import ExpertUse, folder_of, use_store
from engine.message_catalog.reasons import Reason, because
from engine.placement.history import AttentionSpeed, Heads, ModelUsage
from engine.placement.resources import Resources
from engine.placement.shape import NOT_MULTIPLIED, ModelShape, block_of, is_repacked
from engine.placement.types import Streaming
from engine.runner.expert_tensors import held_bytes, least_bytes, reader_bytes, stacks
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import TILED, GgmlType

# A rule measured on one CPU, used until this machine has its own measurement. Plain attention is a matrix product
# over all cells. On x86, one row takes 1.15 of the fused time at 50 tokens, 0.9 at 400, 0.7 at 2,000 and 0.46 at
# 6,000; a prompt of 6,000 tokens takes 0.7. Measured: the log, engine. Plain attention also reads the cells of
# other requests, which the fused one skips. So a model that may serve more than this many requests at once gets it
# only if its use shows long texts and hardly ever two requests at once. One request after 1,500 tokens decodes 1.3
# times as fast, four after 1,000 0.96, eight after 100 0.92. Measured: log-archive.md, engine.
MOST_PARALLEL: Final = 2
LONG_TOKENS: Final = 512
HARDLY_TWO: Final = 1.5
# Use statistics of fewer tokens than this are ignored.
ENOUGH_TOKENS: Final = 1000
# CPUs prefill as fast with ubatches of this many tokens; experts need more rows to be efficient.
DENSE_UBATCH, EXPERT_UBATCH = 128, 256
# The scores of one ubatch use memory: 12 KiB per cell with 16 heads, 400 MB for this many cells.
MOST_CELLS: Final = 32768
FLOAT_CACHES: Final = ("f16", "f32", "bf16")
# Instruction sets with which plain attention is faster until it is measured. With SVE llama.cpp's tiles of fused
# attention are scalar: without them a prompt of 512 tokens is 1.55 times (Neoverse V1) and 1.99 times (V2) as fast.
# Source: adr/0011; llama.cpp, issue 27086.
PLAIN_ISA: Final = (frozenset({"avx2"}), frozenset({"sve", "i8mm"}))
# Measured here, plain attention must take at most this share of the fused time, because its scores use memory.
WORTHWHILE: Final = 0.95
# Assumed text length of a model whose use is not known yet.
FIRST_CHATS_TOKENS: Final = 512


def plain_attention(
    settings: LoadSettings,
    shape: ModelShape,
    isa: frozenset[str],
    use: ModelUsage | None = None,
    measured: AttentionSpeed | None = None,
) -> LoadSettings | None:
    """`settings` without fused attention, or None if the user chose or it would not be faster.

    `isa` are the CPU's instruction sets; `use` is how the model was used so far; `measured` is the cost of both
    kinds of attention here for heads like these, which beats the rule by instruction sets.
    """
    if settings.flash_attn != "auto" or settings.embeddings or ATTENTION in settings.tiles:
        return None
    if not (pays(measured, use) if measured else any(isa >= each for each in PLAIN_ISA)):
        return None
    if settings.type_v not in FLOAT_CACHES:
        return None
    if settings.n_parallel > MOST_PARALLEL and not answers_long_chats(use):
        return None
    if max(settings.kv_cells, settings.n_ctx) > MOST_CELLS:
        return None
    return with_plain(settings, experts=shape.experts > 0)


def with_plain(settings: LoadSettings, *, experts: bool) -> LoadSettings:
    """`settings` with plain attention and the ubatch that suits it."""
    n_ubatch = min(EXPERT_UBATCH if experts else DENSE_UBATCH, settings.n_ubatch)
    return msgspec.structs.replace(settings, flash_attn="off", n_ubatch=n_ubatch)


def pays(measured: AttentionSpeed, use: ModelUsage | None) -> bool:
    """Whether plain attention is faster here for texts as long as this model's."""
    return measured.nearest(usual_tokens(use)).plain_to_fused <= WORTHWHILE


def why_measured(settings: LoadSettings, measured: AttentionSpeed | None, use: ModelUsage | None) -> Reason | None:
    """The reason from this machine's measurement of the attention that `settings` use."""
    if measured is None or ATTENTION in settings.tiles:
        return None
    point = measured.nearest(usual_tokens(use))
    fused = settings.flash_attn != "off" and pays(measured, use)
    kind = "attention_stays_fused" if fused else "attention_measured"
    return because(kind, tokens=point.length, plain_to_fused=point.plain_to_fused)


def plain_attention_reason(settings: LoadSettings) -> Reason:
    """Why `settings` use plain attention if nothing was measured."""
    return because("plain_attention" if settings.n_parallel <= MOST_PARALLEL else "plain_attention_by_use")


def usual_tokens(use: ModelUsage | None) -> float:
    """Usual length of this model's texts, if its use is known."""
    return use.depth if use is not None and use.tokens >= ENOUGH_TOKENS else FIRST_CHATS_TOKENS


def heads_of(shape: ModelShape) -> Heads | None:
    """Head geometry of most layers with a KV cache; None if no layer has one or they share latents."""
    cached = Counter((x.key_values, x.value_values) for x in shape.layers if x.key_values)
    queries = shape.attention or shape.embedding
    if not cached or not shape.heads or queries % shape.heads:
        return None
    width = queries // shape.heads
    keys, values = cached.most_common(1)[0][0]
    if not width or keys != values or keys % width or shape.heads % (keys // width):
        return None
    return Heads(shape.heads, keys // width, width)


def head_widths(shape: ModelShape) -> frozenset[int] | None:
    """Head widths of the layers with a cache; None if they share latents or the header does not say."""
    width = shape.attention // shape.heads if shape.heads and shape.attention % shape.heads == 0 else 0
    width = width or (shape.embedding // shape.heads if shape.heads else 0)
    cached = {(layer.key_values, layer.value_values) for layer in shape.layers if layer.key_values}
    if not width or not cached or any(keys != values or keys % width for keys, values in cached):
        return None
    # Layers of another width, such as the sliding ones of Gemma 4, have other rows for the same heads.
    return frozenset({width}) if len(cached) == 1 else None


def answers_long_chats(use: ModelUsage | None) -> bool:
    """Whether its use shows long texts and one request at a time."""
    if use is None or use.tokens < ENOUGH_TOKENS:
        return False
    return use.depth >= LONG_TOKENS and use.at_once <= HARDLY_TWO


# llama.cpp multiplies Q4_1 and Q5_1 row by row: Tessera's kernels take 0.21 to 0.22 of the prompt time for these;
# 0.39 and 0.5 where llama.cpp has its own tiles, with fewer operations per byte; 0.56 and 0.64 for repacked types
# (Q4_0, Q4_K); 0.27 to 0.37 for mixtures, whose experts llama.cpp multiplies row by row. Measured: the log, "tiles
# for prompts", "rewritten weights by our kernels"; adr/0025. Every product then is a separate step, after which
# threads synchronize: too expensive for a small share of the weights.
LEAST_SHARE: Final = 0.1
_MATRIX: Final = 2
# Measured: log-archive.md, "attention of our own".
ATTENTION_ISA: Final = frozenset({"avx2", "fma", "f16c"})
# Head values per step of the kernel's vectors. Source: engine/kernels/attend.cpp, `is_read`.
HEAD_STEP: Final = 16
# Everything that has its own kernels.
TILE_KERNELS: Final = (*TILED, ATTENTION)


def prompt_tiles(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` with Tessera's kernels for the types they speed up, or None if the user chose or there are none.

    `isa` are the CPU's instruction sets.
    """
    if settings.engine_args.tiles is not None or "amx_int8" in isa:
        return None
    weights = [tensor for tensor in shape.tensors if _is_weight(tensor)]
    values: dict[GgmlType, int] = {}
    for tensor in weights:
        traits = tensor.ggml_type.traits
        reads = traits.tiles_of_copy == (settings.repack and is_repacked(tensor, isa))
        multiplied = len(tensor.shape) == _MATRIX or "_exps" in tensor.name
        if traits.tiles and traits.tiles <= isa and multiplied and reads:
            values[tensor.ggml_type] = values.get(tensor.ggml_type, 0) + tensor.num_values
    if not values or sum(values.values()) < LEAST_SHARE * sum(tensor.num_values for tensor in weights):
        return None
    return msgspec.structs.replace(settings, tiles=tuple(name for name in TILED if GgmlType[name] in values))


def tile_attention(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` with attention by Tessera's kernels, or None if the user chose or they do not support it."""
    if settings.engine_args.tiles is not None or settings.flash_attn == "off" or not isa >= ATTENTION_ISA:
        return None
    heads = heads_of(shape)
    if heads is not None and heads.width % HEAD_STEP:
        return None
    return msgspec.structs.replace(settings, tiles=(*settings.tiles, ATTENTION))


def cpu_kernel_reasons(settings: LoadSettings) -> list[Reason]:
    """Reasons: what Tessera's kernels are expected to save."""
    types = tuple(name for name in settings.tiles if name != ATTENTION)
    kernels = [because("own_prompt_kernels", types=types)] if types else []
    return [*kernels, because("own_attention_kernels")] if ATTENTION in settings.tiles else kernels


def _is_weight(tensor: TensorInfo) -> bool:
    dims = [n for n in tensor.shape if n > 1]
    is_in_block = block_of(tensor.name) is not None
    return is_in_block and len(dims) >= _MATRIX and not NOT_MULTIPLIED.search(tensor.name)


# llama.cpp repacks some types for kernels that take eight rows of a weight at once. It also has kernels that
# multiply tiles of the file's own blocks, which it uses only for weights that were not repacked. For 4 bits (K) and
# VNNI these take 0.68 to 0.73 of the time for 64 to 512 rows of a prompt; without VNNI 1.25. Measured: the log,
# engine. They are slower for a generated token, which is one row: a thread reads this many GB/s of the file's
# weights, and 16 of the copy. That costs nothing if memory delivers less than this to all threads together, and
# half as much time again if it delivers more. Measured: log-archive.md, "weights as the file has them, again".
THREAD_GBS: Final = 12.5
# Share of a CPU's nominal bandwidth. Usual for two channels; Strix Halo's CPU reaches less.
MEMORY_PART: Final = 0.75


def file_weights(
    settings: LoadSettings, shape: ModelShape, isa: frozenset[str], bandwidth_gbs: float
) -> LoadSettings | None:
    """`settings` without repacked weights, or None if the user chose or it would not be faster.

    `isa` are the CPU's instruction sets. Experts keep their copies: each sees few rows of a prompt. So do all
    weights if there are too few threads to be limited by memory.
    """
    if settings.n_threads * THREAD_GBS < MEMORY_PART * bandwidth_gbs:
        return None
    if not settings.repack or settings.engine_args.repack is not None or shape.experts:
        return None
    if "amx_int8" in isa:
        return None
    rewritten = [tensor for tensor in shape.tensors if is_repacked(tensor, isa)]
    tiled = sum(tensor.num_values for tensor in rewritten if _is_tiled(tensor, isa))
    if 2 * tiled <= sum(tensor.num_values for tensor in rewritten):
        return None
    return msgspec.structs.replace(settings, repack=False)


def _is_tiled(tensor: TensorInfo, isa: frozenset[str]) -> bool:
    needs = tensor.ggml_type.traits.tiled
    return bool(needs) and needs <= isa


GIB: Final = 1 << 30
# Assumed until a disk is measured: a SATA SSD.
UNKNOWN_DISK_GBS: Final = 0.5
# Cost per token of reading each layer's routing. Measured: log-archive.md, mixtures.
LAYER_S: Final = 0.0003
# Share of the remaining memory for experts; the rest is for everything else that reads the file.
CACHED_FRACTION: Final = 15 / 16
# Skew of routing if there are no statistics: the hit rate is the cached fraction to this power. Source:
# OLMoE-1B-7B over 50,000 tokens (colibri, issue 864): 6, 12.5, 25 and 50 % of the experts got 21, 35, 52 and 75 %
# of the requests. Larger mixtures are reported to be more skewed.
SKEW: Final = 0.5


def expert_layers(shape: ModelShape) -> Mapping[int, tuple[TensorInfo, ...]]:
    """Expert tensors that can be streamed, by layer; empty if the routing is not supported."""
    trunk = len(shape.layers)
    return {n: tensors for n, tensors in stacks(shape.tensors, shape.experts).items() if n < trunk}


def whole_bytes(shape: ModelShape) -> int:
    """Bytes that all streamed experts would take."""
    return sum(shape.experts * held_bytes(layer, shape.experts) for layer in expert_layers(shape).values())


def streamed_settings(shape: ModelShape, settings: LoadSettings) -> LoadSettings | None:
    """`settings` with the minimum memory for experts; None if they cannot be streamed or the user disabled it."""
    args = settings.engine_args
    refused = (
        args.use_mmap is False
        or args.use_mlock
        or settings.use_mlock
        or args.repack
        or args.tiles
        or args.check_tensors
    )
    layers = expert_layers(shape)
    if refused or not layers or not shape.experts_used or settings.embeddings or not settings.use_mmap:
        return None
    return msgspec.structs.replace(
        settings,
        expert_bytes=least_bytes(layers, shape.experts),
        repack=False,
        tiles=tuple(name for name in settings.tiles if name == ATTENTION),
        mtp=False,
        kv_cells=0,
    )


def with_spare(shape: ModelShape, settings: LoadSettings, spare_bytes: int) -> LoadSettings:
    """`settings` with the spare memory added to the minimum for experts."""
    expert_bytes = settings.expert_bytes + int(max(0, spare_bytes) * CACHED_FRACTION)
    layers = expert_layers(shape)
    all_of_them = whole_bytes(shape) + least_bytes(layers, shape.experts)
    return msgspec.structs.replace(settings, expert_bytes=min(expert_bytes, all_of_them))


def disk_gbs(resources: Resources, shape: ModelShape, path: str, owner: str) -> float | None:
    """Read speed of the model's disk, or of the downloads' disk. Measured once, if the experts may not fit."""
    if not shape.experts or resources.models is None:
        return None
    if shape.file_bytes < resources.ledger.available("cpu", exclude=owner):
        return None
    source = Path(path) if Path(path).is_file() else resources.models
    disk = disk_of(source)
    measured = resources.history.disk_gbs(disk)
    if measured is None and disk is not None and (measured := read_gbs(source)) is not None:
        resources.history.record_disk(disk, round(measured, 3))
    return measured


def recorded_use(settings: LoadSettings) -> ExpertUse:
    """Expert statistics recorded by earlier loads of this file."""
    folder = folder_of(settings.cache_dir)
    return use_store(folder, Path(settings.path)).get() if folder else ExpertUse()


def forecast(
    shape: ModelShape, expert_bytes: int, use: ExpertUse, gbs: float, compute_s: float, *, measured: bool
) -> Streaming:
    """Cost per token with `expert_bytes` of memory for experts and a disk of `gbs` GB/s.

    `compute_s` is the time per token with all experts in memory. The worst case is routing without any skew.
    """
    layers = expert_layers(shape)
    each_layer = sum(held_bytes(layer, shape.experts) for layer in layers.values())
    whole = shape.experts * each_layer
    cached_bytes = min(whole, expert_bytes - reader_bytes(layers, shape.experts))
    part = cached_bytes / whole
    each_token = shape.experts_used * each_layer
    hit = use.hit_rate(part) if use.is_meaningful else part**SKEW

    def speed(rate: float) -> float:
        seconds = compute_s + LAYER_S * len(layers) + (1 - rate) * each_token / 1e9 / gbs
        return 1 / seconds

    return Streaming(
        expert_bytes=whole,
        cached_bytes=cached_bytes,
        hit_rate=round(hit, 3),
        worst_hit_rate=round(part, 3),
        decode_tok_s=speed(hit),
        worst_tok_s=speed(part),
        disk_gbs=gbs,
        disk_measured=measured,
        seen_tokens=round(use.tokens) if use.is_meaningful else 0,
    )


def reasons(streaming: Streaming) -> tuple[Reason, ...]:
    """Reasons for the placement: why experts are streamed, and the expected hit rate and speed."""
    why = because("experts_by_use", kept_gib=streaming.cached_bytes / GIB, all_gib=streaming.expert_bytes / GIB)
    hits = because("experts_asked_guessed", hit_rate=streaming.hit_rate, tok_s=streaming.decode_tok_s)
    if streaming.seen_tokens:
        seen, rate = streaming.seen_tokens, streaming.hit_rate
        hits = because("experts_asked_seen", hit_rate=rate, tokens=seen, tok_s=streaming.decode_tok_s)
    worst = because(
        "experts_worst" if streaming.disk_measured else "experts_worst_guessed",
        hit_rate=streaming.worst_hit_rate,
        tok_s=streaming.worst_tok_s,
        disk_gbs=streaming.disk_gbs,
    )
    return why, hits, worst


def prompt_tok_s(shape: ModelShape, streaming: Streaming, n_ubatch: int, compute_tok_s: float) -> float:
    """Prefill speed in tokens/s: each ubatch needs nearly all experts and reads those that are not cached."""
    missing_s = (streaming.expert_bytes - streaming.cached_bytes) / 1e9 / streaming.disk_gbs
    compute_s = n_ubatch / compute_tok_s if compute_tok_s else 0.0
    seconds = math.fsum((missing_s, compute_s, LAYER_S * len(shape.layers)))
    return n_ubatch / seconds
