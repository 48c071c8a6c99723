"""Whether the processor should use llama.cpp's fused attention."""

from typing import Final

import msgspec

from engine.fit.shape import ModelShape
from engine.runner.protocol import LoadSettings

# Without it attention is a matrix product over all cells, which x86 kernels do 1.5 times as fast for one row at
# 2,000 cells and as fast for a whole prompt. Measured: docs/log.md, engine.
PLAIN_WHY: Final = "plain attention: in a cache of this size it is the faster one on this processor"
# It also walks over the cells of other requests, which the fused one skips: with more of them it loses.
MOST_PARALLEL: Final = 8
# Processors read prompts as fast in pieces of this many tokens, experts need more rows to be busy.
DENSE_PIECE, EXPERT_PIECE = 128, 256
# Its values lie transposed, a cache's length apart: in larger caches every read is another page, and one row
# at 8,192 cells took 1.5 times as long as fused. Measured: docs/log.md, engine.
MOST_CELLS: Final = 4096
FLOAT_CACHES: Final = ("f16", "f32", "bf16")


def plain_attention(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` without fused attention, or None where the choice was made or it would not pay.

    `isa` are the processor's instruction sets.
    """
    if settings.flash_attn != "auto" or settings.embeddings or "avx2" not in isa:
        return None
    if settings.type_v not in FLOAT_CACHES or settings.n_parallel > MOST_PARALLEL:
        return None
    if max(settings.kv_cells, settings.n_ctx) > MOST_CELLS:
        return None
    piece = min(EXPERT_PIECE if shape.experts else DENSE_PIECE, settings.n_ubatch)
    return msgspec.structs.replace(settings, flash_attn="off", n_ubatch=piece)
