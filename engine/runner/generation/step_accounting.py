"""Whose work a runner's steps were: seconds of each step, shared out by the rows that requests had in it."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from engine.core.types import StepTime

# A row of an answer takes as long as this many of a prompt: it is also multiplied by the output matrix, and looks
# at more text. Measured: docs/log.md, engine.
ANSWER_ROWS: Final = 3


# Requests whose share is remembered: those at work, and a few that just ended.
_REMEMBERED: Final = 256


class Worked(Protocol):
    """A request with its number and what it took so far."""

    id: int
    own_s: float
    all_s: float
    draft: list[int]

    @property
    def n_generated(self) -> int: ...


class StepTimes:
    """The seconds of all steps so far; every step's are added to the requests in it. `own_s`: those by number."""

    def __init__(self) -> None:
        self.all_s = 0.0
        self.own_s: OrderedDict[int, float] = OrderedDict()

    def step(self, seconds: float, rows: Iterable[tuple[Worked, int]]) -> None:
        """A step took so long, with so many rows of each request."""
        self.all_s += seconds
        weighed = [(request, count * (ANSWER_ROWS if _answers(request, count) else 1)) for request, count in rows]
        whole = sum(weight for _, weight in weighed)
        for request, weight in weighed:
            request.own_s += seconds * weight / whole
            request.all_s = self.all_s
            self.own_s[request.id] = request.own_s
            self.own_s.move_to_end(request.id)
        while len(self.own_s) > _REMEMBERED:
            self.own_s.popitem(last=False)


def _answers(request: Worked, rows: int) -> bool:
    """These were the newest token and a draft behind it, not a prompt, or one that is computed again."""
    return request.n_generated > 0 and rows <= 1 + len(request.draft)


def step_time(request: Worked) -> StepTime:
    """As it is sent with the end of a request."""
    return StepTime(number=request.id, own_s=request.own_s, all_s=request.all_s)
