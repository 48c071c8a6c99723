"""The KV cache of one model: acquires, extends, truncates, releases and evicts sequences.

In a unified cache one cell can belong to several sequences. A new request therefore gets the longest cached prefix
with `seq_cp`, which copies only metadata, from an idle or a running sequence. Finished sequences stay as idle
prefixes until their id or their cells are needed. Evicted prefixes go to the store and are restored when a prompt
starts with one.
"""

from typing import Final

from engine.runner.llama.cache.cells import CachedSequence, Cells, common_prefix, steady_length
from engine.runner.llama.cache.kv_offload import COPIES_PER_TOKEN, KvOffload, Restorable
from engine.runner.llama.cache.kv_rollback import KvRollback
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.model import LoadedModel
from engine.runner.load_limits import STEADY_ROWS

# Idle cells that may remain during running requests even if the used ones are fewer. Every step also scans idle
# cells: 2,000 of them cost a 0.6B model a tenth of its decode speed (log-archive.md, engine).
IDLE_CELLS: Final = 1024


class KVCache:
    """Assigns sequences to requests and tracks their content. All calls come from the scheduler's thread.

    `acquire` a sequence, `commit` the tokens of a step, `truncate` rejected tokens, `release` the sequence, and
    `make_room` when the cells are full. `sharing` copies prefixes from one running request to another, `spilling`
    moves idle ones to the store and its files.
    """

    def __init__(self, loaded: LoadedModel, store: PrefixStore) -> None:
        self._keeps_partial = loaded.keeps_partial
        self._in_order = loaded.settings.flash_attn == "off"
        self._cells = Cells(loaded)
        self._rewinding = KvRollback(loaded, self._cells)
        self.sharing = PrefixSharing(self._cells, self._rewinding)
        self.spilling = KvOffload(loaded, self._cells, self._rewinding, store)
        self._clock = 0

    @property
    def cells(self) -> int:
        return self._cells.total

    @property
    def used_cells(self) -> int:
        """Number of used cells; shared ones count once."""
        return self._cells.used

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of copied states, which are in main memory."""
        return self._rewinding.checkpoint_bytes

    @property
    def idle_cells(self) -> int:
        """Number of cells that eviction could free."""
        return self._cells.idle

    def has_cells(self, count: int) -> bool:
        """Whether a step may use `count` more cells. Without reserved cells, llama.cpp decides that itself."""
        return not self._cells.reserves or self._cells.total - self._cells.used >= count

    @property
    def truncatable(self) -> bool:
        """Whether a state can be truncated to any shorter prefix."""
        return self._rewinding.truncatable

    def clear(self) -> None:
        """Empty all sequences, none of which may be in use; their content goes to the store."""
        for sequence in self._cells.sequences:
            self._evict(sequence)
        self._cells.clear()

    def moved(self) -> None:
        """Note that all sequences are in a new context: llama.cpp's own copies of the last step are gone."""
        for sequence in self._cells.sequences:
            sequence.rollback_tokens = 0

    # ------------------------------------------------------------------ acquire

    def acquire(self, tokens: list[int], key: Key) -> CachedSequence | None:
        """Return a sequence with the longest cached prefix of `tokens`; None if all are in use.

        Without tokens it is empty.
        """
        planned = bool(tokens) and not self.truncatable
        shared = self._longest_cached(tokens, key) if planned else 0
        sequence = self._acquire_longest(tokens, key) if tokens else self._acquire_empty(key)
        if sequence is not None:
            if planned:
                self._rewinding.plan_checkpoints(sequence, len(tokens), shared)
            self._thin_out(sequence)
        return sequence

    def acquire_steady(self, tokens: list[int], key: Key) -> CachedSequence | None:
        """Like `acquire` if nothing else runs: the first tokens are steady, and no other sequence has cells.

        Then all further results depend on `tokens` alone, because kernels sum over cells in their order. Idle
        prefixes go to the store. Returns None if states cannot be truncated, or if a request runs.
        """
        if not self.truncatable or any(s.in_use for s in self._cells.sequences):
            return None
        source, length = self._longest_steady(tokens, key)
        stored = self.spilling.worth_restoring_steady(tokens, key, length)
        for sequence in self._cells.sequences:
            if sequence is not source or stored is not None:
                self._evict(sequence)
        if stored is not None or source is None:
            self._cells.clear()
            target = self._cells.sequences[0]
            if stored is not None and self.spilling.restore(stored, target):
                target.num_steady = stored.length
            return self._cells.take(target, key)
        if len(source.tokens) - length > length // COPIES_PER_TOKEN:
            self.spilling.spill(source)
        if not self._rewinding.truncate(source, length):
            self._cells.drop(source)
            self._cells.clear()
        return self._cells.take(source, key)

    def _longest_steady(self, tokens: list[int], key: Key) -> tuple[CachedSequence | None, int]:
        best, best_length = None, 0
        for candidate in self._cells.sequences:
            if candidate.key == key and candidate.num_steady > best_length:
                # The last token is always decoded again: cells have no logits.
                common = min(common_prefix(candidate.tokens, tokens), len(tokens) - 1, candidate.num_steady)
                if (length := steady_length(tokens, common)) > best_length:
                    best, best_length = candidate, length
        return best, best_length

    def _longest_cached(self, tokens: list[int], key: Key) -> int:
        """Return the longest prefix of `tokens` in any cached text, even if it cannot be used."""
        return max(self.sharing.length_shared(tokens, key), self.spilling.length_shared(tokens, key))

    def _acquire_empty(self, key: Key) -> CachedSequence | None:
        target = self._free_sequence(keep=None)
        return None if target is None else self._cells.take(target, key)

    def _acquire_longest(self, tokens: list[int], key: Key) -> CachedSequence | None:
        source, length = self.sharing.best(tokens, key)
        restorable = self.spilling.worth_restoring(tokens, key, length)
        if restorable is not None:
            restored = self._restore(restorable, key)
            if restored is not None:
                return restored
            source, length = self.sharing.best(tokens, key)  # making room may have emptied it
        if source is not None and not source.in_use and length == len(source.tokens):
            return self._cells.take(source, key)
        if source is not None and self._reuse_cells(source, length):
            return self._cells.take(source, key)
        target = self._free_sequence(keep=source)
        if target is None:
            if source is None or source.in_use:
                return None
            target = source  # only the source itself is idle: truncate it to the shared part
            if not self._rewinding.rewind(target, source, length):
                self._cells.drop(target)
        elif source is not None:
            self.sharing.fork(source, target, length)
        return self._cells.take(target, key)

    def _restore(self, restorable: Restorable, key: Key) -> CachedSequence | None:
        """Restore a stored prefix, evicting idle ones if necessary; None if even their cells are too few."""
        target = self._free_sequence(keep=None)
        if target is None or not self.make_room(len(restorable.entry.tokens), spare=target):
            return None
        while not self.spilling.restore(restorable, target):
            if not self._evict_oldest(spare=target):
                return None
        return self._cells.take(target, key)

    def _reuse_cells(self, source: CachedSequence, length: int) -> bool:
        """If nothing else runs, reuse an idle sequence's cells, provided that it loses little or is stored.

        Plain attention sums over cells in their order: for reproducible text with a seed, the same request must get
        the same cells, even at the cost of storing. With flash attention a separate copy gives the same text and
        costs nothing.
        """
        if not self._keeps_partial or any(s.in_use for s in self._cells.sequences):
            return False
        lost = source.tokens[length:]
        images = min(lost) < 0  # they cost more than their rows
        if images or len(lost) > length // COPIES_PER_TOKEN:
            if not self._in_order:
                return False
            self.spilling.spill(source)
            if not self.spilling.holds(source):
                return False
        return self._rewinding.truncate(source, length)

    def _free_sequence(self, keep: CachedSequence | None) -> CachedSequence | None:
        """Return an emptied idle sequence; its content goes to the store."""
        chosen = next(iter(self._cells.idle_sequences(spare=keep)), None)
        if chosen is not None:
            self._evict(chosen)
        return chosen

    def _thin_out(self, chosen: CachedSequence) -> None:
        """Evict idle prefixes other than `chosen`: all that the store holds, else only a surplus.

        While other requests run, large ones stay: copying them would hold up the others' next tokens.
        """
        if not self.spilling.enabled or not self._keeps_partial:
            return
        alone = all(s is chosen or not s.in_use for s in self._cells.sequences)
        for sequence in [s for s in self._cells.idle_sequences() if s.tokens]:
            if self._cells.idle > max(IDLE_CELLS, self._cells.used - self._cells.idle):
                if alone or self.spilling.holds(sequence) or self.spilling.is_quick(sequence):
                    self._evict(sequence)
            elif alone and self.spilling.holds(sequence):
                self._cells.drop(sequence)

    # ------------------------------------------------------------------ commit, truncate, release, make room

    def commit(
        self,
        sequence: CachedSequence,
        tokens: list[int],
        *,
        alone: bool = False,
        aborted: bool = False,
        steady: bool = False,
    ) -> None:
        """Record that a step has added `tokens` to the sequence; `alone`: and nothing to any other.

        `steady`: the tokens follow directly in the cells of a sequence from `acquire_steady`.

        Of an `aborted` step, the computed tokens stay; if they are unknown, the sequence is emptied.
        """
        if not aborted:
            if steady and len(sequence.tokens) == sequence.num_steady and len(tokens) == STEADY_ROWS:
                sequence.num_steady += STEADY_ROWS
            sequence.tokens.extend(tokens)
            self._rewinding.computed(sequence, len(tokens), alone=alone)
        elif not self._rewinding.after_abort(sequence, [*sequence.tokens, *tokens]):
            self._cells.drop(sequence)

    def truncate(self, sequence: CachedSequence, length: int, *, or_empty: bool = False) -> bool:
        """Truncate a sequence to its first `length` tokens; False if this memory cannot do that.

        With `or_empty` it is emptied in this case. A length of 0 always works, and also frees the cells of a failed
        step.
        """
        if length > 0 and self._rewinding.truncate(sequence, length):
            return True
        if length == 0 or or_empty:
            self._cells.drop(sequence)
        return length == 0

    def release(self, sequence: CachedSequence, *, keep: bool = True, unsettled: Key | None = None) -> None:
        """Release a finished request's sequence as an idle prefix; without `keep` it is evicted first."""
        self._clock += 1
        sequence.unsettled = unsettled
        sequence.in_use = False
        sequence.last_used = self._clock if keep else 0

    def unsettled(self) -> CachedSequence | None:
        """Return the idle sequence whose response was computed row by row, if no other one has cells."""
        filled = [s for s in self._cells.sequences if s.tokens or s.in_use]
        return filled[0] if len(filled) == 1 and filled[0].unsettled is not None else None

    def make_room(self, cells: int, spare: CachedSequence | None = None) -> bool:
        """Evict idle prefixes, oldest first, until `cells` are free; False if that is not enough."""
        while self._cells.total - self._cells.used < cells:
            if not self._evict_oldest(spare):
                return False
        return True

    def _evict_oldest(self, spare: CachedSequence | None) -> bool:
        """Evict the least recently used idle prefix; False if there is none."""
        oldest = next((s for s in self._cells.idle_sequences(spare) if s.tokens), None)
        if oldest is not None:
            self._evict(oldest)
        return oldest is not None

    def _evict(self, sequence: CachedSequence) -> None:
        self.spilling.spill(sequence)
        self._cells.drop(sequence)


