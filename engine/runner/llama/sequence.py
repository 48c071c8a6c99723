"""A request in llama.cpp, with its cells, images and drafts."""

from bisect import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from engine.core.types import Event, PromptProgress, Started
from engine.runner.generation.draft_length import DraftBalance
from engine.runner.generation.sequence import Sequence
from engine.runner.llama.cache.cells import CachedSequence
from engine.runner.llama.cache.kv import KVCache
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.vision.vision import Media
from engine.runner.load_limits import MAX_DRAFT, STEADY_ROWS
from engine.runner.protocol import SampledRow

# Interval of prefill progress events, short enough for a progress display.
PROGRESS_S: Final = 0.2
# A response this near to the end of a context requests a larger one in advance, because deciding takes
# milliseconds.
ASK_AHEAD: Final = 64


class PrefillEstimate:
    """Estimates how long the rest of a prompt takes. A token takes longer the more tokens precede it."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []

    def left_s(self, done: int, total: int, now: float) -> float:
        """Return the seconds for the rest of `total` tokens, of which `done` are computed `now`; 0: unknown."""
        if self._marks and done < self._marks[-1][0]:  # it was preempted by another request
            self._marks.clear()
        if not self._marks or done > self._marks[-1][0]:
            self._marks.append((done, now))
        first = self._marks[0]
        half = bisect(self._marks, ((first[0] + done) / 2, now))
        if len(self._marks) < 2:
            return 0.0
        middle = self._marks[min(max(half, 1), len(self._marks) - 1) - 1]
        later_s = (now - middle[1]) / (done - middle[0])
        more_s = 0.0
        if middle is not first:
            earlier_s = (middle[1] - first[1]) / (middle[0] - first[0])
            more_s = max(0.0, later_s - earlier_s) / ((done - first[0]) / 2)
        return (total - done) * (later_s + more_s * (total - middle[0]) / 2)


@dataclass(eq=False)  # same equality as the parent class
class LlamaSequence(Sequence):
    """One generation in llama.cpp's cache.

    `cache` is set while the sequence has cells; `len(cache.tokens)` of `tokens` are computed. `media` are the
    images in the prompt. `saved` is the length at which its state was last stored or restored. `forgotten` tokens
    were removed from the middle by a context shift. `most` is the `limit` in the largest context that this model
    may have; `asked` is set after a request for a larger one, `wants_cells` after one for cells that others use.
    `scored` rows of the current step, from `row` on, belong to its prompt. `recorded_rows` are to be computed
    again. While `steady` it has run alone, in steps whose shapes depend only on its own tokens.
    """

    media: Media | None = None
    cache: CachedSequence | None = None
    flushed_at: float = 0.0
    forgotten: int = 0
    saved: int = 0
    most: int = 0
    asked: bool = False
    wants_cells: bool = False
    skipped: bool = False
    row: int = -1
    scored: int = 0
    steady: bool = False
    balance: DraftBalance = field(default_factory=DraftBalance)
    prefill: PrefillEstimate = field(default_factory=PrefillEstimate)
    last_accepted: int = 0
    recorded_rows: list[SampledRow] = field(default_factory=list)

    @property
    def repeatable(self) -> bool:
        """Whether the client expects the same response each time, or prepares such a request.

        Other side and background requests must not evict chats or make them compute their texts again.
        """
        request = self.request
        chosen = request.sampling.seed is not None or (self.sampler.greedy and request.repeats)
        prepares = request.priority == "side" and self.limit <= self.n_prompt + 1
        return chosen and (prepares or request.priority in {"interactive", "batch"})

    def unsteady(self) -> None:
        """Note that another request now runs at the same time."""
        if self.steady:
            self.steady, self.balance = False, DraftBalance()  # counted in steps so far, from now on in seconds

    def until_steady(self, start: int) -> int:
        """Return the number of rows from `start` to the end of the steady step."""
        spans = self.media.spans if self.media is not None else ()
        begin = max((span.end for span in spans if span.end <= start), default=0)
        return STEADY_ROWS - (start - begin) % STEADY_ROWS

    @property
    def n_generated(self) -> int:
        """Number of response tokens so far."""
        return len(self.tokens) + self.forgotten - self.n_prompt

    @property
    def over(self) -> bool:
        """Whether the response has its full length or the loop guard ended it; it waits if the context may grow."""
        return self.runaway is not None if self.waits_for_room else super().over

    @property
    def waits_for_room(self) -> bool:
        """Whether the context is full and the decision about its growth is pending."""
        return self.asked and self.limit <= len(self.tokens) < self.most

    def lacks_room(self) -> bool:
        """Whether it should request a larger context now, before the end of this one."""
        near = self.limit < self.most and len(self.tokens) >= self.limit - ASK_AHEAD and not self.asked
        return near and self.n_generated > 0

    @property
    def shareable(self) -> list[int]:
        """Tokens whose cells may come from other requests; empty if the client disabled the prompt cache."""
        return self.tokens if self.request.cache_prompt else []

    @property
    def n_missing(self) -> int:
        """Number of tokens whose keys and values are not in the cache yet."""
        return len(self.tokens) - (len(self.cache.tokens) if self.cache is not None else 0)

    @property
    def decoding(self) -> bool:
        """Whether all but the newest token are computed and generation has started."""
        return self.n_missing == 1 and self.n_generated > 0

    @property
    def key(self) -> Key:
        """Sequences with the same key may share computed prefixes; if images shift positions, none may.

        Otherwise the prefill time and `cached_tokens` would reveal to one owner what another one has sent.
        """
        request = self.request
        owned: Key = (*request.lora, (f"owner {request.owner}", 0.0)) if request.owner else request.lora
        return (*owned, (f"pictures of request {self.id}", 0.0)) if self.shifted else owned

    @property
    def shifted(self) -> bool:
        """Whether positions differ from indices of `tokens`, so that cells can be neither shared nor truncated."""
        return self.media is not None and self.media.shifted

    @property
    def may_draft(self) -> bool:
        """Whether to draft tokens: drafters cannot predict what follows images or a context shift."""
        return self.media is None and not self.forgotten and self.request.speculate is not False

    def position(self, index: int) -> int:
        """Return the model's position for an index into `tokens`."""
        return index if self.media is None else self.media.position(index)

    def close(self) -> None:
        """Free native memory."""
        super().close()
        if self.media is not None:
            self.media.close()

    def progress(self, now: float, *, busy: bool) -> PromptProgress | None:
        """Return the prefill progress if it is due, else None. `busy`: other programs use the CPU."""
        if self.cache is None or now - self.flushed_at < PROGRESS_S:
            return None
        self.flushed_at = now
        done = len(self.cache.tokens)
        return PromptProgress(
            processed=done,
            prompt_tokens=self.n_prompt,
            cached_tokens=self.cached_tokens,
            left_s=round(self.prefill.left_s(done, self.n_prompt, now), 1),
            busy=busy,
        )


