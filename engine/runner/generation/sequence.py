"""The state of one running request, with its loop guard, n-gram drafter and timings."""

import math
import re
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.core.types import (
    Delta,
    Done,
    Event,
    FinishReason,
    GenerationRequest,
    Runaway,
    Started,
    StepTime,
    Timings,
    TokenLogprob,
    Usage,
)
from engine.runner.generation.draft_length import Acceptance
from engine.runner.generation.grammar_mask import TokenConstraint
from engine.runner.generation.reasoning import ReasoningLimit
from engine.runner.generation.sampler import Sampler
from engine.runner.generation.step_accounting import step_time
from engine.runner.generation.text import TextStream
from engine.runner.load_limits import MAX_DRAFT
from engine.runner.protocol import INITIAL_CREDIT

# The loop guard, which detects responses that repeat the same passage or turn into noise.

# A word, or a chunk of a long one; one character in scripts without spaces between words; line ends and long
# blanks. Written as negated classes: a range up to the end of Unicode takes ten times as long to compile.
# Not compiled before its first use, because that takes 3 ms of a start.
_CHUNK: Final = r"\n{40}|\n|[^\x00-\u0dff]|[^\s\u0e00-\U0010ffff]{1,24}|[^\S\n]{80}"
_BLOCK: Final = 24
_MARK: Final = re.compile(r"[-*\u2022+>#]+|\(?\d{1,4}[.):]+")
_PLAIN: Final = re.compile(r"[^\W\d_]+[.,;:!?]*")
_ENOUGH: Final = 64
_UNBROKEN: Final = 240
# Measured on tests/support/long_texts.py and on greedy responses of SmolLM2-135M: the log, "Runaway answers".
_WINDOW_CHARS: Final = 1200
_FRACTION: Final = 0.65
_FIND: Final = 4
_MISSES: Final = 4
_OF: Final = 8
_NEWS_CHARS: Final = 150
_CHANGED: Final = 4
_HISTORY: Final = 8000
_PASSAGE_CHARS: Final = 200
_NOISE_NATS: Final = 5.0
_SAMPLES: Final = 64
_EVERY: Final = 4


class RepeatWatch:
    """Detects that a text repeats itself.

    Every word is compared with the word at the same position of the previous passage. A word that occurs there for
    the third time or more indicates a loop. A changed word counts against a loop, a changed number or name much
    more, so tables, lists, code and songs may continue. List markers do not count.
    """

    def __init__(self) -> None:
        self.found: Runaway | None = None
        self._unread = ""
        self._words: list[str] = []
        self._rounds: list[int] = []
        self._last_seen: dict[tuple[str, ...], int] = {}
        self._source = -1
        self._misses: deque[bool] = deque(maxlen=_OF)
        self._window: deque[tuple[int, int]] = deque()
        self._chars = self._repeated = 0
        self._line_begins = True

    def feed(self, text: str) -> None:
        """Add text in chunks of any length; `found` is set when the text has repeated itself for some time."""
        self._unread += text
        if len(self._unread) < _ENOUGH or self.found is not None:
            return
        cut = max(self._unread.rfind(" "), self._unread.rfind("\n")) + 1
        if not cut:
            if len(self._unread) < _UNBROKEN:
                return
            cut = len(self._unread) // _BLOCK * _BLOCK
        complete, self._unread = self._unread[:cut], self._unread[cut:]
        for word in re.findall(_CHUNK, complete):
            if word == "\n":
                self._line_begins = True
                continue
            if not (self._line_begins and _MARK.fullmatch(word)):
                self._take(word)
            self._line_begins = False

    def _take(self, word: str) -> None:
        at = len(self._words)
        self._words.append(word)
        rounds = value = 0
        if self._source >= 0:
            same = self._words[self._source] == word
            before = self._rounds[self._source]
            rounds = before + same
            if same:
                value = len(word) + 1 if rounds > 1 else 0
            else:
                plain = _PLAIN.fullmatch(word) and not word[0].isupper()
                value = -_CHANGED * len(word) if plain else -_NEWS_CHARS
            self._misses.append(not same)
            self._source += 1
            if sum(self._misses) >= _MISSES:
                self._source = -1
        self._rounds.append(rounds)
        if at + 1 >= _FIND:
            last = tuple(self._words[-_FIND:])
            if self._source < 0:
                self._source = self._last_seen.get(last, -2) + 1
                self._misses.clear()
            self._last_seen[last] = at
        self._weigh(len(word) + 1, value)
        if len(self._words) >= 2 * _HISTORY:
            self._forget()

    def _weigh(self, chars: int, repeated: int) -> None:
        self._window.append((chars, repeated))
        self._chars += chars
        self._repeated += repeated
        while self._chars - self._window[0][0] >= _WINDOW_CHARS:
            old_chars, old_repeated = self._window.popleft()
            self._chars -= old_chars
            self._repeated -= old_repeated
        if self._chars >= _WINDOW_CHARS and self._repeated >= _FRACTION * self._chars and self._source >= 0:
            period = len(self._words) - self._source
            passage = " ".join(self._words[-period:])[:_PASSAGE_CHARS]
            self.found = Runaway(kind="loop", passage=passage, times=max(self._rounds[-period:]) + 1)

    def _forget(self) -> None:
        """Keep only the newer half of a very long text."""
        del self._words[:_HISTORY], self._rounds[:_HISTORY]
        self._last_seen = {key: at - _HISTORY for key, at in self._last_seen.items() if at >= _HISTORY}
        self._source = max(self._source - _HISTORY, -1)


