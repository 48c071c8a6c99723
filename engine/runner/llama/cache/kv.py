"""Who owns which cells of the KV cache, and which prefixes can be shared.

A unified cache lets one cell belong to several sequences, so a new request takes the longest known prefix with
`seq_cp`, which copies metadata only, from an idle or a running sequence. Finished sequences stay as idle
prefixes until their id or their cells are needed.
"""

from typing import Any, Final

import numpy as np

from engine.runner.llama.cache.cached_sequence import CachedSequence, common_prefix, rebase
from engine.runner.llama.cache.checkpoints import Checkpoint, Checkpoints, budget, places, within
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.cache.state_buffer import copied, pointer, state_buffer
from engine.runner.llama.native.model import LoadedModel

# A prefix shorter than this is computed faster than it is copied out, looked up and copied in again.
MIN_STORED_TOKENS: Final = 64
# Bringing a prefix back copies all of it; a token copied costs a part of one computed (0.6B: 0.04 to 0.27 ms, 5).
MIN_GAIN, COPIES_PER_TOKEN = 8, 64
# Idle cells that may stay beside running requests even when nothing in use is as large. Every step walks over idle
# cells too: 2,000 of them cost a 0.6B model a tenth of its decode speed (docs/log.md, engine).
IDLE_CELLS: Final = 1024