def prefill_progress(sequences: Iterable[LlamaSequence], now: float, *, busy: bool) -> list[tuple[int, Event]]:
    """Return the progress events that are due. `busy`: other programs use the CPU."""
    events: list[tuple[int, Event]] = []
    for sequence in sequences:
        if sequence.request.progress and not sequence.n_generated:
            progress = sequence.progress(now, busy=busy)
            if progress is not None:
                events.append((sequence.id, progress))
    return events


def waits_for_choice(
    sequence: LlamaSequence, running: list[LlamaSequence], waiting: Iterable[LlamaSequence]
) -> bool:
    """Whether only another choice of its response runs, so that it repeats if it runs after that one."""
    group = sequence.request.choice_of
    if not group or not sequence.repeatable or len(running) != 1 or not running[0].steady:
        return False
    return all(s.request.choice_of == group for s in (*running, *waiting))


def begun_for_watchers(outputs: Collection[object], sequences: Iterable[LlamaSequence]) -> bool:
    """Whether a client that wants progress must get its start event before the step, which may be long."""
    if not outputs:
        return False
    watched = {sequence.id for sequence in sequences if sequence.request.progress}
    return any(isinstance(o, tuple) and o[0] in watched and isinstance(o[1], Started) for o in outputs)


# Context shift: continues when the context is full by discarding the middle and computing the rest again.
# Moving computed keys to new positions would be faster. But only some models support it, the result is not what the
# model would have computed, and it would move cells that other sequences share.

# The prompt's beginning, up to this fraction of the context, stays: it has the instructions.
KEPT_FRAC: Final = 0.25


def is_full(sequence: LlamaSequence, n_ctx: int) -> bool:
    """Whether a step with a draft may no longer fit."""
    return sequence.request.context_shift and len(sequence.tokens) >= n_ctx - MAX_DRAFT - 1


def shift(sequence: LlamaSequence, kv: KVCache, n_ctx: int) -> None:
    """Discard the older half of the tokens after the beginning that stays; compute the rest again from there."""
    keep = min(sequence.n_prompt, int(n_ctx * KEPT_FRAC))
    count = (len(sequence.tokens) - keep) // 2
    del sequence.tokens[keep : keep + count]
    sequence.limit -= count
    sequence.most -= count
    sequence.forgotten += count
    if sequence.cache is not None:
        kv.truncate(sequence.cache, keep, or_empty=True)
