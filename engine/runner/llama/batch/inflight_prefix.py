"""Lets one request compute a common beginning of several prompts while the others wait for it.

At admission a request takes the computed part of other prompts; this module handles the time after that. In each
step the first request in prefill order computes. Requests whose next token it computes wait for this one step and
then take the cells. So a request waits only for tokens that are being computed in this step: a leader that is
cancelled or overtaken delays no other request, and the next one continues with what is computed.
"""

from typing import Final

from engine.runner.llama.batch.step_budget import StepBudget, usable_prefix
from engine.runner.llama.cache.cells import common_prefix
from engine.runner.llama.cache.checkpoints import SHORTEST
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.cache.kv_offload import MIN_GAIN
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.sequence import LlamaSequence

# Prompt tokens that take as long as the fixed cost of a step, until measured: waiting for a step to take fewer
# tokens costs more than computing them. Measured: log-archive.md, engine, rows of a step.
STEP_ROWS: Final = 8


class InflightPrefixes:
    """Tracks which prompts have a common beginning. All calls come from the scheduler's thread."""

    def __init__(self, loaded: LoadedModel, kv: KVCache, pace: StepBudget) -> None:
        self._loaded = loaded
        self._kv = kv
        self._pace = pace
        self._common: dict[tuple[int, int], int] = {}

    def join(self, sequence: LlamaSequence, running: list[LlamaSequence]) -> None:
        """Find where an admitted request diverges from the running ones, and plan checkpoints there."""
        if not _shares(sequence):
            return
        for other in running:
            if other is sequence or not _shares(other) or other.key != sequence.key:
                continue
            common = common_prefix(other.tokens[: other.n_prompt], sequence.tokens)
            if common:
                self._common[_pair(sequence, other)] = common
            if not self._kv.truncatable:
                for one in (sequence, other):
                    if one.cache is not None and common >= SHORTEST:
                        one.cache.plan_checkpoint(common)

    def leave(self, sequence: LlamaSequence, running: list[LlamaSequence]) -> int:
        """Let the other requests take what an ending request has computed. Returns the tokens gained."""
        gained = sum(self._take(other, sequence, leaving=True) for other in running) if self._common else 0
        self._common = {pair: n for pair, n in self._common.items() if sequence.id not in pair}
        return gained

    def waits(self, sequence: LlamaSequence, prefilled: list[LlamaSequence]) -> bool:
        """Whether others compute in this step what this request needs next, and waiting saves more than a step."""
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
        """Let every request take what others computed in this step. Returns the tokens gained."""
        if not self._common:
            return 0
        prefilling = [s for s in running if s.n_missing > 0]  # of answers, everything is computed before sampling
        return sum(self._take(one, other) for one in prefilling for other in running)

    def _take(self, sequence: LlamaSequence, source: LlamaSequence, *, leaving: bool = False) -> int:
        """Give a request in prefill what another one has computed of their common beginning."""
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
        """Return the leading tokens that both requests compute; a request's last token is always its own."""
        if sequence.forgotten or other.forgotten:
            return 0
        return min(self._common.get(_pair(sequence, other), 0), len(sequence.tokens) - 1)


def _pair(one: LlamaSequence, other: LlamaSequence) -> tuple[int, int]:
    return (one.id, other.id) if one.id < other.id else (other.id, one.id)


def _shares(sequence: LlamaSequence) -> bool:
    """Whether its cells correspond to its tokens, and it may use cells of others."""
    request = sequence.request
    return request.cache_prompt and not request.prompt_logprobs and sequence.media is None
