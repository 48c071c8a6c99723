"""Runs deterministic requests one after the other in a separate context.

The last bits of a kernel's result depend on the shape of the step, on the cells of the text, and on the number of
threads. Here all three are independent of other requests. A prompt is computed from the first cell on in chunks of
one size, a response in steps of one row. The number of threads is fixed. The cached part of a prompt was computed
in whole chunks, so it has the same bits as if computed again.
"""

import sys

import msgspec

from engine.runner.llama.batch.adapters import Adapters
from engine.runner.llama.batch.scheduler import Scheduler
from engine.runner.llama.cache.cells import CachedSequence
from engine.runner.llama.cache.prefix_store import PrefixStore
from engine.runner.llama.native.model import LoadedModel, LoadFailed
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.protocol import Fault, LoadSettings


class ExactScheduler(Scheduler):
    """Runs one sequence in steps of one shape. `loaded` comes from `exact_context`."""

    def __init__(self, loaded: LoadedModel, vocabulary: LlamaVocabulary, adapters: Adapters) -> None:
        nothing = PrefixStore(0, 0, None, "")
        super().__init__(loaded, vocabulary, nothing, adapters.within(loaded), fixed=True)

    @property
    def n_ctx(self) -> int:
        """Tokens of its context, which may be fewer than those of the other one after `follow`."""
        return self._loaded.n_ctx

    def follow(self, settings: LoadSettings, *, through_disk: bool) -> list[Fault]:
        """Resize the context to the new size of the other one. Returns Faults of requests that cannot run.

        If there is not enough memory, it keeps its size, and no request of it waits for a larger one.
        """
        loaded, n_ctx = self._loaded, settings.n_ctx
        loaded.settings = msgspec.structs.replace(loaded.settings, max_ctx=settings.max_ctx)
        try:
            return self.resize(n_ctx, n_ctx, through_disk=through_disk)[1]
        except LoadFailed as error:
            sys.stderr.write(f"the context of deterministic requests keeps its size: {error}\n")
        loaded.settings = msgspec.structs.replace(loaded.settings, max_ctx=loaded.n_ctx)
        for sequence in self._by_id.values():
            sequence.most = sequence.limit
        return self.refuse_parked()

    def close(self) -> None:
        """Free the context."""
        self._loaded.api.llama_free(self._loaded.context)

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