class PrefixSharing:
    """Finds live prefixes and copies them to other sequences."""

    def __init__(self, cells: Cells, rewinding: KvRollback) -> None:
        self._cells = cells
        self._rewinding = rewinding

    def best(self, tokens: list[int], key: Key) -> tuple[CachedSequence | None, int]:
        """Return the cached sequence with the longest usable prefix of `tokens`, and its length."""
        best, best_length = None, 0
        for candidate in self._cells.sequences:
            if candidate.key != key or not candidate.tokens:
                continue
            length = common_prefix(candidate.tokens, tokens)
            # The last prompt token is always decoded again: restored cells have no logits.
            length = min(length, len(tokens) - 1)
            if length > best_length:
                length = self._rewinding.usable(candidate, length)
            if length > best_length:
                best, best_length = candidate, length
        return best, best_length

    def length_shared(self, tokens: list[int], key: Key) -> int:
        """Return how many tokens a live sequence shares with `tokens`, even if they cannot be used."""
        alike = (common_prefix(s.tokens, tokens) for s in self._cells.sequences if s.key == key)
        return max(alike, default=0)

    def fork(self, source: CachedSequence, target: CachedSequence, length: int) -> None:
        """Give an empty sequence the first `length` tokens of another."""
        self._cells.copy(source, target, 0, length)
        target.shared = length
        # the running sequence owns the common cells, so the idle one can be evicted without them
        if not source.in_use:
            target.shared, source.shared = min(source.shared, length), max(source.shared, length)
        target.checkpoints = [c for c in source.checkpoints if c.length <= length]
        if not self._rewinding.rewind(target, source, length):
            self._cells.drop(target)

    def follow(self, target: CachedSequence, source: CachedSequence, length: int, min_gain: int) -> int:
        """Copy `length` tokens of another to a running sequence if it gains `min_gain` or more; return the gain."""
        have = len(target.tokens)
        if length - have < min_gain or self._rewinding.usable(source, length) != length:
            return 0
        # It has no own cells that would remain unused.
        if self._rewinding.truncatable and target.shared == have:
            self._cells.copy(source, target, have, length)
            target.shared = length
            return length - have
        planned = [at for at in target.planned if at > length]
        self._cells.drop(target)
        self.fork(source, target, length)
        target.planned = planned
        return max(0, len(target.tokens) - have)
