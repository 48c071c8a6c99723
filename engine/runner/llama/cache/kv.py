"""The KV cache of one model: five verbs over cells, sharing, rewinding and spilling.

A unified cache lets one cell belong to several sequences, so a new request takes the longest cached prefix with
`seq_cp`, which copies metadata only, from an idle or a running sequence. Finished sequences stay as idle
prefixes until their id or their cells are needed; what is evicted goes to the store, and comes back when a prompt
begins with it.
"""

from typing import Final

from engine.runner.llama.cache.cached_sequence import CachedSequence, common_prefix, steady_length
from engine.runner.llama.cache.cells import Cells
from engine.runner.llama.cache.kv_offload import COPIES_PER_TOKEN, Spilling
from engine.runner.llama.cache.kv_rollback import Rewinding
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.model import LoadedModel
from engine.runner.load_limits import STEADY_ROWS

# Idle cells that may stay beside running requests even when nothing in use is as large. Every step walks over idle
# cells too: 2,000 of them cost a 0.6B model a tenth of its decode speed (docs/log.md, engine).
IDLE_CELLS: Final = 1024


class KVCache:
    """Which sequence a request gets and what is in it. All calls from the scheduler's thread.

    `acquire` a sequence, `commit` what a step computed, `truncate` what turned out wrong, `release` it, and
    `make_room` when the cells are full. `sharing` hands prefixes from one running request to another, `spilling`
    moves idle ones to the store and its files.
    """

    def __init__(self, loaded: LoadedModel, store: PrefixStore) -> None:
        self._keeps_partial = loaded.keeps_partial
        self._in_order = loaded.settings.flash_attn == "off"
        self._cells = Cells(loaded)
        self._rewinding = Rewinding(loaded, self._cells)
        self.sharing = Sharing(self._cells, self._rewinding)
        self.spilling = Spilling(loaded, self._cells, self._rewinding, store)
        self._clock = 0

    @property
    def cells(self) -> int:
        """All cells there are."""
        return self._cells.total

    @property
    def used_cells(self) -> int:
        """Cells taken, shared ones counted once."""
        return self._cells.used

    @property
    def idle_cells(self) -> int:
        """Cells that eviction could free."""
        return self._cells.idle

    @property
    def truncatable(self) -> bool:
        """A state can be truncated to any shorter prefix."""
        return self._rewinding.truncatable

    def clear(self) -> None:
        """Empty all sequences, none of which is in use; what they hold goes to the store."""
        for sequence in self._cells.sequences:
            self._evict(sequence)
        self._cells.clear()

    def moved(self) -> None:
        """All sequences are in another context now: llama.cpp's own copies of the last step are gone."""
        for sequence in self._cells.sequences:
            sequence.rollback_tokens = 0

    # ------------------------------------------------------------------ acquire

    def acquire(self, tokens: list[int], key: Key) -> CachedSequence | None:
        """A sequence that holds the longest cached prefix of `tokens`; None when all are in use.

        No tokens give an empty one.
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
        """The same where nothing else runs: its first tokens are steady, and no other sequence has cells.

        So what is computed from there on depends on `tokens` alone: kernels sum over cells by their place. Idle
        prefixes go to the store. None where states cannot be truncated, or something runs.
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
            if stored is not None and self.spilling.restore(*stored, target):
                target.num_steady = stored[1]
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
        """The longest prefix that some cached text shares with `tokens`, whether it can be taken or not."""
        return max(self.sharing.length_shared(tokens, key), self.spilling.length_shared(tokens, key))

    def _acquire_empty(self, key: Key) -> CachedSequence | None:
        target = self._free_sequence(keep=None)
        return None if target is None else self._cells.take(target, key)

    def _acquire_longest(self, tokens: list[int], key: Key) -> CachedSequence | None:
        source, length = self.sharing.best(tokens, key)
        restored = self._restore(tokens, key, length)
        if restored is not None:
            return restored
        if source is not None and not source.in_use and length == len(source.tokens):
            return self._cells.take(source, key)
        if source is not None and self._reuse_cells(source, length):
            return self._cells.take(source, key)
        target = self._free_sequence(keep=source)
        if target is None:
            if source is None or source.in_use:
                return None
            target = source  # the only idle one left is the source itself: cut it to the shared part
            if not self._rewinding.rewind(target, source, length):
                self._cells.drop(target)
        elif source is not None:
            self.sharing.fork(source, target, length)
        return self._cells.take(target, key)

    def _restore(self, tokens: list[int], key: Key, live: int) -> CachedSequence | None:
        """Bring a stored prefix back if it saves clearly more than the live one of `live` tokens."""
        found = self.spilling.worth_restoring(tokens, key, live)
        target = self._free_sequence(keep=None) if found is not None else None
        if found is None or target is None:
            return None
        entry, length = found
        if not self.make_room(len(entry.tokens), spare=target) or not self.spilling.restore(entry, length, target):
            return None
        return self._cells.take(target, key)

    def _reuse_cells(self, source: CachedSequence, length: int) -> bool:
        """Where nothing else runs, go on in an idle sequence's cells, if what it loses is little or stored.

        Plain attention sums over cells in their order: the same request must meet the same cells for a seed to give
        the same text, whatever storing costs. With the fused one a copy of its own is as good, and costs nothing.
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
        """An emptied idle sequence; what was in it goes to the store."""
        chosen = next(iter(self._cells.idle_sequences(spare=keep)), None)
        if chosen is not None:
            self._evict(chosen)
        return chosen

    def _thin_out(self, chosen: CachedSequence) -> None:
        """Take idle prefixes out of the cells beside `chosen`: all that the store holds, else only a surplus."""
        if not self.spilling.enabled or not self._keeps_partial:
            return
        alone = all(s is chosen or not s.in_use for s in self._cells.sequences)
        for sequence in [s for s in self._cells.idle_sequences() if s.tokens]:
            if self._cells.idle > max(IDLE_CELLS, self._cells.used - self._cells.idle):
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
        """A step has put `tokens` into the sequence; `alone`: and nothing else into any other.

        `steady`: into the cells that follow those of its other tokens, which `acquire_steady` gave.

        Of an `aborted` step, those that were computed stay; where nobody can tell which, the sequence is empty.
        """
        if not aborted:
            if steady and len(sequence.tokens) == sequence.num_steady and len(tokens) == STEADY_ROWS:
                sequence.num_steady += STEADY_ROWS
            sequence.tokens.extend(tokens)
            self._rewinding.computed(sequence, len(tokens), alone=alone)
        elif not self._rewinding.after_abort(sequence, [*sequence.tokens, *tokens]):
            self._cells.drop(sequence)

    def truncate(self, sequence: CachedSequence, length: int, *, or_empty: bool = False) -> bool:
        """Cut a sequence to its first `length` tokens; False where this memory cannot do that.

        With `or_empty` it is empty then. A length of 0 always works, and frees what a failed step has left as well.
        """
        if length > 0 and self._rewinding.truncate(sequence, length):
            return True
        if length == 0 or or_empty:
            self._cells.drop(sequence)
        return length == 0

    def release(self, sequence: CachedSequence, *, keep: bool = True, unsettled: Key | None = None) -> None:
        """The request ended: its tokens stay as an idle prefix, the first to go unless `keep`."""
        self._clock += 1
        sequence.unsettled = unsettled
        sequence.in_use = False
        sequence.last_used = self._clock if keep else 0

    def unsettled(self) -> CachedSequence | None:
        """The idle sequence whose answer was computed row by row, where no other one has cells."""
        filled = [s for s in self._cells.sequences if s.tokens or s.in_use]
        return filled[0] if len(filled) == 1 and filled[0].unsettled is not None else None

    def make_room(self, cells: int, spare: CachedSequence | None = None) -> bool:
        """Evict idle prefixes, oldest first, until `cells` are free; False when that is not enough."""
        while self._cells.total - self._cells.used < cells:
            oldest = next((s for s in self._cells.idle_sequences(spare) if s.tokens), None)
            if oldest is None:
                return False
            self._evict(oldest)
        return True

    def _evict(self, sequence: CachedSequence) -> None:
        self.spilling.spill(sequence)
        self._cells.drop(sequence)


class Sharing:
    """Finds live prefixes and hands them on."""

    def __init__(self, cells: Cells, rewinding: Rewinding) -> None:
        self._cells = cells
        self._rewinding = rewinding

    def best(self, tokens: list[int], key: Key) -> tuple[CachedSequence | None, int]:
        """The cached sequence that shares the longest usable prefix with `tokens`, and its length."""
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
        """How many tokens some live sequence shares with `tokens`, whether they can be taken or not."""
        alike = (common_prefix(s.tokens, tokens) for s in self._cells.sequences if s.key == key)
        return max(alike, default=0)

    def fork(self, source: CachedSequence, target: CachedSequence, length: int) -> None:
        """Give an empty sequence the first `length` tokens of another."""
        self._cells.copy(source, target, 0, length)
        target.shared = length
        if not source.in_use:  # what runs owns the common cells, what idles may be evicted without them
            target.shared, source.shared = min(source.shared, length), max(source.shared, length)
        target.checkpoints = [c for c in source.checkpoints if c.length <= length]
        if not self._rewinding.rewind(target, source, length):
            self._cells.drop(target)

    def follow(self, target: CachedSequence, source: CachedSequence, length: int, min_gain: int) -> int:
        """Let a running sequence have `length` tokens of another if that gains it `min_gain`; returns its gain."""
        have = len(target.tokens)
        if length - have < min_gain or self._rewinding.usable(source, length) != length:
            return 0
        # Without cells of its own none would be left over.
        if self._rewinding.truncatable and target.shared == have:
            self._cells.copy(source, target, have, length)
            target.shared = length
            return length - have
        planned = [at for at in target.planned if at > length]
        self._cells.drop(target)
        self.fork(source, target, length)
        target.planned = planned
        return max(0, len(target.tokens) - have)
