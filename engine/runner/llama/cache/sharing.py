"""Prefixes that requests have in common: the longest cached one is taken, in cells that belong to both."""

from engine.runner.llama.cache.cached_sequence import CachedSequence, common_prefix
from engine.runner.llama.cache.cells import Cells
from engine.runner.llama.cache.kv_rollback import Rewinding
from engine.runner.llama.cache.prefix_index import Key


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
