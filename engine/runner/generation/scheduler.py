"""Base class of schedulers: tracks a runner's requests from queue to end."""

import abc
import time
from collections import deque
from typing import Generic, TypeVar

from engine.core.types import Event, FinishReason, TokenLogprob
from engine.runner.generation.request_queue import enqueue
from engine.runner.generation.sequence import Sequence
from engine.runner.generation.step_accounting import StepTimes
from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.protocol import Fault

Output = tuple[int, Event] | Fault

S = TypeVar("S", bound=Sequence)


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
        enqueue(self._waiting, sequence)

    def _admitted(self, sequence: S, cached_tokens: int, out: list[Output]) -> None:
        """Record an admitted request, of which `cached_tokens` are already computed."""
        sequence.cached_tokens = cached_tokens
        sequence.times.admitted = time.monotonic()
        self.cached_tokens += cached_tokens
        self.prompt_tokens += sequence.n_prompt
        out.append((sequence.id, sequence.started()))

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
