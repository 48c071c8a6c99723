"""Going on when the context is full, for requests that ask for it: forget the middle, compute the rest again.

Moving computed keys to new positions would be faster, but is possible for some models only, is not what the model
would have computed, and would move cells that other sequences share.
"""

from typing import Final

from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.load_limits import MAX_DRAFT

# The prompt's beginning, up to this share of the context, stays: it holds the instructions.
KEPT_FRAC: Final = 0.25


def is_full(sequence: LlamaSequence, n_ctx: int) -> bool:
    """No step with a draft is certain to fit any more."""
    return sequence.request.context_shift and len(sequence.tokens) >= n_ctx - MAX_DRAFT - 1


def shift(sequence: LlamaSequence, kv: KVCache, n_ctx: int) -> None:
    """Forget the older half of what follows the kept beginning; what remains is computed again from there."""
    keep = min(sequence.n_prompt, int(n_ctx * KEPT_FRAC))
    count = (len(sequence.tokens) - keep) // 2
    del sequence.tokens[keep : keep + count]
    sequence.limit -= count
    sequence.forgotten += count
    if sequence.cache is not None:
        kv.truncate(sequence.cache, keep, or_empty=True)
