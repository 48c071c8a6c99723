"""One request while it runs."""

from dataclasses import dataclass, field

from engine.core.types import (
    Delta,
    Done,
    Event,
    FinishReason,
    GenerationRequest,
    Runaway,
    Started,
    TokenLogprob,
    Usage,
)
from engine.runner.generation.grammar_mask import TokenConstraint
from engine.runner.generation.loop_guard import NoiseWatch, RepeatWatch
from engine.runner.generation.ngram_drafter import NgramDrafter
from engine.runner.generation.reasoning import ReasoningLimit
from engine.runner.generation.sampler import Sampler
from engine.runner.generation.step_accounting import step_time
from engine.runner.generation.text import TextStream
from engine.runner.generation.times import AnswerTimes
from engine.runner.protocol import INITIAL_CREDIT


@dataclass(eq=False)  # two of them are the same only if they are one
class Sequence:
    """State of one generation. `tokens` are prompt and answer; `n_prompt` of them are the client's prompt.

    `own_s` of the `all_s` seconds of all steps so far were its share.
    """

    id: int
    request: GenerationRequest
    tokens: list[int]
    n_prompt: int
    limit: int
    sampler: Sampler
    text: TextStream
    constraint: TokenConstraint | None = None
    times: AnswerTimes = field(default_factory=AnswerTimes)
    own_s: float = 0.0
    all_s: float = 0.0
    cached_tokens: int = 0
    announced: bool = False
    cancelled: bool = False
    credit: int = INITIAL_CREDIT
    thinking: ReasoningLimit | None = None
    drafter: NgramDrafter = field(default_factory=NgramDrafter)
    draft: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    pending_text: str = ""
    pending_tokens: list[int] = field(default_factory=list)
    pending_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    repeats: RepeatWatch | None = None
    noise: NoiseWatch | None = None
    unfinished: str | None = None

    def __post_init__(self) -> None:
        if not self.request.stream:
            self.credit = 0
        if self.request.loop_guard:
            self.repeats, self.noise = RepeatWatch(), NoiseWatch()

    @property
    def n_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.n_prompt

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

    def close(self) -> None:
        """Free what is native."""
        self.sampler.close()

    def say(self, piece: bytes) -> None:
        """The bytes of a token that is shown."""
        text = self.text.push(piece)
        self.pending_text += text
        if self.repeats is not None:
            self.repeats.feed(text)

    def started(self) -> Started:
        """The event that tells the client its prompt is being worked on."""
        self.announced = True
        return Started(prompt_tokens=self.n_prompt, cached_tokens=self.cached_tokens)

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
        self.credit = 1  # the end is always sent
        last = self.take_pending()
        if last is not None:
            events.append(last)
        events.append(
            Done(
                finish_reason=reason,
                usage=Usage(
                    prompt_tokens=self.n_prompt,
                    completion_tokens=self.n_generated,
                    cached_tokens=self.cached_tokens,
                ),
                timings=self.times.timings(
                    draft_tokens=self.proposed, draft_accepted=self.accepted, step_time=step_time(self)
                ),
                stop=self.text.stop,
                runaway=self.runaway if reason == "length" else None,
                unfinished=self.unfinished,
            )
        )
        return events
