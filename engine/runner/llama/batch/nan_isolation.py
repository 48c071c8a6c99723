"""What happens when logits are not numbers: nobody but the request that causes it may suffer.

A cell that holds NaN spoils every sequence of the same cache, since a masked value still counts as 0 times NaN in
some kernels (seen on the processor, docs/log.md). So the whole cache is wiped, all requests are computed again, and
those that showed NaN one by one and alone, without any stored prefix: who shows it again is to blame.
"""

from engine.runner.llama.cache.cached_sequence import CachedSequence
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.sequence import LlamaSequence


class Quarantine:
    """The requests under suspicion, in the order in which they are examined."""

    def __init__(self, kv: KVCache) -> None:
        self._kv = kv
        self._suspects: list[LlamaSequence] = []

    @property
    def open(self) -> bool:
        """Somebody is under suspicion: nobody else may run."""
        return bool(self._suspects)

    def isolate(self, not_finite: list[LlamaSequence]) -> list[LlamaSequence]:
        """Sequences whose logits are no numbers: those to blame. Everybody else is put under suspicion or cleared.

        The caller must take all sequences off the cache before the next decode.
        """
        offending = [s for s in not_finite if s in self._suspects]
        self._suspects = [s for s in self._suspects if s not in offending]
        self._suspects += [s for s in not_finite if s not in offending]
        return offending

    def examine(self) -> tuple[LlamaSequence, CachedSequence] | None:
        """The next one to run alone, with an empty sequence of the cache; None while there is no free one."""
        sequence = self._suspects[0]
        self._kv.spilling.forget(sequence.tokens, sequence.key)
        cache = self._kv.acquire([], sequence.key)
        return None if cache is None else (sequence, cache)

    def clear(self, sequence: LlamaSequence) -> None:
        """It showed numbers, or it ended."""
        if sequence in self._suspects:
            self._suspects.remove(sequence)
