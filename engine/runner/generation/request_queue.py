"""Order of the request queue: interactive requests first, background requests ("side") last."""

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.runner.generation.sequence import Sequence

S = TypeVar("S", bound=Sequence)


def enqueue(waiting: deque[S], sequence: S) -> None:
    """Append to the queue; interactive requests go before all others."""
    if sequence.request.priority == "interactive":
        behind = next((i for i, s in enumerate(waiting) if s.request.priority != "interactive"), None)
        waiting.insert(len(waiting) if behind is None else behind, sequence)
    else:
        waiting.append(sequence)


def enqueue_again(waiting: deque[S], sequence: S) -> None:
    """Requeue a preempted request at the head, or at the end if it is a "side" request."""
    if sequence.request.priority == "side":
        waiting.append(sequence)
    else:
        waiting.appendleft(sequence)


def must_wait(sequence: Sequence, running: Iterable[Sequence]) -> bool:
    """Whether this is a "side" request that must wait for others."""
    return sequence.request.priority == "side" and any(s.request.priority != "side" for s in running)


def to_preempt(running: list[S], waiting: Iterable[S]) -> list[S]:
    """Return the running "side" requests to preempt because another request arrived."""
    side = [s for s in running if s.request.priority == "side"]
    return side if side and any(s.request.priority != "side" for s in (*running, *waiting)) else []
