"""Decodes a known prompt after the load to find kernels whose results depend on the batch's shape.

The same few tokens are decoded in two shapes: all together, and with the last token alone. The two use different
kernels (matrix times matrix, matrix times vector) and must give the same logits. The check replaces the warm-up
decode, and takes two steps if the last token can be rolled back: every step has hundreds of barriers, and the first
response waits for it.
"""

from typing import Any, Final

import numpy as np

from devices.backends.cpu_kernels import ATTENTION
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.model import LoadedModel, LoadFailed, metadata_value
from engine.runner.llama.native.vocabulary import LlamaVocabulary

TEXT: Final = "One, two, three, four, five, six, seven"
# Enough for Tessera's own kernels to be among those compared. Those of a mixture need a token for each expert on
# average. Source: engine/kernels/ggml-tiles.cpp.
NUM_TOKENS, MOST_TOKENS = 8, 32
# Below this size one thread checks in less than 0.1 s and waits for no other thread: on a busy machine two threads
# with hundreds of barriers per step took ten times as long. Measured: log-archive.md, engine.
ONE_THREAD_BYTES: Final = 256 << 20
# Difference of two logit rows divided by their spread (root mean squares). Unrelated rows differ by 1.4; those of
# two batch shapes by 0.06 at most. Measured: log-archive.md, engine.
LARGEST_DIFFERENCE: Final = 0.7


class SelfCheckFailed(LoadFailed):
    """The file was loaded, but this machine's results with it are wrong."""


def self_check(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> float:
    """Decode the known prompt; return the largest difference found. The cache is empty afterwards.

    Raises: SelfCheckFailed: logits are not numbers, or differ with the shape of the batch.
    """
    api, settings = loaded.api, loaded.settings
    few = int(api.llama_model_size(loaded.model)) < ONE_THREAD_BYTES and not settings.devices
    threads = api.llama_n_threads(loaded.context), api.llama_n_threads_batch(loaded.context)
    if few:
        api.llama_set_n_threads(loaded.context, 1, 1)
    try:
        return _compare(loaded, vocabulary)
    finally:
        # the cells contain only finite numbers, so they need not be overwritten
        api.llama_memory_clear(loaded.memory, False)
        if few:
            api.llama_set_n_threads(loaded.context, *threads)


def _compare(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> float:
    """Return the difference of the two shapes. Raises: SelfCheckFailed."""
    batch, logits = Batch(loaded), Logits(loaded)
    tokens = vocabulary.tokenize(TEXT, add_special=True, parse_special=False)[:NUM_TOKENS]
    tokens = [*tokens, *([0] * (2 - len(tokens)))]
    count = max(1, min(num_tokens(loaded), loaded.n_ubatch // 2))
    tokens = (tokens * (MOST_TOKENS // NUM_TOKENS) if count > NUM_TOKENS else tokens)[:count]
    batch.add_prompt(tokens, 0, 0, last=True)
    together = _row(batch, logits)
    before = len(tokens) - 1
    if not before:
        return 0.0
    if not (loaded.keeps_partial and loaded.api.llama_memory_seq_rm(loaded.memory, 0, before, -1)):
        loaded.api.llama_memory_clear(loaded.memory, False)
        batch.add_prompt(tokens[:-1], 0, 0, last=True)
        _row(batch, logits)
    batch.add(tokens[-1], before, 0)
    worst = difference(together, _row(batch, logits))
    if worst > LARGEST_DIFFERENCE:
        raise SelfCheckFailed(f"the same prompt gives other results in another batch (difference {worst:.2f})")
    return worst


def num_tokens(loaded: LoadedModel) -> int:
    """Return how many tokens the check decodes."""
    name = metadata_value(loaded, "general.architecture")
    counts = [metadata_value(loaded, f"{name}.{key}") for key in ("expert_count", "expert_used_count")]
    if not set(loaded.settings.tiles) - {ATTENTION} or not all(count.isdecimal() for count in counts):
        return NUM_TOKENS
    experts, used = map(int, counts)
    return min(MOST_TOKENS, max(NUM_TOKENS, -(-experts // max(1, used))))


def _row(batch: Batch, logits: Logits) -> Any:
    """Return the logits (n_vocab,) of the batch's one output; clears the batch."""
    code = batch.decode()
    if code != 0:
        raise SelfCheckFailed(f"a short prompt could not be decoded (llama_decode returned {code})")
    row = logits.rows(1)[0].copy()
    batch.clear()
    if not np.isfinite(row.max()):
        raise SelfCheckFailed("the model's output is not a number")
    return row


def difference(one: Any, other: Any) -> float:
    """Root mean square of two rows' difference divided by the first's spread; (n_vocab,), masked tokens ignored."""
    finite = np.isfinite(one) & np.isfinite(other)
    first = one[finite].astype(np.float64)
    spread = float(first.std()) or 1.0
    return float(np.sqrt(np.mean((first - other[finite]) ** 2))) / spread
