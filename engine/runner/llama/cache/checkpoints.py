"""Copies of what cannot be stepped back: recurrent states and sliding windows, at lengths worth returning to.

The full-attention part of a sequence stays in its cells and can be cut to any length. The rest of these models only
knows "now"; a checkpoint is its "then". Going back is: put the copy in, and cut the cells behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from engine.runner.llama.cache.state_buffer import pointer, state_buffer
from engine.runner.llama.native.model import LoadedModel

# A prompt's last tokens are where the next turn's rendering departs from it: the mark that opens an answer, an
# empty or dropped reasoning block (7 tokens in Qwen 3's template). One checkpoint lies before them.
BEFORE_END: Final = 16
# Distance of checkpoints inside a long prompt. Source: llama-server's spacing.
SPACING: Final = 8192
# Shorter prefixes are computed again sooner than they are copied. Source: spilling.MIN_STORED_TOKENS.
SHORTEST: Final = 64
# Newest copies a sequence keeps. Source: llama-server keeps 32; a turn makes two here.
PER_SEQUENCE: Final = 16


@dataclass
class Checkpoint:
    """The state behind the first `length` tokens of a sequence: `data` uint8, shared by all who begin so."""

    length: int
    data: Any
    last_used: int = 0


def checkpoint_lengths(n_prompt: int, n_cached: int, branch: int, n_ubatch: int) -> list[int]:
    """Lengths of a prompt of `n_prompt` tokens at which to take checkpoints, ascending; `n_cached` are computed.

    Where hardly anything is new, one is the end of what is cached.
    `branch` is where another cached text diverges: a third one may follow it. (A system prompt before many
    different questions is found like this.)
    """
    spaced = range(SPACING, n_prompt, SPACING)
    wanted = {branch, max(n_cached, n_prompt - BEFORE_END), n_prompt - BEFORE_END - n_ubatch, *spaced}
    return sorted(p for p in wanted if max(n_cached, SHORTEST) <= p < n_prompt)


def budget(loaded: LoadedModel) -> int:
    """Bytes that checkpoints may take: half of the prefixes' memory, where the model needs them."""
    return loaded.settings.cache_ram_bytes // 2 if not loaded.keeps_partial or loaded.n_swa > 0 else 0


def within(checkpoints: Iterable[Checkpoint], length: int) -> Checkpoint | None:
    """The last one at or before `length`."""
    return max((c for c in checkpoints if c.length <= length), key=lambda c: c.length, default=None)


class Checkpoints:
    """Makes and uses copies within a budget of bytes; the least recently used give way.

    Sequences own them; what no sequence has any more counts no longer.
    """

    def __init__(self, loaded: LoadedModel, budget_bytes: int) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self._flags = loaded.api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        self._budget = budget_bytes
        self._held: WeakValueDictionary[int, Checkpoint] = WeakValueDictionary()
        self._clock = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(c.data.nbytes for c in self._held.values())

    def take(self, seq_id: int, length: int) -> Checkpoint | None:
        """Copy the present state of a sequence of `length` tokens; None when the budget has no room for one."""
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
        """Make it the present state of a sequence; False leaves that sequence unusable."""
        self._note(checkpoint)
        return bool(
            self._api.llama_state_seq_set_data_ext(
                self._loaded.context, pointer(checkpoint.data), len(checkpoint.data), seq_id, self._flags
            )
        )

    def adopt(self, checkpoints: list[Checkpoint]) -> None:
        """Count those that came from the store."""
        for checkpoint in checkpoints:
            self._note(checkpoint)

    def alive(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Those of a sequence that were not given up, the newest PER_SEQUENCE of them."""
        return [c for c in checkpoints if id(c) in self._held][-PER_SEQUENCE:]

    def _note(self, checkpoint: Checkpoint) -> None:
        self._clock += 1
        checkpoint.last_used = self._clock
        self._held[id(checkpoint)] = checkpoint
        total = self.num_bytes
        for old in sorted(self._held.values(), key=lambda c: c.last_used):
            if total <= self._budget or old is checkpoint:
                return
            total -= old.data.nbytes
            del self._held[id(old)]