class NoiseWatch:
    """Tracks how unlikely the sampled tokens are for the model itself.

    Normal model text has 1 to 3 nats per token, digits and hashes up to 4.2; text that fell apart with unrestricted
    sampling has 6 and more. Only every fourth token is checked, which costs less than 1 % of a step.
    """

    def __init__(self) -> None:
        self.found: Runaway | None = None
        self._count = 0
        self._log_sum: float | None = None
        self._nats: deque[float] = deque(maxlen=_SAMPLES)

    def before(self, row: Any) -> None:
        """Record the unadjusted logits (n_vocab,) from which the next token is sampled."""
        self._count += 1
        self._log_sum = None
        if self._count % _EVERY == 0:
            top = float(row.max())
            self._log_sum = top + math.log(float(np.exp(row - top).sum()))

    def sampled(self, logit: float) -> None:
        """Record the logit of the sampled token."""
        if self._log_sum is None:
            return
        self._nats.append(max(self._log_sum - logit, 0.0))
        if len(self._nats) == _SAMPLES and self.found is None:
            mean = sum(self._nats) / _SAMPLES
            if mean >= _NOISE_NATS:
                self.found = Runaway(kind="noise", nats=round(mean, 2))


# N-gram drafts: proposes the next tokens from earlier text, if that pays.
#
# A draft is the text that followed the last occurrence of the newest few tokens in prompt or response. The model
# checks the whole draft in one step and accepts tokens as long as sampling gives the same ones, so drafts do not
# change the text.

# Number of tokens that must match before a draft is proposed. Shorter keys match everywhere and predict badly.
KEY_TOKENS: Final = 4
# With the newest token, drafts give four, eight, then sixteen rows: CPU kernels process rows in groups of four
# (draft_length.py).
FIRST_LENGTH: Final = 3
# From this many matching tokens on, the text is probably a copy; its acceptance is tracked separately.
LONG_MATCH: Final = 12
# Initial acceptance rates: after a chance match, and within a copy.
PRIORS: Final = (0.5, 0.9)
# After PATIENCE rejected drafts in a row, drafting pauses for PAUSE_TOKENS tokens, doubled each time.
PATIENCE: Final = 2
PAUSE_TOKENS: Final = 16
LONGEST_PAUSE: Final = 512


