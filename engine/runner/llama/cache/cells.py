"""llama.cpp's sequences and their cells in the unified cache."""

from engine.runner.llama.cache.cached_sequence import CachedSequence, rebase
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.native.model import LoadedModel


class Cells:
    """Counts and frees cells. A cell may belong to several sequences; it is counted at one of them."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self.sequences = [CachedSequence(i) for i in range(loaded.n_seq_max)]

    @property
    def total(self) -> int:
        """Number of all cells."""
        return self._loaded.kv_cells

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
        sequence.tokens, sequence.shared, sequence.num_steady = [], 0, 0
        sequence.planned, sequence.checkpoints = [], []
        sequence.rollback_tokens, sequence.rolled_back = 0, False

    def clear(self) -> None:
        """Reset the memory when all sequences are empty, so that allocation starts at the first cell again."""
        self._api.llama_memory_clear(self._loaded.memory, False)

    def wipe(self) -> None:
        """Overwrite every cell, including freed ones. No sequence may be in use."""
        self._api.llama_memory_clear(self._loaded.memory, True)
        for sequence in self.sequences:
            sequence.tokens, sequence.shared, sequence.checkpoints, sequence.planned = [], 0, [], []
            sequence.num_steady = 0

    @staticmethod
    def take(sequence: CachedSequence, key: Key) -> CachedSequence:
        """Mark a sequence as used by a request of this key."""
        sequence.key, sequence.in_use, sequence.unsettled = key, True, None
        return sequence
