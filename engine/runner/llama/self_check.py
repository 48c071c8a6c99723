"""A known prompt right after the load: kernels that compute nonsense are found before anybody reads their text.

The same few tokens are decoded in two shapes, all at once and in two sequences with the last token by itself. Both
go through other kernels (matrix times matrix, matrix times vector) and must give the same logits. It takes the
place of the throw-away decode that warms the model up.
"""

from typing import Any, Final

import numpy as np

from engine.runner.llama.batch import Batch, Logits
from engine.runner.llama.model import LoadedModel, LoadFailed
from engine.runner.llama.vocabulary import Vocabulary

TEXT: Final = "One, two, three, four, five, six, seven"
NUM_TOKENS: Final = 8
# Difference of two logit rows over their spread (root mean squares). Unrelated rows differ by 1.4; those of two
# batch shapes by 0.026 at most. Measured: docs/log.md, engine.
LARGEST_DIFFERENCE: Final = 0.7


class SelfCheckFailed(LoadFailed):
    """The file was loaded, but what this machine computes with it is wrong."""


def self_check(loaded: LoadedModel, vocabulary: Vocabulary) -> float:
    """Decode the known prompt; returns the largest difference found. The cache is empty afterwards.

    Raises: SelfCheckFailed: logits that are not numbers, or differ with the shape of the batch.
    """
    batch, logits = Batch(loaded), Logits(loaded)
    tokens = vocabulary.tokenize(TEXT, add_special=True, parse_special=False)[:NUM_TOKENS]
    tokens = [*tokens, *([0] * (2 - len(tokens)))][: max(1, min(NUM_TOKENS, loaded.n_ubatch // 2))]
    batch.add_prompt(tokens, 0, 0, last=True)
    (together,) = _rows(loaded, batch, logits)
    if len(tokens) == 1:
        return 0.0
    sequences = range(min(2, loaded.n_seq_max))
    for seq_id in sequences:
        batch.add_prompt(tokens[:-1], 0, seq_id, last=True)
    _rows(loaded, batch, logits, keep=True)
    for seq_id in sequences:
        batch.add(tokens[-1], len(tokens) - 1, seq_id)
    apart = _rows(loaded, batch, logits)
    worst = max(difference(together, row) for row in apart)
    if worst > LARGEST_DIFFERENCE:
        raise SelfCheckFailed(f"the same prompt gives other results in another batch (difference {worst:.2f})")
    return worst


def _rows(loaded: LoadedModel, batch: Batch, logits: Logits, *, keep: bool = False) -> list[Any]:
    """Logits (n_vocab,) of the batch's outputs. Clears the batch, and the cache unless `keep`."""
    code = batch.decode()
    if code != 0:
        raise SelfCheckFailed(f"a short prompt could not be decoded (llama_decode returned {code})")
    rows = [row.copy() for row in logits.rows(batch.outputs)[: batch.outputs]]
    batch.clear()
    if not keep:
        loaded.api.llama_memory_clear(loaded.memory, True)
    if not all(np.isfinite(row.max()) for row in rows):
        raise SelfCheckFailed("the model's output is not a number")
    return rows


def difference(one: Any, other: Any) -> float:
    """Root mean square of the difference of two rows (n_vocab,) over the spread of the first, masked ones aside."""
    known = np.isfinite(one) & np.isfinite(other)
    first = one[known].astype(np.float64)
    spread = float(first.std()) or 1.0
    return float(np.sqrt(np.mean((first - other[known]) ** 2))) / spread