@dataclass
class NgramDrafter:
    """Proposes drafts for one sequence. `observe` its tokens, `propose`, then `record` the result."""

    length: int = FIRST_LENGTH
    _tokens: list[int] = field(default_factory=list)
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _cursor: int = 0
    _matched: int = 0
    _failures: int = 0
    _pause: int = PAUSE_TOKENS
    _silent_until: int = 0
    _by_match: list[Acceptance] = field(default_factory=lambda: [Acceptance(prior) for prior in PRIORS])

    @property
    def acceptance(self) -> Acceptance:
        """The acceptance rate of drafts like the current one."""
        return self._by_match[self._matched >= LONG_MATCH]

    def observe(self, tokens: list[int]) -> None:
        """Add tokens that are now part of the sequence."""
        for token in tokens:
            end = len(self._tokens)
            key = tuple(self._tokens[end - KEY_TOKENS :]) if end >= KEY_TOKENS else None
            if self._matched and self._tokens[self._cursor] == token:
                self._cursor += 1
                self._matched += 1
            else:
                self._matched = 0
            if key is not None:
                self._after[key] = end
            self._tokens.append(token)

    def propose(self, room: int) -> list[int]:
        """Return up to `room` draft tokens; empty if there is no draft or drafting does not pay now.

        A current copy continues at its position, even if the last few tokens have occurred elsewhere since.
        """
        if room <= 0 or len(self._tokens) < max(self._silent_until, KEY_TOKENS):
            return []
        if not self._matched:
            start = self._after.get(tuple(self._tokens[-KEY_TOKENS:]))
            if start is None:
                return []
            self._cursor, self._matched = start, KEY_TOKENS
        return self._tokens[self._cursor : self._cursor + min(self.length, room)]

    def record(self, proposed: int, accepted: int) -> None:
        """Learn from a checked draft, before its tokens are observed.

        Drafts become longer after success and rarer after failures.
        """
        self.acceptance.note(proposed, accepted)
        if accepted == proposed:
            self.length = min(2 * self.length + 1, MAX_DRAFT - 1)
            self._failures, self._pause = 0, PAUSE_TOKENS
            return
        self.length = max(FIRST_LENGTH, accepted + 1)
        if 2 * accepted >= proposed:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= PATIENCE:
            self._failures = 0
            self._silent_until = len(self._tokens) + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


@dataclass
class AnswerTimes:
    """Monotonic times of one request: submitted, admitted, first and newest token; 0 if not yet reached."""

    submitted: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    gaps_s: "array[float]" = field(default_factory=lambda: array("f"))

    def sampled(self, now: float) -> None:
        """Record a token at `now`."""
        if self.first_token:
            self.gaps_s.append(now - self.last_token)
        else:
            self.first_token = now
        self.last_token = now

    def timings(
        self, *, draft_tokens: int = 0, draft_accepted: int = 0, step_time: StepTime | None = None
    ) -> Timings:
        """Return the timings to send at the end of a request."""
        admitted, first = self.admitted or time.monotonic(), self.first_token
        return Timings(
            queue_s=admitted - self.submitted,
            prefill_s=first - admitted if first else 0.0,
            ttft_s=first - self.submitted if first else 0.0,
            decode_s=self.last_token - first if first else 0.0,
            draft_tokens=draft_tokens,
            draft_accepted=draft_accepted,
            itl_s=_percentiles(self.gaps_s),
            step_time=step_time,
        )


def _percentiles(gaps_s: "array[float]") -> tuple[float, ...]:
    """Return the median, 90th and 99th percentile of the gaps; empty if there are none."""
    if not gaps_s:
        return ()
    ordered = sorted(gaps_s)
    return tuple(ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99))


@dataclass(eq=False)  # compare by identity
class Sequence:
    """State of one generation. `tokens` are prompt and response; the first `n_prompt` are the client's prompt.

    `own_s` is its share of the `all_s` seconds of all steps so far.
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
        """Number of response tokens so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def runaway(self) -> Runaway | None:
        """The loop guard's finding, or None."""
        if self.repeats is None or self.noise is None:
            return None
        return self.repeats.found or self.noise.found

    @property
    def over(self) -> bool:
        """Whether the response has its full length or the loop guard ended it."""
        return len(self.tokens) >= self.limit or self.runaway is not None

    def close(self) -> None:
        """Free native memory."""
        self.sampler.close()

    def say(self, piece: bytes) -> None:
        """Append the bytes of a visible token."""
        text = self.text.push(piece)
        self.pending_text += text
        if self.repeats is not None:
            self.repeats.feed(text)

    def started(self) -> Started:
        """Return the event that reports the start of this request."""
        self.announced = True
        return Started(prompt_tokens=self.n_prompt, cached_tokens=self.cached_tokens)

    def take_pending(self) -> Delta | None:
        """Return the pending delta, or None if there is none or the server has no credit left."""
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
