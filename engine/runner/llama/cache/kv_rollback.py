"""Rolls back to a shorter prefix by truncation, by llama.cpp's own copies of a step, or by a checkpoint."""

from collections.abc import Iterable
from typing import Any

from engine.runner.llama.cache.cells import CachedSequence, Cells
from engine.runner.llama.cache.checkpoints import Checkpoint, Checkpoints, budget, checkpoint_lengths, within
from engine.runner.llama.native.model import LoadedModel


class KvRollback:
    """Finds the lengths to which the state of a sequence can be rolled back, and rolls it back."""

    def __init__(self, loaded: LoadedModel, cells: Cells) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self._cells = cells
        self._keeps_partial = loaded.keeps_partial
        self._max_rollback = loaded.max_rollback
        self._n_swa = loaded.n_swa
        self._n_ubatch = loaded.n_ubatch
        self._checkpoints = Checkpoints(loaded, budget(loaded))

    @property
    def truncatable(self) -> bool:
        """Whether a state can be truncated to any shorter prefix."""
        return self._keeps_partial and self._n_swa == 0

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all checkpoints."""
        return self._checkpoints.num_bytes

    def usable(self, source: CachedSequence, length: int) -> int:
        """Return how many of the first `length` tokens are usable: all, or up to a checkpoint."""
        if self._can_truncate(source, length):
            return length
        saved = self._last_checkpoint(source, length)
        return saved.length if saved is not None else 0

    def _can_truncate(self, source: CachedSequence, length: int) -> bool:
        """Whether the sequence has this length or can be truncated to it without a checkpoint."""
        if length == len(source.tokens):
            return not (source.rolled_back and source.in_use)
        if not self._keeps_partial:
            return False
        if self._n_swa > 0:
            oldest = int(self._api.llama_memory_seq_pos_min(self._loaded.memory, source.seq_id))
            return 0 <= oldest <= max(0, length - self._n_swa)
        return True

    def _last_checkpoint(self, source: CachedSequence, length: int) -> Checkpoint | None:
        return within(self._checkpoints.alive(source.checkpoints), length)

    def rewind(self, target: CachedSequence, source: CachedSequence, length: int) -> bool:
        """Roll `target` back to `length` tokens; it has the cells of `source` or is the same sequence."""
        if self._can_truncate(source, length):
            return self._cells.cut(target, length)
        saved = self._last_checkpoint(source, length)
        return saved is not None and saved.length == length and self._restore_checkpoint(target, saved)

    def _restore_checkpoint(self, target: CachedSequence, saved: Checkpoint) -> bool:
        """Restore a checkpoint of a sequence that still has the checkpoint's cells."""
        if not self._checkpoints.put(saved, target.seq_id):
            return False
        target.rollback_tokens, target.rolled_back = 0, False
        return self._cells.cut(target, saved.length)

    def truncate(self, sequence: CachedSequence, length: int) -> bool:
        """Truncate a sequence to its first `length` tokens without a checkpoint; False if this memory cannot."""
        if length >= len(sequence.tokens):
            return True
        if not self._keeps_partial and len(sequence.tokens) - length > sequence.rollback_tokens:
            return False
        if self._n_swa > 0 and not self._can_truncate(sequence, length):
            return False
        if not self._cells.cut(sequence, length):
            return False
        sequence.rollback_tokens, sequence.rolled_back = 0, not self._keeps_partial
        return True

    def computed(self, sequence: CachedSequence, num_tokens: int, *, alone: bool) -> None:
        """Record that a step has added `num_tokens` to the sequence; `alone`: to no other sequence.

        If states are rolled back by copies, llama.cpp drops these copies when it moves a state to another place. It
        does so for other sequences of the same step.
        """
        sequence.rollback_tokens = min(self._max_rollback, num_tokens - 1) if alone else 0
        sequence.rolled_back = False
        if sequence.planned:
            self.save(sequence)

    def plan_checkpoints(self, sequence: CachedSequence, n_prompt: int, branch: int) -> None:
        """Plan the checkpoints of a prompt; `branch` is the length at which another cached text diverges."""
        sequence.planned = checkpoint_lengths(n_prompt, len(sequence.tokens), branch, self._n_ubatch)
        self.save(sequence)

    def save(self, sequence: CachedSequence) -> None:
        """Copy the state if a checkpoint is due at this length."""
        length = len(sequence.tokens)
        while sequence.planned and sequence.planned[0] <= length:
            last = self._last_checkpoint(sequence, length)
            if sequence.planned.pop(0) == length and (last is None or last.length < length):
                saved = self._checkpoints.take(sequence.seq_id, length)
                if saved is not None:
                    sequence.checkpoints = [*self._checkpoints.alive(sequence.checkpoints), saved]

    def after_abort(self, sequence: CachedSequence, tokens: list[int]) -> bool:
        """Keep the computed part of an aborted decode of `tokens`; False: that part is unknown."""
        if not self._keeps_partial:  # the layers' states may have different lengths
            saved = self._last_checkpoint(sequence, len(sequence.tokens))
            return saved is not None and self._restore_checkpoint(sequence, saved)
        reached = int(self._api.llama_memory_seq_pos_max(self._loaded.memory, sequence.seq_id))
        sequence.tokens[:] = tokens[: reached + 1]
        # The last one was computed but never sampled from.
        return len(sequence.tokens) < len(tokens) or self.truncate(sequence, len(tokens) - 1)

    def marks(self, sequence: CachedSequence) -> list[tuple[int, Any]]:
        """Return the checkpoints to store with a state: the first (a common beginning) and the last."""
        alive = self._checkpoints.alive(sequence.checkpoints)
        return [(c.length, c.data) for c in (alive if len(alive) < 3 else (alive[0], alive[-1]))]

    def adopt(self, sequence: CachedSequence, marks: Iterable[tuple[int, Any]]) -> None:
        """Give a sequence the checkpoints that were stored with its state."""
        sequence.checkpoints = [Checkpoint(length, data) for length, data in marks]
        self._checkpoints.adopt(sequence.checkpoints)
