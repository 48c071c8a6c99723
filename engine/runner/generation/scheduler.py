"""The requests of a runner: waiting, running, ending."""

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
    """Knows the requests and what becomes of a sampled token; what a step computes is the subclass's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[S] = deque()
        self._by_id: dict[int, S] = {}
        self.step_times = StepTimes()
        self.steps = self.prompt_tokens = self.generated_tokens = self.cached_tokens = self.computed_tokens = 0

    @property
    def busy(self) -> bool:
        """Something is running or waiting."""
        return bool(self._by_id)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting)

    @property
    @abc.abstractmethod
    def active(self) -> int:
        """Requests that are being worked on."""

    @abc.abstractmethod
    def step(self) -> list[Output]:
        """Admit, compute, sample; returns what to send to the server."""

    def cancel(self, request_id: int) -> None:
        """Mark a request; it ends before the next step."""
        if request_id in self._by_id:
            self._by_id[request_id].cancelled = True

    def credit(self, request_id: int, count: int) -> None:
        """The server took deltas of this request."""
        if request_id in self._by_id:
            self._by_id[request_id].credit += count

    def _enqueue(self, sequence: S) -> None:
        self._by_id[sequence.id] = sequence
        enqueue(self._waiting, sequence)

    def _admitted(self, sequence: S, cached_tokens: int, out: list[Output]) -> None:
        """A request got its room, in which so many of its tokens are computed already."""
        sequence.cached_tokens = cached_tokens
        sequence.times.admitted = time.monotonic()
        self.cached_tokens += cached_tokens
        self.prompt_tokens += sequence.n_prompt
        out.append((sequence.id, sequence.started()))

    def _end_cancelled(self, out: list[Output]) -> None:
        for sequence in [s for s in self._by_id.values() if s.cancelled]:
            self._end(sequence, "cancelled", out)

    def _take(self, sequence: S, token: int, logprob: TokenLogprob | None, now: float, out: list[Output]) -> None:
        """A token was sampled at `now`: it becomes text, or the end of the answer."""
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
        """A grammar that fails in the middle of an answer ends it: what was generated is not lost."""
        sequence.unfinished = reason
        self._end(sequence, "length", out)

    def _fail(self, sequence: S, code: str, message: str, out: list[Output]) -> None:
        out.append(Fault(id=sequence.id, code=code, message=message))
        self._forget(sequence)

    @abc.abstractmethod
    def _forget(self, sequence: S) -> None:
        """A request ended: what it held is free, but for what later ones can use."""
