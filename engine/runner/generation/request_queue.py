"""Whose turn it is: people before programs, side work behind everybody."""

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.runner.generation.sequence import Sequence

S = TypeVar("S", bound=Sequence)


def enqueue(waiting: deque[S], sequence: S) -> None:
    """Behind those that came before; people wait before programs do."""
    if sequence.request.priority == "interactive":
        behind = next((i for i, s in enumerate(waiting) if s.request.priority != "interactive"), None)
        waiting.insert(len(waiting) if behind is None else behind, sequence)
    else:
        waiting.append(sequence)


def enqueue_again(waiting: deque[S], sequence: S) -> None:
    """What was preempted goes first; side work goes behind everybody."""
    if sequence.request.priority == "side":
        waiting.append(sequence)
    else:
        waiting.appendleft(sequence)


def must_wait(sequence: Sequence, running: Iterable[Sequence]) -> bool:
    """Side work waits for as long as anybody else is answered."""
    return sequence.request.priority == "side" and any(s.request.priority != "side" for s in running)


def to_preempt(running: list[S], waiting: Iterable[S]) -> list[S]:
    """Running side work that is preempted now: somebody else came."""
    side = [s for s in running if s.request.priority == "side"]
    return side if side and any(s.request.priority != "side" for s in (*running, *waiting)) else []
