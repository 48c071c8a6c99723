"""Base class of schedulers: checks requests, orders their queue, samples tokens, and tracks them to their end."""

import abc
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from engine.core.types import Event, FinishReason, GenerationRequest, ReasoningBudget, TokenLogprob
from engine.runner.generation.reasoning import ReasoningLimit
from engine.runner.generation.sampler import NotFinite, token_logprob
from engine.runner.generation.sequence import Sequence
from engine.runner.generation.step_accounting import StepTimes
from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.protocol import Fault

# Order of the request queue: interactive requests first, background requests ("side") last. Among equals, the owner
# with the fewest running requests is first, so that many requests of one API key do not delay those of another.

S = TypeVar("S", bound=Sequence)
_RANKS: Final = {"interactive": 0, "batch": 1, "background": 1, "side": 2}


def next_in_line(waiting: Iterable[S], running: Iterable[Sequence]) -> S:
    """Return the request to admit next. `waiting` is in order of arrival."""
    counts = Counter(s.request.owner for s in running)
    return min(waiting, key=lambda s: (_RANKS[s.request.priority], counts[s.request.owner]))


def must_wait(sequence: Sequence, running: Iterable[Sequence]) -> bool:
    """Whether this is a "side" request that must wait for others."""
    return sequence.request.priority == "side" and any(s.request.priority != "side" for s in running)


def to_preempt(running: list[S], waiting: Iterable[S], slots: int) -> list[S]:
    """Return the running requests to preempt because another request arrived.

    All "side" requests; or, if every slot is in use and an owner has none, the newest one of the owner with most.
    """
    waiting = list(waiting)
    side = [s for s in running if s.request.priority == "side"]
    if side and any(s.request.priority != "side" for s in (*running, *waiting)):
        return side
    if len(running) < slots:
        return []
    counts = Counter(s.request.owner for s in running)
    if all(counts[s.request.owner] or s.request.priority != "interactive" for s in waiting):
        return []
    owner, most = counts.most_common(1)[0]
    return [next(s for s in reversed(running) if s.request.owner == owner)] if most > 1 else []


Output = tuple[int, Event] | Fault


class BaseScheduler(abc.ABC, Generic[S]):
    """Tracks requests and processes sampled tokens; subclasses implement the computation of a step."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[S] = deque()
        self._by_id: dict[int, S] = {}
        self.step_times = StepTimes()
        self.steps = self.prompt_tokens = self.generated_tokens = self.cached_tokens = self.computed_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a request is running or waiting."""
        return bool(self._by_id)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._waiting)

    @property
    @abc.abstractmethod
    def active(self) -> int:
        """Number of running requests."""

    @abc.abstractmethod
    def step(self) -> list[Output]:
        """Run one step: admit, compute, sample. Returns the output to send to the server."""

    def cancel(self, request_id: int) -> None:
        """Mark a request as cancelled; it ends before the next step."""
        if request_id in self._by_id:
            self._by_id[request_id].cancelled = True

    def credit(self, request_id: int, count: int) -> None:
        """Add credit for deltas that the server has received."""
        if request_id in self._by_id:
            self._by_id[request_id].credit += count

    def _enqueue(self, sequence: S) -> None:
        self._by_id[sequence.id] = sequence
        self._waiting.append(sequence)

    def _admitted(self, sequence: S, cached_tokens: int, out: list[Output]) -> None:
        """Record an admitted request, of which `cached_tokens` are already computed."""
        sequence.cached_tokens = cached_tokens
        sequence.times.admitted = time.monotonic()
        self.cached_tokens += cached_tokens
        self.prompt_tokens += sequence.n_prompt
        out.append((sequence.id, sequence.started()))

    def end_all(self) -> None:
        """Cancel every request now; what was computed for it stays in the cache."""
        for sequence in self._by_id.values():
            sequence.cancelled = True
        self._end_cancelled([])

    def _end_cancelled(self, out: list[Output]) -> None:
        for sequence in [s for s in self._by_id.values() if s.cancelled]:
            self._end(sequence, "cancelled", out)

    def _take(self, sequence: S, token: int, logprob: TokenLogprob | None, now: float, out: list[Output]) -> None:
        """Process a token sampled at `now`: it becomes text or ends the response."""
        self.generated_tokens += 1
        sequence.times.sampled(now)
        sequence.tokens.append(token)
        if token in self._vocabulary.ends or token in sequence.request.stop_token_ids:
            self._end(sequence, "stop", out)
            return
        sequence.sampler.accept(token)
        constraint = sequence.constraint
        if constraint is not None:
            constraint.accept(token)
        shown = sequence.request.keep_special or token not in self._vocabulary.control
        sequence.say(self._vocabulary.pieces[token] if shown else b"")
        sequence.pending_tokens.append(token)
        if logprob is not None:
            sequence.pending_logprobs.append(logprob)
        if constraint is not None and constraint.error:
            self._stop_unfinished(sequence, constraint.error, out)
        elif sequence.text.stop is not None or (constraint is not None and constraint.finished):
            self._end(sequence, "stop", out)
        elif sequence.over:
            self._end(sequence, "length", out)

    def _end(self, sequence: S, reason: FinishReason, out: list[Output]) -> None:
        out.extend((sequence.id, event) for event in sequence.finish(reason))
        self._forget(sequence)

    def _stop_unfinished(self, sequence: S, reason: str, out: list[Output]) -> None:
        """End the response of a failed grammar, but keep the text generated so far."""
        sequence.unfinished = reason
        self._end(sequence, "length", out)

    def _fail(self, sequence: S, code: str, message: str, out: list[Output]) -> None:
        out.append(Fault(id=sequence.id, code=code, message=message))
        self._forget(sequence)

    @abc.abstractmethod
    def _forget(self, sequence: S) -> None:
        """Remove an ended request and free its resources, except for what later requests can reuse."""


