"""Copies idle prefixes to the store before eviction and restores them when a prompt starts with one."""

from typing import Any, Final, NamedTuple

import numpy as np

from engine.runner.llama.cache.cells import CachedSequence, Cells
from engine.runner.llama.cache.kv_rollback import KvRollback
from engine.runner.llama.cache.prefix_index import Key, StoredPrefix
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.cache.state_buffer import copied, pointer, state_buffer
from engine.runner.llama.native.model import LoadedModel

# A shorter prefix is faster to compute than to store, look up and restore.
MIN_STORED_TOKENS: Final = 64
# A prompt of this length takes long enough to read that a copy of its state on disk is worth its time.
SAVED_FROM: Final = 8192
# The copy passes through memory: its maximum is free memory divided by this.
COPY_DIVISOR: Final = 4
# While others wait for their next token, only states up to this size are copied: it takes a tenth of a second.
QUICK_COPY_BYTES: Final = 128 << 20
# Restoring a prefix copies all of it; copying a token takes a fraction of computing it (0.6B: 0.04 to 0.27 ms, 5
# ms).
MIN_GAIN, COPIES_PER_TOKEN = 8, 64


class Restorable(NamedTuple):
    """A stored prefix, how many of its first tokens are usable, and its state: uint8 (bytes,).

    It holds the state, because evicting another prefix for it may remove it from the store.
    """

    entry: StoredPrefix
    length: int
    state: Any


class KvOffload:
    """Moves states between llama.cpp's sequences and the store."""

    def __init__(self, loaded: LoadedModel, cells: Cells, rewinding: KvRollback, store: PrefixStore) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self._cells = cells
        self._rewinding = rewinding
        self._store = store

    @property
    def enabled(self) -> bool:
        """Whether the store has any capacity."""
        return self._store.enabled

    def spill(self, sequence: CachedSequence, *, quick: bool = False) -> None:
        """Copy an idle sequence's state to the store; `quick`: only if that takes little time."""
        if self.enabled and len(sequence.tokens) >= MIN_STORED_TOKENS and sequence.last_used:
            self._put(sequence, quick=quick)

    def is_quick(self, sequence: CachedSequence) -> bool:
        """Whether a copy of this sequence's state takes little time."""
        size = self._api.llama_state_seq_get_size(self._loaded.context, sequence.seq_id)
        return bool(size <= QUICK_COPY_BYTES)

    def save(self, sequence: CachedSequence) -> None:
        """Copy the state of a sequence that is being computed to disk, if disk and memory have space for it."""
        size = self._api.llama_state_seq_get_size(self._loaded.context, sequence.seq_id)
        if size <= min(self._store.largest_file, available_memory() // COPY_DIVISOR):
            self._put(sequence)
            self._store.persist()

    def _put(self, sequence: CachedSequence, *, quick: bool = False) -> None:
        tokens, whole_only = _array(sequence.tokens), not self._rewinding.truncatable
        if self._store.covers(tokens, sequence.key, whole_only=whole_only, num_steady=sequence.num_steady):
            return
        size = self._api.llama_state_seq_get_size(self._loaded.context, sequence.seq_id)
        is_large = size > QUICK_COPY_BYTES
        if not self._store.takes(size) or (is_large and (quick or size > available_memory() // COPY_DIVISOR)):
            return
        data = state_buffer(size)
        if self._api.llama_state_seq_get_data(self._loaded.context, pointer(data), size, sequence.seq_id) == size:
            marks = self._rewinding.marks(sequence)
            self._store.put(
                sequence.key, tokens, data, marks, whole_only=whole_only, num_steady=sequence.num_steady
            )

    def spill_idle(self, *, quick: bool = False) -> None:
        """Copy idle prefixes to the store, so that their cells can be freed immediately.

        `quick`: only those whose copy delays a request that arrives meanwhile by little.
        """
        for sequence in self._cells.sequences:
            if not sequence.in_use and sequence.tokens:
                self.spill(sequence, quick=quick)

    def holds(self, sequence: CachedSequence) -> bool:
        """Whether the store's memory has the whole sequence, so that restoring is only a copy."""
        whole_only = not self._rewinding.truncatable
        return self._store.holds(
            _array(sequence.tokens), sequence.key, whole_only=whole_only, num_steady=sequence.num_steady
        )

    def length_shared(self, tokens: list[int], key: Key) -> int:
        """Return how many tokens a stored prefix shares with `tokens`, even if they cannot be used."""
        return self._store.best(_array(tokens), key, whole_only=False)[1]

    def worth_restoring(self, tokens: list[int], key: Key, live: int) -> Restorable | None:
        """Return a stored prefix that saves clearly more than a live one of `live` tokens."""
        if not self.enabled:
            return None
        entry, length = self._store.best(_array(tokens[:-1]), key, whole_only=not self._rewinding.truncatable)
        if entry is None or length - live < max(MIN_GAIN, length // COPIES_PER_TOKEN):
            return None
        return self._load(entry, length)

    def worth_restoring_steady(self, tokens: list[int], key: Key, live: int) -> Restorable | None:
        """Like `worth_restoring`, for steady tokens."""
        if not self.enabled:
            return None
        entry, length = self._store.best_steady(_array(tokens[:-1]), key)
        return self._load(entry, length) if entry is not None and length > live else None

    def _load(self, entry: StoredPrefix, length: int) -> Restorable | None:
        state = self._store.load(entry)
        return None if state is None else Restorable(entry, length, state)

    def restore(self, restorable: Restorable, target: CachedSequence) -> bool:
        """Restore the usable tokens of a stored prefix to an empty sequence; after False it is empty.

        llama.cpp refuses it if the free cells are too scattered.
        """
        entry, context = restorable.entry, self._loaded.context
        if self._cells.reserves and len(entry.tokens) > self._cells.total - self._cells.used:
            return False
        if not self._api.llama_state_seq_set_data(
            context, pointer(restorable.state), entry.state_bytes, target.seq_id
        ):
            self._cells.drop(target)
            return False
        target.tokens, target.shared = entry.tokens.tolist(), 0
        target.num_steady = 0  # the caller sets it if the sequence is in the first cells
        self._rewinding.adopt(target, ((at, copied(entry.mark(restorable.state, at))) for at, _ in entry.marks))
        if not self._rewinding.rewind(target, target, restorable.length):
            self._cells.drop(target)
        return True

    def clear_cells(self) -> None:
        """Wipe every cell, including freed ones; idle prefixes go to the store. No sequence may be in use."""
        self.spill_idle()
        self._cells.wipe()

    def persist(self) -> None:
        """Write idle prefixes to disk, so that they survive this process."""
        self.spill_idle()
        self._store.persist()

    def forget(self, tokens: list[int], key: Key) -> None:
        """Delete a prompt's prefixes from the store."""
        self._store.forget(_array(tokens), key)


def available_memory() -> int:
    """Bytes of memory that are free now."""
    import psutil  # the first token needs none of it

    return int(psutil.virtual_memory().available)


def _array(tokens: list[int]) -> Any:
    return np.asarray(tokens, np.int32)
