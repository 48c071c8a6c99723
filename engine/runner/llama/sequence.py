"""A request with its cells, images and drafts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from engine.core.types import Event, PromptProgress, Started
from engine.runner.generation.draft_length import DraftBalance
from engine.runner.generation.sequence import Sequence
from engine.runner.llama.cache.cached_sequence import CachedSequence
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.vision.vision import Media
from engine.runner.load_limits import STEADY_ROWS

# How often the progress of a prefill is sent: what a person can follow.
PROGRESS_S: Final = 0.2
# An answer that comes this close to the end of a context asks for a larger one: what is decided takes milliseconds.
ASK_AHEAD: Final = 64


@dataclass(eq=False)  # as its parent
class LlamaSequence(Sequence):
    """One generation in llama.cpp's cache.

    `cache` is set while the sequence holds cells; `len(cache.tokens)` of `tokens` are computed. `media` are the
    images among the prompt's tokens. `forgotten` tokens were taken out of the middle by a context shift.
    `most` is what `limit` would be in the largest context that this model may have; `asked` for a larger one.
    `scored` rows of the running step, from `row` on, belong to its prompt. While it is `steady` it has run alone,
    in steps whose shapes depend on nothing but its own tokens.
    """

    media: Media | None = None
    cache: CachedSequence | None = None
    flushed_at: float = 0.0
    forgotten: int = 0
    most: int = 0
    asked: bool = False
    skipped: bool = False
    row: int = -1
    scored: int = 0
    steady: bool = False
    balance: DraftBalance = field(default_factory=DraftBalance)
    last_accepted: int = 0

    @property
    def repeatable(self) -> bool:
        """The client expects the same answer each time, or prepares one that shall be so.

        Other side and background work shall not evict chats, nor compute their texts again.
        """
        request = self.request
        chosen = request.sampling.seed is not None or (self.sampler.greedy and request.repeats)
        prepares = request.priority == "side" and self.limit <= self.n_prompt + 1
        return chosen and (prepares or request.priority in {"interactive", "batch"})

    def unsteady(self) -> None:
        """Another one runs beside it from now on."""
        if self.steady:
            self.steady, self.balance = False, DraftBalance()  # counted in steps so far, from now on in seconds

    def until_steady(self, start: int) -> int:
        """Rows from there to where the steady step ends."""
        spans = self.media.spans if self.media is not None else ()
        begin = max((span.end for span in spans if span.end <= start), default=0)
        return STEADY_ROWS - (start - begin) % STEADY_ROWS

    @property
    def n_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) + self.forgotten - self.n_prompt

    @property
    def over(self) -> bool:
        """The answer has its full length, or leads nowhere; at the end of a context that may grow it waits."""
        return self.runaway is not None if self.waits_for_room else super().over

    @property
    def waits_for_room(self) -> bool:
        """The context is full, and whether it grows is not decided."""
        return self.asked and self.limit <= len(self.tokens) < self.most

    def lacks_room(self) -> bool:
        """Whether it should ask for a larger context now, ahead of the end of this one."""
        near = self.limit < self.most and len(self.tokens) >= self.limit - ASK_AHEAD and self.n_generated > 0
        return near and not self.asked

    @property
    def shareable(self) -> list[int]:
        """Tokens whose cells may come from other requests; none if the client wants the prompt computed anew."""
        return self.tokens if self.request.cache_prompt else []

    @property
    def n_missing(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.tokens) - (len(self.cache.tokens) if self.cache else 0)

    @property
    def decoding(self) -> bool:
        """All but the newest token are computed and an answer has begun."""
        return self.n_generated > 0 and self.n_missing == 1

    @property
    def key(self) -> Key:
        """Sequences of one key may share computed prefixes; where images shift positions, nobody may.

        How long a prompt takes, and `cached_tokens`, would tell one owner what another one has sent.
        """
        request = self.request
        owned: Key = (*request.lora, (f"owner {request.owner}", 0.0)) if request.owner else request.lora
        return (*owned, (f"pictures of request {self.id}", 0.0)) if self.shifted else owned

    @property
    def shifted(self) -> bool:
        """Positions differ from indices into `tokens`: its cells can neither be shared nor cut."""
        return self.media is not None and self.media.shifted

    @property
    def may_draft(self) -> bool:
        """Tokens may be drafted for it: neither texts nor draft models say what follows images or a cut."""
        return self.media is None and not self.forgotten and self.request.speculate is not False

    def position(self, index: int) -> int:
        """The position that the model counts for one of `tokens`."""
        return index if self.media is None else self.media.position(index)

    def close(self) -> None:
        """Free what is native."""
        super().close()
        if self.media is not None:
            self.media.close()

    def progress(self, now: float) -> PromptProgress | None:
        """How much of the prompt is computed, where that was asked for, is due and is not the whole."""
        if (
            not self.request.progress
            or self.n_generated
            or self.cache is None
            or now - self.flushed_at < PROGRESS_S
        ):
            return None
        self.flushed_at = now
        done = len(self.cache.tokens)
        return PromptProgress(processed=done, prompt_tokens=self.n_prompt, cached_tokens=self.cached_tokens)


def prefill_progress(sequences: Iterable[LlamaSequence], now: float) -> Iterator[tuple[int, Event]]:
    """The progress events that are due, for clients that asked for them."""
    for sequence in sequences:
        progress = sequence.progress(now)
        if progress is not None:
            yield sequence.id, progress


def begun_for_watchers(outputs: Iterable[object], sequences: Iterable[LlamaSequence]) -> bool:
    """Whether a client that asked for progress gets the start of its request before the step, which may be long."""
    watched = {sequence.id for sequence in sequences if sequence.request.progress}
    return any(isinstance(o, tuple) and o[0] in watched and isinstance(o[1], Started) for o in outputs)