# Checks a request before a model sees it.


def answer_limit(request: GenerationRequest, num_tokens: int, n_ctx: int) -> int:
    """Return the maximum length of prompt plus response, in tokens, for a prompt of `num_tokens`."""
    room = n_ctx - num_tokens if not request.context_shift else request.max_tokens or 0
    return num_tokens + (room if request.max_tokens is None else min(request.max_tokens, room))


def context_exceeded(request_id: int, num_tokens: int, n_ctx: int) -> Fault | None:
    """Return a Fault if a prompt leaves no space in a context of `n_ctx` tokens, else None."""
    if num_tokens < n_ctx:
        return None
    counts: dict[str, int | float | str | None] = {"prompt_tokens": num_tokens, "context_tokens": n_ctx}
    return Fault(id=request_id, code="context_length_exceeded", message="", facts=counts)


def problem(request: GenerationRequest, tokens: list[int], n_vocab: int) -> tuple[str, str] | None:
    """Return the field with invalid token ids and the reason, or None.

    Ids below 0 stand for images; only a prompt that the runner itself tokenized has them.
    """
    if not tokens:
        return "prompt", "The prompt is empty."
    if (isinstance(request.prompt, list) and min(tokens) < 0) or max(tokens) >= n_vocab:
        return "prompt", f"Token ids must be between 0 and {n_vocab - 1}."
    for field, ids in (("logit_bias", request.sampling.logit_bias), ("stop_token_ids", request.stop_token_ids)):
        unknown = [t for t in ids if not 0 <= t < n_vocab]
        if unknown:
            return field, f"Token id {unknown[0]} is not in this model's vocabulary of {n_vocab}."
    return None


# Samples one token for one sequence from a row of logits, with penalties, constraint and log probabilities.


class SamplingFailed(Exception):
    """No token can be sampled for this request."""


class ConstraintFailed(SamplingFailed):
    """The request's grammar cannot continue."""


def sample(sequence: Sequence, row: Any, vocabulary: Vocabulary) -> tuple[int, TokenLogprob | None]:
    """Return the next token, and its log probability if requested. `row` (n_vocab,) is changed in place.

    The unconstrained token is tried first: in most steps it is allowed, and no mask over the vocabulary is needed.

    Raises: ConstraintFailed; SamplingFailed: the logits are not finite.
    """
    num_logprobs = sequence.request.logprobs
    raw = row.copy() if num_logprobs is not None else None
    budget = sequence.request.reasoning
    if budget is not None and (forced := _forced(sequence, budget, vocabulary)) is not None:
        return forced, None if raw is None else token_logprob(raw, forced, num_logprobs or 0, vocabulary.pieces)
    if sequence.noise is not None:
        sequence.noise.before(row)
    try:
        sequence.sampler.adjust(row)
        if forbidden := _forbidden(sequence, vocabulary):
            row[forbidden] = float("-inf")
        token = sequence.sampler.sample(row)
        constraint = sequence.constraint
        if constraint is not None and not constraint.allows(token):
            constraint.mask(row)
            if constraint.error:
                raise ConstraintFailed(constraint.error)
            token = sequence.sampler.sample(row)
    except NotFinite as error:
        raise SamplingFailed(f"The model's output is not a number ({error}).") from error
    if sequence.noise is not None:
        sequence.noise.sampled(float(row[token]))
    return token, None if raw is None else token_logprob(raw, token, num_logprobs or 0, vocabulary.pieces)


def _forced(sequence: Sequence, budget: ReasoningBudget, vocabulary: Vocabulary) -> int | None:
    """Return the next token of the closing marker if reasoning has reached its limit, else None."""
    if sequence.thinking is None:
        sequence.thinking = ReasoningLimit(budget, vocabulary)
    return sequence.thinking.forced(sequence.tokens, sequence.n_generated)


def _forbidden(sequence: Sequence, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that would end the response too early."""
    request = sequence.request
    if sequence.n_generated < request.min_tokens:
        return [*vocabulary.ends, *request.stop_token_ids]
    return list(vocabulary.ends) if request.ignore_eos else []
