"""Copies of states that cannot be truncated: recurrent states and sliding windows, at useful lengths.

The full-attention part of a sequence stays in its cells and can be truncated to any length. The rest of these
models has only its current state, so a checkpoint stores an earlier one. To roll back, restore the copy and
truncate the cells after it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from engine.runner.llama.cache.state_buffer import pointer, state_buffer
from engine.runner.llama.native.model import LoadedModel

# The next request's prompt usually differs in this prompt's last tokens: the start marker of a response, or an
# empty or dropped reasoning block (7 tokens in Qwen 3's template). One checkpoint is before them.
BEFORE_END: Final = 16
# Distance of checkpoints inside a long prompt. Source: llama-server's spacing.
SPACING: Final = 8192
# Shorter prefixes are faster to compute again than to copy. Source: kv_offload.MIN_STORED_TOKENS.
SHORTEST: Final = 64
# Maximum number of copies per sequence; the newest stay. Source: llama-server stores 32; a request makes two here.
PER_SEQUENCE: Final = 16


@dataclass
class Checkpoint:
    """The state after the first `length` tokens of a sequence.

    `data` is uint8, shared by all sequences that start so.
    """

    length: int
    data: Any
    last_used: int = 0


def checkpoint_lengths(n_prompt: int, n_cached: int, branch: int, n_ubatch: int) -> list[int]:
    """Return the lengths at which to take checkpoints of a prompt, ascending; `n_cached` tokens are computed.

    If hardly anything is new, one is at the end of the cached part. `branch` is the length at which another cached
    text diverges: a third one may diverge there too. This finds, for example, a system prompt before many different
    questions.
    """
    spaced = range(SPACING, n_prompt, SPACING)
    lengths = {branch, max(n_cached, n_prompt - BEFORE_END), n_prompt - BEFORE_END - n_ubatch, *spaced}
    return sorted(p for p in lengths if max(n_cached, SHORTEST) <= p < n_prompt)


def budget(loaded: LoadedModel) -> int:
    """Return the maximum bytes of checkpoints: half of the prefixes' memory, if the model needs checkpoints."""
    return loaded.settings.cache_ram_bytes // 2 if not loaded.keeps_partial or loaded.n_swa > 0 else 0


def within(checkpoints: Iterable[Checkpoint], length: int) -> Checkpoint | None:
    """Return the last checkpoint at or before `length`."""
    return max((c for c in checkpoints if c.length <= length), key=lambda c: c.length, default=None)


class Checkpoints:
    """Creates and restores copies within a byte budget; the least recently used ones are evicted.

    Sequences own them; copies without a sequence no longer count.
    """

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self._flags = loaded.api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        self._budget = budget_bytes
        self._living: WeakValueDictionary[int, Checkpoint] = WeakValueDictionary()
        self._clock = 0

    @property
    def num_bytes(self) -> int:
        return sum(c.data.nbytes for c in self._living.values())

    def take(self, seq_id: int, length: int) -> Checkpoint | None:
        """Copy the current state of a sequence of `length` tokens; None if the budget is too small."""
        size = int(self._api.llama_state_seq_get_size_ext(self._loaded.context, seq_id, self._flags))
        if not 0 < size <= self._budget:
            return None
        data = state_buffer(size)
        context = self._loaded.context
        if self._api.llama_state_seq_get_data_ext(context, pointer(data), size, seq_id, self._flags) != size:
            return None
        checkpoint = Checkpoint(length, data)
        self._note(checkpoint)
        return checkpoint

    def put(self, checkpoint: Checkpoint, seq_id: int) -> bool:
        """Restore a copy as the state of a sequence; after False that sequence is unusable."""
        self._note(checkpoint)
        return bool(
            self._api.llama_state_seq_set_data_ext(
                self._loaded.context, pointer(checkpoint.data), len(checkpoint.data), seq_id, self._flags
            )
        )

    def adopt(self, checkpoints: list[Checkpoint]) -> None:
        """Count checkpoints that were restored from the store."""
        for checkpoint in checkpoints:
            self._note(checkpoint)

    def alive(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Return a sequence's checkpoints that were not evicted, only the newest PER_SEQUENCE."""
        return [c for c in checkpoints if id(c) in self._living][-PER_SEQUENCE:]

    def _note(self, checkpoint: Checkpoint) -> None:
        self._clock += 1
        checkpoint.last_used = self._clock
        self._living[id(checkpoint)] = checkpoint
        total = self.num_bytes
        for old in sorted(self._living.values(), key=lambda c: c.last_used):
            if total <= self._budget or old is checkpoint:
                return
            total -= old.data.nbytes
            del self._living[id(old)]
