"""Requests whose tokens depend on nothing but themselves, one after the other in a context of their own.

What a kernel computes depends, in its last bits, on the shape of the step, on the cells a text lies in and on the
number of threads. Here all three are the same whatever else was asked: a prompt is computed from the first cell on
in chunks of one size, an answer in steps of one row, and threads are not tuned. What stays cached of a prompt was
computed in whole chunks, so it holds the bits that computing it again would give.
"""

from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.scheduler import Scheduler
from engine.runner.llama.cache.cached_sequence import CachedSequence
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.sequence import LlamaSequence


class ExactScheduler(Scheduler):
    """One sequence of steps of one shape. `loaded` is what `exact_context` made."""

    def __init__(self, loaded: LoadedModel, vocabulary: LlamaVocabulary, adapters: Adapters) -> None:
        nothing = PrefixStore(0, 0, None, "")
        super().__init__(loaded, vocabulary, nothing, adapters.within(loaded), fixed=True)

    def _cells_for(self, sequence: LlamaSequence) -> CachedSequence | None:
        source, length = self._kv.sharing.best(
            sequence.tokens if self._is_cacheable(sequence) else [], sequence.key
        )
        length = self._whole(length)
        if source is None or not length or not self._kv.truncate(source, length):
            return self._kv.acquire([], sequence.key)
        source.in_use = True
        return source

    def _cacheable(self, sequence: LlamaSequence) -> int:
        return self._whole(sequence.n_prompt) if self._is_cacheable(sequence) else 0

    def _is_cacheable(self, sequence: LlamaSequence) -> bool:
        """Its prompt is computed in whole chunks from the beginning, and cells can be cut between two of them."""
        request = sequence.request
        return (
            request.cache_prompt and not request.prompt_logprobs and not sequence.forgotten and self._kv.truncatable
        )

    def _whole(self, length: int) -> int:
        """As much of it as whole chunks of a prompt hold."""
        return length - length % self._loaded.n_batch
