"""Prompts that begin alike while nobody has computed their beginning: one request computes it, the others follow.

A request takes what others have computed when it is admitted; this is what happens after that. In each step whoever
comes first in prefill order computes. Those whose next token it computes for them wait for this one step, and take
the cells then. So nobody waits for something that is not being computed at that moment: a leader that is cancelled
or overtaken holds up no one, and whoever is first goes on with what there is.
"""

from typing import Final

from engine.runner.llama.batch.step_budget import Pace, usable_prefix
from engine.runner.llama.cache.cached_sequence import common_prefix
from engine.runner.llama.cache.checkpoints import SHORTEST
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.cache.kv_offload import MIN_GAIN
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.sequence import LlamaSequence

# Tokens of a prompt that take as long as what every step costs beside its rows, until measured: waiting for a step
# and taking fewer costs more than computing them. Measured: docs/log.md, engine, rows of a step.
STEP_ROWS: Final = 8


class Following:
    """Knows which prompts begin alike. All calls from the scheduler's thread."""

    def __init__(self, loaded: LoadedModel, kv: KVCache, pace: Pace) -> None:
        self._loaded = loaded
        self._kv = kv
        self._pace = pace
        self._common: dict[tuple[int, int], int] = {}

    def join(self, sequence: LlamaSequence, running: list[LlamaSequence]) -> None:
        """A request was admitted: find out where it parts from those that run, and keep their states there."""
        if not _shares(sequence):
            return
        for other in running:
            if other is sequence or not _shares(other) or other.key != sequence.key:
                continue
            common = common_prefix(other.tokens[: other.n_prompt], sequence.tokens)
            self._common[_pair(sequence, other)] = common
            if not self._kv.truncatable:
                for one in (sequence, other):
                    if one.cache is not None and common >= SHORTEST:
                        one.cache.plan_checkpoint(common)

    def leave(self, sequence: LlamaSequence, running: list[LlamaSequence]) -> int:
        """A request ends: who follows takes what it had computed. Returns tokens gained."""
        gained = sum(self._take(other, sequence, leaving=True) for other in running) if self._common else 0
        self._common = {pair: n for pair, n in self._common.items() if sequence.id not in pair}
        return gained

    def waits(self, sequence: LlamaSequence, prefilled: list[LlamaSequence]) -> bool:
        """Others compute in this step what this one needs next, and that saves more than a step costs."""
        assert sequence.cache is not None
        min_gain = max(MIN_GAIN, self._pace.step_rows(STEP_ROWS))
        have = len(sequence.cache.tokens)
        for other in prefilled:
            assert other.cache is not None
            common, at = self._useful(sequence, other), len(other.cache.tokens)
            if at >= common:
                continue
            if self._kv.truncatable:
                if common - max(have, at) >= min_gain:
                    return True
            elif common - have >= min_gain and common in other.cache.planned:  # it stops there
                return True
        return False

    def step_done(self, running: list[LlamaSequence]) -> int:
        """A step was computed: everybody takes what others computed for it. Returns tokens gained."""
        return sum(self._take(one, other) for one in running for other in running) if self._common else 0

    def _take(self, sequence: LlamaSequence, source: LlamaSequence, *, leaving: bool = False) -> int:
        """Let one that is still in prefill have what another has computed of their common beginning."""
        common = self._useful(sequence, source)
        if not common or sequence.cache is None or source.cache is None or sequence.decoding:
            return 0
        length = min(common, len(source.cache.tokens))
        if not self._kv.truncatable and length != common and not (leaving and length == len(source.cache.tokens)):
            return 0
        if self._loaded.keeps_partial:
            length = usable_prefix(self._loaded.settings, length, len(sequence.tokens))
        gained = self._kv.sharing.follow(sequence.cache, source.cache, length, MIN_GAIN)
        sequence.cached_tokens += gained
        return gained

    def _useful(self, sequence: LlamaSequence, other: LlamaSequence) -> int:
        """Leading tokens of a request that another one computes too; the last is always its own to compute."""
        if sequence.forgotten or other.forgotten:
            return 0
        return min(self._common.get(_pair(sequence, other), 0), len(sequence.tokens) - 1)


def _pair(one: LlamaSequence, other: LlamaSequence) -> tuple[int, int]:
    return (one.id, other.id) if one.id < other.id else (other.id, one.id)


def _shares(sequence: LlamaSequence) -> bool:
    """Its cells stand for its tokens, and it may use those of others."""
    request = sequence.request
    return request.cache_prompt and not request.prompt_logprobs and sequence.media is None