class KVCache:
    """Allocates sequences and remembers what is in them. All calls from the scheduler's thread.

    What is evicted goes to the `store`, and comes back when a prompt begins with it.
    """

    def __init__(self, loaded: LoadedModel, store: PrefixStore) -> None:
        self._context = loaded.context
        self._store = store
        self._api = loaded.api
        self._memory = loaded.memory
        self._keeps_partial = loaded.keeps_partial
        self._max_rollback = loaded.max_rollback
        self._n_swa = loaded.n_swa
        self._in_order = loaded.settings.flash_attn == "off"
        self._n_ubatch = loaded.n_ubatch
        self._checkpoints = Checkpoints(loaded, budget(loaded))
        self.cells = loaded.kv_cells
        self._sequences = [CachedSequence(i) for i in range(loaded.n_seq_max)]
        self._clock = 0

    @property
    def used_cells(self) -> int:
        """Cells taken, shared ones counted once."""
        return sum(len(s.tokens) - s.shared for s in self._sequences)

    @property
    def idle_cells(self) -> int:
        """Cells that eviction could free."""
        return sum(len(s.tokens) - s.shared for s in self._sequences if not s.in_use)

    def best_prefix(self, tokens: list[int], key: Key) -> tuple[CachedSequence | None, int]:
        """The cached sequence that shares the longest usable prefix with `tokens`, and its length."""
        best, best_length = None, 0
        for candidate in self._sequences:
            if candidate.key != key or not candidate.tokens:
                continue
            length = common_prefix(candidate.tokens, tokens)
            # The last prompt token is always decoded again: restored cells have no logits.
            length = min(length, len(tokens) - 1)
            if length > best_length:
                length = self._usable(candidate, length)
            if length > best_length:
                best, best_length = candidate, length
        return best, best_length

    def _usable(self, source: CachedSequence, length: int) -> int:
        """How much of the first `length` tokens can be taken: all, or up to a checkpoint."""
        if self._steps_back(source, length):
            return length
        saved = within(self._checkpoints.alive(source.checkpoints), length)
        return saved.length if saved is not None else 0

    def _steps_back(self, source: CachedSequence, length: int) -> bool:
        """The sequence is that long, or can be cut to it as it is."""
        if length == len(source.tokens):
            return not (source.rewound and source.in_use)
        if not self._keeps_partial:
            return False
        if self._n_swa > 0:
            oldest = int(self._api.llama_memory_seq_pos_min(self._memory, source.seq_id))
            return 0 <= oldest <= max(0, length - self._n_swa)
        return True

    def acquire(self, tokens: list[int], key: Key, *, fresh: bool = False) -> CachedSequence | None:
        """A sequence for `tokens` that already holds its longest cached prefix; None when all are in use.

        A `fresh` one holds nothing.
        """
        branch = 0 if fresh or self.cuts else self._branch(tokens, key)
        sequence = self.acquire_empty(key) if fresh else self._acquire(tokens, key)
        if sequence is not None:
            if not fresh and not self.cuts:
                sequence.wanted = places(len(tokens), len(sequence.tokens), branch, self._n_ubatch)
                self.note_progress(sequence)
            self._thin_out(sequence)
        return sequence

    def _branch(self, tokens: list[int], key: Key) -> int:
        """The longest prefix that some known text shares with `tokens`, whether it can be taken or not."""
        live = max((common_prefix(s.tokens, tokens) for s in self._sequences if s.key == key), default=0)
        _, stored = self._store.best(np.asarray(tokens, np.int32), key, whole_only=False)
        return max(live, stored)

    def _acquire(self, tokens: list[int], key: Key) -> CachedSequence | None:
        source, length = self.best_prefix(tokens, key)
        restored = self._restore(tokens, key, length)
        if restored is not None:
            return restored
        if source is not None and not source.in_use and length == len(source.tokens):
            source.in_use = True
            return source
        if source is not None and self._cut_in_place(source, length):
            return source
        target = self._free_sequence(keep=source)
        if target is None:
            if source is None or source.in_use:
                return None
            target = source  # the only idle one left is the source itself: cut it to the shared part
            if not self._go_back(target, source, length):
                self.drop(target)
        elif source is not None:
            self._fork(source, target, length)
        target.key = key
        target.in_use = True
        return target

    def _cut_in_place(self, source: CachedSequence, length: int) -> bool:
        """Where nothing else runs, go on in an idle sequence's cells, if what it loses is little or stored.

        Plain attention sums over cells in their order: the same request must meet the same cells for a seed to give
        the same text, whatever storing costs. With the fused one a copy of its own is as good, and costs nothing.
        """
        if not self._keeps_partial or any(s.in_use for s in self._sequences):
            return False
        lost = source.tokens[length:]
        pictures = min(lost) < 0  # they cost more than their rows
        if pictures or len(lost) > length // COPIES_PER_TOKEN:
            if not self._in_order:
                return False
            self._spill(source)
            if not self._held(source):
                return False
        if not self.truncate(source, length):
            return False
        source.in_use = True
        return True

    def _fork(self, source: CachedSequence, target: CachedSequence, length: int) -> None:
        """Give an empty sequence the first `length` tokens of another."""
        self._api.llama_memory_seq_cp(self._memory, source.seq_id, target.seq_id, 0, length)
        target.tokens = source.tokens[:length]
        target.shared = length
        if not source.in_use:  # what runs owns the common cells, what idles may be evicted without them
            target.shared, source.shared = min(source.shared, length), max(source.shared, length)
        target.checkpoints = [c for c in source.checkpoints if c.length <= length]
        if not self._go_back(target, source, length):
            self.drop(target)

    def follow(self, target: CachedSequence, source: CachedSequence, length: int, least: int) -> int:
        """Let a running sequence have `length` tokens of another if that gains it `least`; returns its gain."""
        have = len(target.tokens)
        if length - have < least or self._usable(source, length) != length:
            return 0
        if self.cuts and target.shared == have:  # it has no cells of its own that would be left over
            self._api.llama_memory_seq_cp(self._memory, source.seq_id, target.seq_id, have, length)
            target.tokens += source.tokens[have:length]
            target.shared = length
            return length - have
        wanted = [place for place in target.wanted if place > length]
        self.drop(target)
        self._fork(source, target, length)
        target.wanted = wanted
        return max(0, len(target.tokens) - have)

    def _go_back(self, target: CachedSequence, source: CachedSequence, length: int) -> bool:
        """Make `length` tokens the present of `target`, which holds the cells of `source` or is it."""
        if not self._steps_back(source, length):
            saved = within(self._checkpoints.alive(source.checkpoints), length)
            if saved is None or saved.length != length:
                return False
            return self._put_back(target, saved)
        return self._cut(target, length)

    def _put_back(self, target: CachedSequence, saved: Checkpoint) -> bool:
        """Make a checkpoint the present of a sequence that has its cells."""
        if not self._checkpoints.put(saved, target.seq_id):
            return False
        target.retractable, target.rewound = 0, False
        return self._cut(target, saved.length)

    def _cut(self, target: CachedSequence, length: int) -> bool:
        if not self._api.llama_memory_seq_rm(self._memory, target.seq_id, length, -1):
            return False
        del target.tokens[length:]
        target.shared = min(target.shared, length)
        target.checkpoints = [c for c in target.checkpoints if c.length <= length]
        return True

    def computed(self, sequence: CachedSequence, tokens: list[int], *, alone: bool) -> None:
        """A step has put `tokens` into the sequence; `alone`: and nothing else into any other.

        Where states are taken back by copies, llama.cpp leaves those behind when it moves a state to another place,
        as it does for other sequences of the same step.
        """
        sequence.tokens.extend(tokens)
        sequence.retractable = min(self._max_rollback, len(tokens) - 1) if alone else 0
        sequence.rewound = False
        self.note_progress(sequence)

    def note_progress(self, sequence: CachedSequence) -> None:
        """Tokens were computed: copy the state if this is a place to come back to."""
        length = len(sequence.tokens)
        while sequence.wanted and sequence.wanted[0] <= length:
            known = within(self._checkpoints.alive(sequence.checkpoints), length)
            if sequence.wanted.pop(0) == length and (known is None or known.length < length):
                saved = self._checkpoints.take(sequence.seq_id, length)
                if saved is not None:
                    sequence.checkpoints = [*self._checkpoints.alive(sequence.checkpoints), saved]

    def _free_sequence(self, keep: CachedSequence | None) -> CachedSequence | None:
        idle = [s for s in self._sequences if not s.in_use and s is not keep]
        if not idle:
            return None
        chosen = min(idle, key=lambda s: (bool(s.tokens), s.last_used))
        self._spill(chosen)
        self.drop(chosen)
        return chosen

    def acquire_empty(self, key: Key) -> CachedSequence | None:
        """A sequence with nothing in it; None when all are in use."""
        target = self._free_sequence(keep=None)
        if target is not None:
            target.key, target.in_use = key, True
        return target

    def scrub(self) -> None:
        """Wipe every cell, freed ones too; idle prefixes go to the store. No sequence may be in use."""
        self.store_idle()
        self._api.llama_memory_clear(self._memory, True)
        for sequence in self._sequences:
            sequence.tokens, sequence.shared, sequence.checkpoints, sequence.wanted = [], 0, [], []

    def forget_stored(self, tokens: list[int], key: Key) -> None:
        """Take stored prefixes of a prompt out of the store."""
        self._store.forget(np.asarray(tokens, np.int32), key)

    def release(self, sequence: CachedSequence, *, keep: bool = True) -> None:
        """The request ended: its tokens stay as an idle prefix, the first to go unless `keep`."""
        self._clock += 1
        sequence.in_use = False
        sequence.last_used = self._clock if keep else 0

    @property
    def cuts(self) -> bool:
        """A state can be cut to a shorter prefix."""
        return self._keeps_partial and self._n_swa == 0

    def _spill(self, sequence: CachedSequence) -> None:
        """Copy an idle sequence's state to the store."""
        if not self._store.enabled or len(sequence.tokens) < MIN_STORED_TOKENS or sequence.last_used == 0:
            return
        tokens = np.asarray(sequence.tokens, np.int32)
        if self._store.covers(tokens, sequence.key, whole_only=not self.cuts):
            return
        size = self._api.llama_state_seq_get_size(self._context, sequence.seq_id)
        data = state_buffer(size)
        if self._api.llama_state_seq_get_data(self._context, pointer(data), size, sequence.seq_id) == size:
            self._store.put(sequence.key, tokens, data, self._kept(sequence), whole_only=not self.cuts)

    def _kept(self, sequence: CachedSequence) -> list[tuple[int, Any]]:
        """The checkpoints that go with a stored state: the first (a common beginning) and the last."""
        alive = self._checkpoints.alive(sequence.checkpoints)
        return [(c.length, c.data) for c in (alive if len(alive) < 3 else (alive[0], alive[-1]))]  # noqa: PLR2004 - the two

    def _thin_out(self, chosen: CachedSequence) -> None:
        """Take idle prefixes out of the cells beside `chosen`: all that the store holds, else only a surplus."""
        if not self._store.enabled or not self._keeps_partial:
            return
        idle = [s for s in self._sequences if not s.in_use and s.tokens]
        alone = all(s is chosen or not s.in_use for s in self._sequences)
        for sequence in sorted(idle, key=lambda s: s.last_used):
            if self.idle_cells > max(IDLE_CELLS, self.used_cells - self.idle_cells):
                self._spill(sequence)
                self.drop(sequence)
            elif alone and self._held(sequence):
                self.drop(sequence)

    def _held(self, sequence: CachedSequence) -> bool:
        tokens = np.asarray(sequence.tokens, np.int32)
        return self._store.holds(tokens, sequence.key, whole_only=not self.cuts)

    def store_idle(self) -> None:
        """Copy idle prefixes to the store's memory, so that their cells can be given up at once."""
        for sequence in self._sequences:
            if not sequence.in_use and sequence.tokens:
                self._spill(sequence)

    def persist(self) -> None:
        """Write idle prefixes to disk, so that they survive this process."""
        self.store_idle()
        self._store.persist()

    def _restore(self, tokens: list[int], key: Key, live: int) -> CachedSequence | None:
        """Bring a stored prefix back if it saves clearly more than the live one of `live` tokens."""
        if not self._store.enabled:
            return None
        wanted = np.asarray(tokens[:-1], np.int32)
        entry, length = self._store.best(wanted, key, whole_only=not self.cuts)
        if entry is None or length - live < max(MIN_GAIN, length // COPIES_PER_TOKEN):
            return None
        target = self._free_sequence(keep=None)
        if target is None or not self.make_room(len(entry.tokens), spare=target):
            return None
        data = self._store.load(entry)
        if data is None:
            return None
        if not self._api.llama_state_seq_set_data(self._context, pointer(data), entry.state_bytes, target.seq_id):
            self.drop(target)
            return None
        target.tokens = entry.tokens.tolist()
        target.shared, target.key, target.in_use = 0, key, True
        target.checkpoints = [Checkpoint(marked, copied(entry.mark(data, marked))) for marked, _ in entry.marks]
        self._checkpoints.adopt(target.checkpoints)
        if not self._go_back(target, target, length):
            self.drop(target)
        return target

    def drop(self, sequence: CachedSequence) -> None:
        """Forget a sequence; its unshared cells become free."""
        self._api.llama_memory_seq_rm(self._memory, sequence.seq_id, -1, -1)
        gone = len(sequence.tokens) - sequence.shared
        if gone > 0:
            rebase(sequence, self._sequences)
        sequence.tokens = []
        sequence.shared = 0
        sequence.wanted = []
        sequence.retractable, sequence.rewound = 0, False
        if sequence.checkpoints:
            sequence.checkpoints = []
            self._checkpoints.keep_only(c for s in self._sequences for c in s.checkpoints)

    def truncate(self, sequence: CachedSequence, length: int) -> bool:
        """Cut a sequence to its first `length` tokens; False when this memory cannot do that."""
        if length >= len(sequence.tokens):
            return True
        if not self._keeps_partial and len(sequence.tokens) - length > sequence.retractable:
            return False
        if self._n_swa > 0 and not self._steps_back(sequence, length):
            return False
        if not self._cut(sequence, length):
            return False
        sequence.retractable, sequence.rewound = 0, not self._keeps_partial
        return True

    def shorten(self, sequence: CachedSequence, length: int) -> None:
        """Cut a sequence to its first `length` tokens, or to nothing where this memory cannot do that."""
        if not self.truncate(sequence, length):
            self.drop(sequence)

    def settle(self, sequence: CachedSequence, tokens: list[int], *, countable: bool) -> None:
        """After an aborted decode of `tokens`: what was computed stays, where positions tell how far that is."""
        if not countable:
            self.drop(sequence)
            return
        if not self._keeps_partial:  # some layers' states are further than others'
            saved = within(self._checkpoints.alive(sequence.checkpoints), len(sequence.tokens))
            if saved is None or not self._put_back(sequence, saved):
                self.drop(sequence)
            return
        reached = int(self._api.llama_memory_seq_pos_max(self._memory, sequence.seq_id))
        sequence.tokens[:] = tokens[: reached + 1]
        if len(sequence.tokens) == len(tokens):
            self.shorten(sequence, len(tokens) - 1)  # computed but never sampled

    def make_room(self, cells: int, spare: CachedSequence | None = None) -> bool:
        """Evict idle prefixes, oldest first, until `cells` are free; False when that is not enough."""
        while self.cells - self.used_cells < cells:
            idle = [s for s in self._sequences if not s.in_use and s.tokens and s is not spare]
            if not idle:
                return False
            oldest = min(idle, key=lambda s: s.last_used)
            self._spill(oldest)
            self.drop(oldest)
        return True
