"""Whether the CPU should use llama.cpp's fused attention."""

from collections import Counter
from typing import Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from engine.message_catalog.reasons import Reason, because
from engine.placement.history import Use
from engine.placement.measurements.attention import AttentionSpeed, Heads
from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings

# Where this machine's own measurement is not there yet, a rule from one CPU stands in:
# without it attention is a matrix product over all cells: on x86 one row takes 1.15 of the time in a text of 50
# tokens, .9 at 400, .7 at 2,000 and .46 at 6,000, and a prompt of 6,000 tokens .7. Measured: docs/log.md, engine.
# It also walks over the cells of other requests, which the fused one skips. So a model that may answer more than
# this at once gets it only where its use so far says that it pays: long texts, hardly ever two at once. One behind
# 1,500 tokens decodes 1.3 times as fast, four behind 1,000 .96, eight of 100 .92. Measured: docs/log.md, engine.
MOST_PARALLEL: Final = 2
LONG_TOKENS: Final = 512
HARDLY_TWO: Final = 1.5
# An impression of fewer tokens than this says nothing.
ENOUGH_TOKENS: Final = 1000
# CPUs prefill as fast with ubatches of this many tokens; experts need more rows to be busy.
DENSE_UBATCH, EXPERT_UBATCH = 128, 256
# The scores of one ubatch take memory: 12 KiB a cell where there are 16 heads, 400 MB for this many.
MOST_CELLS: Final = 32768
FLOAT_CACHES: Final = ("f16", "f32", "bf16")
# Measured here, plain attention must take at most this much of the fused one's time: its scores take memory.
WORTHWHILE: Final = 0.95
# Texts of a model whose use is not known yet.
FIRST_CHATS_TOKENS: Final = 512


def plain_attention(
    settings: LoadSettings,
    shape: ModelShape,
    isa: frozenset[str],
    use: Use | None = None,
    measured: AttentionSpeed | None = None,
) -> LoadSettings | None:
    """`settings` without fused attention, or None where the choice was made or it would not pay.

    `isa` are the CPU's instruction sets; `use` is how the model was used so far; `measured` what both ways
    cost here for heads like these, which beats the rule by instruction sets.
    """
    if settings.flash_attn != "auto" or settings.embeddings or ATTENTION in settings.tiles:
        return None
    if not (pays(measured, use) if measured else "avx2" in isa):
        return None
    if settings.type_v not in FLOAT_CACHES:
        return None
    if settings.n_parallel > MOST_PARALLEL and not answers_long_chats(use):
        return None
    if max(settings.kv_cells, settings.n_ctx) > MOST_CELLS:
        return None
    return with_plain(settings, experts=shape.experts > 0)


def with_plain(settings: LoadSettings, *, experts: bool) -> LoadSettings:
    """`settings` with non-flash attention and the ubatch that suits it."""
    n_ubatch = min(EXPERT_UBATCH if experts else DENSE_UBATCH, settings.n_ubatch)
    return msgspec.structs.replace(settings, flash_attn="off", n_ubatch=n_ubatch)


def pays(measured: AttentionSpeed, use: Use | None) -> bool:
    """Plain attention is faster here for texts as long as this model's."""
    return measured.nearest(usual_tokens(use)).plain_to_fused <= WORTHWHILE


def why_measured(settings: LoadSettings, measured: AttentionSpeed | None, use: Use | None) -> Reason | None:
    """What this machine's measurement said of the attention that `settings` have."""
    if measured is None or ATTENTION in settings.tiles:
        return None
    point = measured.nearest(usual_tokens(use))
    fused = settings.flash_attn != "off" and pays(measured, use)
    kind = "attention_stays_fused" if fused else "attention_measured"
    return because(kind, tokens=point.length, plain_to_fused=point.plain_to_fused)


def why_plain(settings: LoadSettings) -> Reason:
    """Why they have plain attention where nothing was measured."""
    return because("plain_attention" if settings.n_parallel <= MOST_PARALLEL else "plain_attention_by_use")


def usual_tokens(use: Use | None) -> float:
    """How long this model's texts are, as far as its use says."""
    return use.depth if use is not None and use.tokens >= ENOUGH_TOKENS else FIRST_CHATS_TOKENS


def heads_of(shape: ModelShape) -> Heads | None:
    """The geometry that most layers with a cache of keys share; None: there is none such, or they share latents."""
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
    """Values of a head in the layers with a cache; None: they share latents, or the header does not say."""
    width = shape.attention // shape.heads if shape.heads and shape.attention % shape.heads == 0 else 0
    width = width or (shape.embedding // shape.heads if shape.heads else 0)
    cached = {(layer.key_values, layer.value_values) for layer in shape.layers if layer.key_values}
    if not width or not cached or any(keys != values or keys % width for keys, values in cached):
        return None
    # Layers of another width, as those of Gemma 4 that slide, have other rows for the same heads.
    return frozenset({width}) if len(cached) == 1 else None


def answers_long_chats(use: Use | None) -> bool:
    """Its use says that tokens come behind long texts, one request at a time."""
    if use is None or use.tokens < ENOUGH_TOKENS:
        return False
    return use.depth >= LONG_TOKENS and use.at_once <= HARDLY_TWO
