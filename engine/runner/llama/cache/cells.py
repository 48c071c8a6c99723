"""llama.cpp's sequences and their cells in the unified cache."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.runner.llama.cache.checkpoints import Checkpoint
from engine.runner.llama.cache.prefix_index import Key, shared_length
from engine.runner.llama.native.model import LoadedModel
from engine.runner.load_limits import STEADY_ROWS

# Content of one sequence in llama.cpp's memory.


@dataclass(eq=False)  # compare by identity
class CachedSequence:
    """One llama.cpp sequence; `tokens` are those whose keys and values are in the cache.

    `shared` of them came from another sequence by `seq_cp`, so they use no additional cells. `key` separates
    prefixes of different adapters and owners. For models whose state cannot be truncated, `checkpoints` are the
    copies to roll back to, and `planned` the lengths at which the next ones are due. The last `rollback_tokens`
    tokens can be rolled back immediately; `rolled_back` is set if some were, which a copy by `seq_cp` does not
    contain. The first `num_steady` tokens are in the first cells and were computed in steps at fixed positions
    (`steady_length`): computing them again gives the same bits. A response after them was computed row by row; when
    the runner is idle it is computed again in such steps, with the adapters `unsettled` (None: it is not).
    """

    seq_id: int
    key: Key = ()
    tokens: list[int] = field(default_factory=list)
    shared: int = 0
    in_use: bool = False
    last_used: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    rollback_tokens: int = 0
    rolled_back: bool = False
    num_steady: int = 0
    unsettled: Key | None = None

    def forget(self) -> None:
        """Note that its cells are free."""
        self.tokens, self.shared, self.num_steady = [], 0, 0
        self.planned, self.checkpoints = [], []
        self.rollback_tokens, self.rolled_back = 0, False

    def until_checkpoint(self, take: int) -> int:
        """Return how many of the next `take` prompt tokens to compute before a checkpoint is due."""
        ahead = self.planned[0] - len(self.tokens) if self.planned else 0
        return min(take, ahead) if ahead > 0 else take

    def plan_checkpoint(self, length: int) -> None:
        """Plan a checkpoint at this length, unless the sequence is already longer."""
        if length > len(self.tokens) and length not in self.planned:
            self.planned = sorted((*self.planned, length))


def steady_length(tokens: Any, length: int) -> int:
    """Return the end of the last steady step within the first `length` of the tokens (n,) int32.

    Steps have STEADY_ROWS rows, counted from the beginning or from the last image, whose tokens are negative. An
    image is included completely or not at all.
    """
    images = np.flatnonzero(np.asarray(tokens[: length + 1]) < 0)
    if not len(images):
        return length // STEADY_ROWS * STEADY_ROWS
    last = int(images[-1])
    if last < length:
        return last + 1 + (length - last - 1) // STEADY_ROWS * STEADY_ROWS
    gaps = np.flatnonzero(np.diff(images) > 1)  # `length` is inside an image: go back to its start
    return int(images[gaps[-1] + 1]) if len(gaps) else int(images[0])


def rebase(removed: CachedSequence, sequences: Iterable[CachedSequence]) -> None:
    """Count cells that others still share with a dropped owner at one of the others."""
    for other in sequences:
        if other is not removed and other.shared > removed.shared and other.key == removed.key:
            length = common_prefix(other.tokens, removed.tokens)
            if length > removed.shared:
                other.shared = min(other.shared, removed.shared)
                return


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of equal leading tokens."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    if a[:n] == b[:n]:
        return n
    return shared_length(np.asarray(a[:n]), np.asarray(b[:n]))


class Cells:
    """Counts and frees cells. A cell may belong to several sequences; it is counted at one of them."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self.sequences = [CachedSequence(i) for i in range(loaded.n_seq_max)]

    @property
    def total(self) -> int:
        """Number of all cells that may be used."""
        return self._loaded.kv_cells

    @property
    def reserves(self) -> bool:
        """Whether the context has more cells than may be used."""
        return self._loaded.reserved_cells > self._loaded.kv_cells

    @property
    def used(self) -> int:
        """Number of used cells; shared ones count once."""
        return sum(len(s.tokens) - s.shared for s in self.sequences)

    @property
    def idle(self) -> int:
        """Number of cells that eviction could free."""
        return sum(len(s.tokens) - s.shared for s in self.sequences if not s.in_use)

    def idle_sequences(self, spare: CachedSequence | None = None) -> list[CachedSequence]:
        """Return unused sequences except `spare`: empty ones first, then the least recently used."""
        idle = [s for s in self.sequences if not s.in_use and s is not spare]
        return sorted(idle, key=lambda s: (bool(s.tokens), s.last_used))

    def copy(self, source: CachedSequence, target: CachedSequence, begin: int, end: int) -> None:
        """Let `target` share the cells of tokens `begin` to `end` of `source`; copies only metadata."""
        self._api.llama_memory_seq_cp(self._loaded.memory, source.seq_id, target.seq_id, begin, end)
        target.tokens[begin:] = source.tokens[begin:end]
        if not begin:
            target.num_steady = min(source.num_steady, end)

    def cut(self, sequence: CachedSequence, length: int) -> bool:
        """Free the cells after the first `length` tokens; False if this memory cannot do that."""
        if not self._api.llama_memory_seq_rm(self._loaded.memory, sequence.seq_id, length, -1):
            return False
        del sequence.tokens[length:]
        sequence.shared = min(sequence.shared, length)
        sequence.num_steady = min(sequence.num_steady, length)
        sequence.checkpoints = [c for c in sequence.checkpoints if c.length <= length]
        return True

    def drop(self, sequence: CachedSequence) -> None:
        """Empty a sequence; its unshared cells become free."""
        self._api.llama_memory_seq_rm(self._loaded.memory, sequence.seq_id, -1, -1)
        if len(sequence.tokens) > sequence.shared:
            rebase(sequence, self.sequences)
        sequence.forget()

    def clear(self) -> None:
        """Reset the memory when all sequences are empty, so that allocation starts at the first cell again."""
        self._api.llama_memory_clear(self._loaded.memory, False)

    def wipe(self) -> None:
        """Overwrite every cell, including freed ones. No sequence may be in use."""
        self._api.llama_memory_clear(self._loaded.memory, True)
        for sequence in self.sequences:
            sequence.forget()

    @staticmethod
    def take(sequence: CachedSequence, key: Key) -> CachedSequence:
        """Mark a sequence as used by a request of this key."""
        sequence.key, sequence.in_use, sequence.unsettled = key, True, None
        return sequence
