"""One request while it runs."""

import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from engine.runner.llama.batch.constrain import TokenConstraint
from engine.runner.llama.batch.effort import effort
from engine.runner.llama.batch.sampler import Sampler
from engine.runner.llama.batch.text import TextStream
from engine.runner.llama.batch.thinking import ReasoningLimit
from engine.runner.llama.cache.cached_sequence import CachedSequence
from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.speculate.drafting import NgramDrafter
from engine.runner.llama.speculate.payoff import Balance
from engine.runner.llama.vision.vision import Media
from engine.runner.protocol import INITIAL_CREDIT
from engine.runner.runaway import NoiseWatch, RepeatWatch
from engine.types import (
    Delta,
    Done,
    Event,
    FinishReason,
    GenerationRequest,
    PromptProgress,
    Runaway,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)

# How often the reading of a prompt is told: what a person can follow.
PROGRESS_S: Final = 0.2


@dataclass(eq=False)  # two of them are the same only if they are one
class Sequence:
    """State of one generation. `tokens` are prompt and answer; `n_prompt` of them are the client's prompt.

    `cache` is set while the sequence holds cells; `len(cache.tokens)` of `tokens` are computed. `media` are the
    pictures among the prompt's tokens. `forgotten` tokens were taken out of the middle by a context shift.
    `scored` rows of the running step, from `row` on, belong to its prompt. `own_s` of the `all_s` seconds of all
    steps so far were its share.
    """

    id: int
    request: GenerationRequest
    tokens: list[int]
    n_prompt: int
    limit: int
    sampler: Sampler
    text: TextStream
    constraint: TokenConstraint | None = None
    media: Media | None = None
    submitted: float = field(default_factory=time.monotonic)
    cache: CachedSequence | None = None
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    own_s: float = 0.0
    all_s: float = 0.0
    told: float = 0.0
    gaps_s: "array[float]" = field(default_factory=lambda: array("f"))
    cached_tokens: int = 0
    forgotten: int = 0
    announced: bool = False
    cancelled: bool = False
    passed_over: bool = False
    credit: int = INITIAL_CREDIT
    thinking: ReasoningLimit | None = None
    row: int = -1
    scored: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    drafter: NgramDrafter = field(default_factory=NgramDrafter)
    balance: Balance = field(default_factory=Balance)
    draft: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    last_accepted: int = 0
    pending_text: str = ""
    pending_tokens: list[int] = field(default_factory=list)
    pending_logprobs: list[TokenLogprob] = field(default_factory=list)
    repeats: RepeatWatch | None = None
    noise: NoiseWatch | None = None

    @property
    def n_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) + self.forgotten - self.n_prompt

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
        """Sequences of one key may share computed prefixes; where pictures shift positions, nobody may."""
        if self.shifted:
            return (*self.request.lora, (f"pictures of request {self.id}", 0.0))
        return self.request.lora

    @property
    def shifted(self) -> bool:
        """Positions differ from places in `tokens`: its cells can neither be shared nor cut."""
        return self.media is not None and self.media.shifted

    @property
    def may_guess(self) -> bool:
        """Tokens may be drafted for it: neither texts nor draft models say what follows pictures or a cut."""
        return self.media is None and not self.forgotten and self.request.speculate is not False

    def position(self, place: int) -> int:
        """The position that the model counts for one of `tokens`."""
        return place if self.media is None else self.media.position(place)

    def close(self) -> None:
        """Free what is native."""
        self.sampler.close()
        if self.media is not None:
            self.media.close()

    def __post_init__(self) -> None:
        if not self.request.stream:
            self.credit = 0
        if self.request.loop_guard:
            self.repeats, self.noise = RepeatWatch(), NoiseWatch()

    @property
    def runaway(self) -> Runaway | None:
        """What the guard found, if the request has one."""
        if self.repeats is None or self.noise is None:
            return None
        return self.repeats.found or self.noise.found

    @property
    def over(self) -> bool:
        """The answer has its full length, or leads nowhere."""
        return len(self.tokens) >= self.limit or self.runaway is not None

    def say(self, piece: bytes) -> None:
        """The bytes of a token that is shown."""
        text = self.text.push(piece)
        self.pending_text += text
        if self.repeats is not None:
            self.repeats.feed(text)

    def drew(self, now: float) -> None:
        """A token was drawn at `now`, a monotonic clock."""
        if self.first_token:
            self.gaps_s.append(now - self.last_token)
        else:
            self.first_token = now
        self.last_token = now

    def started(self) -> Started:
        """The event that tells the client its prompt is being worked on."""
        self.announced = True
        return Started(prompt_tokens=self.n_prompt, cached_tokens=self.cached_tokens)

    def reading(self, now: float) -> PromptProgress | None:
        """How much of the prompt is read, where that was asked for, is due and is not the whole."""
        if not self.request.progress or self.n_generated or self.cache is None or now - self.told < PROGRESS_S:
            return None
        self.told = now
        done = len(self.cache.tokens)
        return PromptProgress(processed=done, prompt_tokens=self.n_prompt, cached_tokens=self.cached_tokens)

    def take_pending(self) -> Delta | None:
        """What can be sent now, if the server still wants deltas."""
        if self.credit <= 0 or not (self.pending_text or self.pending_tokens or self.prompt_logprobs):
            return None
        self.credit -= 1
        delta = Delta(
            text=self.pending_text,
            token_ids=tuple(self.pending_tokens),
            logprobs=tuple(self.pending_logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
        )
        self.prompt_logprobs = []
        self.pending_text, self.pending_tokens, self.pending_logprobs = "", [], []
        return delta

    def finish(self, reason: FinishReason) -> list[Event]:
        """The last events of this request."""
        if self.text.stop is None:
            self.pending_text += self.text.finish()
        events: list[Event] = []
        self.credit = 1  # the end is always told
        last = self.take_pending()
        if last is not None:
            events.append(last)
        begun = self.admitted or time.monotonic()
        first = self.first_token
        events.append(
            Done(
                finish_reason=reason,
                usage=Usage(
                    prompt_tokens=self.n_prompt,
                    completion_tokens=self.n_generated,
                    cached_tokens=self.cached_tokens,
                ),
                timings=Timings(
                    queue_s=begun - self.submitted,
                    prefill_s=first - begun if first else 0.0,
                    ttft_s=first - self.submitted if first else 0.0,
                    decode_s=self.last_token - first if first else 0.0,
                    draft_tokens=self.proposed,
                    draft_accepted=self.accepted,
                    itl_s=_percentiles(self.gaps_s),
                    effort=effort(self),
                ),
                stop=self.text.stop,
                runaway=self.runaway if reason == "length" else None,
            )
        )
        return events


def told_reading(sequences: Iterable[Sequence], now: float) -> Iterator[tuple[int, Event]]:
    """What clients who want to know hear of the prompts that are being read."""
    for sequence in sequences:
        progress = sequence.reading(now)
        if progress is not None:
            yield sequence.id, progress


def begun_for_watchers(outputs: Iterable[object], sequences: Iterable[Sequence]) -> bool:
    """Whether clients who follow their prompts are to hear of a beginning before the step, which may take long."""
    watched = {sequence.id for sequence in sequences if sequence.request.progress}
    return any(isinstance(o, tuple) and o[0] in watched and isinstance(o[1], Started) for o in outputs)


def _percentiles(gaps_s: "array[float]") -> tuple[float, ...]:
    """Median, 90 and 99 % of the gaps; empty when there are none."""
    if not gaps_s:
        return ()
    ordered = sorted(gaps_s)
    return tuple(ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99))
