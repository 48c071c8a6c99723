"""Whether the processor should use llama.cpp's fused attention."""

from typing import Final

import msgspec

from engine.dispatch.history import Use
from engine.fit.shape import ModelShape
from engine.runner.protocol import LoadSettings

# Without it attention is a matrix product over all cells: on x86 one row takes 1.15 of the time in a text of 50
# tokens, .9 at 400, .7 at 2,000 and .46 at 6,000, and a prompt of 6,000 tokens .7. Measured: docs/log.md, engine.
PLAIN_WHY: Final = "plain attention: from some hundred tokens on it is faster than the fused one on this processor"
LONG_CHATS_WHY: Final = "this model mostly answers one long text at a time"
# It also walks over the cells of other requests, which the fused one skips. So a model that may answer more than
# this at once gets it only where its use so far says that it pays: long texts, hardly ever two at once. One behind
# 1,500 tokens decodes 1.3 times as fast, four behind 1,000 .96, eight of 100 .92. Measured: docs/log.md, engine.
MOST_PARALLEL: Final = 2
LONG_TOKENS: Final = 512
HARDLY_TWO: Final = 1.5
# An impression of fewer tokens than this says nothing.
ENOUGH_TOKENS: Final = 1000
# Processors read prompts as fast in pieces of this many tokens, experts need more rows to be busy.
DENSE_PIECE, EXPERT_PIECE = 128, 256
# Its scores of one piece take memory: 12 KiB a cell where there are 16 heads, 400 MB for this many.
MOST_CELLS: Final = 32768
FLOAT_CACHES: Final = ("f16", "f32", "bf16")


def plain_attention(
    settings: LoadSettings, shape: ModelShape, isa: frozenset[str], use: Use | None = None
) -> LoadSettings | None:
    """`settings` without fused attention, or None where the choice was made or it would not pay.

    `isa` are the processor's instruction sets; `use` is how the model was used so far.
    """
    if settings.flash_attn != "auto" or settings.embeddings or "avx2" not in isa:
        return None
    if settings.type_v not in FLOAT_CACHES:
        return None
    if settings.n_parallel > MOST_PARALLEL and not answers_long_chats(use):
        return None
    if max(settings.kv_cells, settings.n_ctx) > MOST_CELLS:
        return None
    piece = min(EXPERT_PIECE if shape.experts else DENSE_PIECE, settings.n_ubatch)
    return msgspec.structs.replace(settings, flash_attn="off", n_ubatch=piece)


def answers_long_chats(use: Use | None) -> bool:
    """Its use says that tokens come behind long texts, one request at a time."""
    if use is None or use.tokens < ENOUGH_TOKENS:
        return False
    return use.depth >= LONG_TOKENS and use.at_once <= HARDLY_TWO
