"""A known prompt right after the load: kernels whose results depend on the batch's shape are found.

The same few tokens are decoded in two shapes, all at once and with the last token by itself. Both go through
other kernels (matrix times matrix, matrix times vector) and must give the same logits. It takes the place of the
throw-away decode that warms the model up, and is two steps where the last token can be taken back: every step has
hundreds of places where its threads meet, and the first answer waits for it.
"""

from typing import Any, Final

import numpy as np

from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.model import LoadedModel, LoadFailed
from engine.runner.llama.native.vocabulary import LlamaVocabulary

TEXT: Final = "One, two, three, four, five, six, seven"
# So many that our own kernels are among those compared. Source: engine/kernels/ggml-tiles.cpp.
NUM_TOKENS: Final = 8
# Below this size one thread checks in less than a tenth of a second, and waits for no other: on a busy machine two
# threads that meet hundreds of times a step took ten times as long. Measured: docs/log.md, engine.
ONE_THREAD_BYTES: Final = 256 << 20
# Difference of two logit rows over their spread (root mean squares). Unrelated rows differ by 1.4; those of two
# batch shapes by 0.06 at most. Measured: docs/log.md, engine.
LARGEST_DIFFERENCE: Final = 0.7


class SelfCheckFailed(LoadFailed):
    """The file was loaded, but what this machine computes with it is wrong."""


def self_check(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> float:
    """Decode the known prompt; returns the largest difference found. The cache is empty afterwards.

    Raises: SelfCheckFailed: logits that are not numbers, or differ with the shape of the batch.
    """
    api, settings = loaded.api, loaded.settings
    few = int(api.llama_model_size(loaded.model)) < ONE_THREAD_BYTES and not settings.devices
    threads = api.llama_n_threads(loaded.context), api.llama_n_threads_batch(loaded.context)
    if few:
        api.llama_set_n_threads(loaded.context, 1, 1)
    try:
        return _compare(loaded, vocabulary)
    finally:
        api.llama_memory_clear(loaded.memory, False)  # what was computed are numbers, so it may lie there
        if few:
            api.llama_set_n_threads(loaded.context, *threads)


def _compare(loaded: LoadedModel, vocabulary: LlamaVocabulary) -> float:
    """The difference of the two shapes. Raises: SelfCheckFailed."""
    batch, logits = Batch(loaded), Logits(loaded)
    tokens = vocabulary.tokenize(TEXT, add_special=True, parse_special=False)[:NUM_TOKENS]
    tokens = [*tokens, *([0] * (2 - len(tokens)))][: max(1, min(NUM_TOKENS, loaded.n_ubatch // 2))]
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


def _row(batch: Batch, logits: Logits) -> Any:
    """Logits (n_vocab,) of the batch's one output. Clears the batch."""
    code = batch.decode()
    if code != 0:
        raise SelfCheckFailed(f"a short prompt could not be decoded (llama_decode returned {code})")
    row = logits.rows(1)[0].copy()
    batch.clear()
    if not np.isfinite(row.max()):
        raise SelfCheckFailed("the model's output is not a number")
    return row


def difference(one: Any, other: Any) -> float:
    """Root mean square of the difference of two rows (n_vocab,) over the spread of the first, masked ones aside."""
    finite = np.isfinite(one) & np.isfinite(other)
    first = one[finite].astype(np.float64)
    spread = float(first.std()) or 1.0
    return float(np.sqrt(np.mean((first - other[finite]) ** 2))) / spread
