"""Runs deterministic requests one after the other in a separate context.

The last bits of a kernel's result depend on the shape of the step, on the cells of the text, and on the number of
threads. Here all three are independent of other requests. A prompt is computed from the first cell on in chunks of
one size, a response in steps of one row. The number of threads is fixed. The cached part of a prompt was computed
in whole chunks, so it has the same bits as if computed again.
"""

from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.scheduler import Scheduler
from engine.runner.llama.cache.cells import CachedSequence
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.sequence import LlamaSequence


class ExactScheduler(Scheduler):
    """Runs one sequence in steps of one shape. `loaded` comes from `exact_context`."""

    def __init__(self, loaded: LoadedModel, vocabulary: LlamaVocabulary, adapters: Adapters) -> None:
        nothing = PrefixStore(0, 0, None, "")
        super().__init__(loaded, vocabulary, nothing, adapters.within(loaded), fixed=True)

    def _cells_for(self, sequence: LlamaSequence) -> CachedSequence | None:
        source, length = self._kv.sharing.best(
            sequence.tokens if self._is_cacheable(sequence) else [], sequence.key
        )
        length = self._whole_chunks(length)
        if source is None or not length or not self._kv.truncate(source, length):
            return self._kv.acquire([], sequence.key)
        source.in_use = True
        return source

    def _cacheable(self, sequence: LlamaSequence) -> int:
        return self._whole_chunks(sequence.n_prompt) if self._is_cacheable(sequence) else 0

    def _is_cacheable(self, sequence: LlamaSequence) -> bool:
        """Whether the prompt is computed in whole chunks from its start, and cells can be truncated there."""
        request = sequence.request
        return (
            request.cache_prompt and not request.prompt_logprobs and not sequence.forgotten and self._kv.truncatable
        )

    def _whole_chunks(self, length: int) -> int:
        """Return the part of `length` that consists of whole prompt chunks."""
        return length - length % self._loaded.n_batch
