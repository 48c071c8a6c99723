"""Divides the seconds of each step among the requests in it, by their rows."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from engine.core.types import StepTime

# Weight of a response row compared with a prompt row: it is also multiplied by the output matrix and attends to
# more text. Measured: log-archive.md, engine.
ANSWER_ROWS: Final = 3


# Number of requests whose share is stored: running ones and some that ended recently.
_REMEMBERED: Final = 256


class Worked(Protocol):
    """A request with its number and its time so far."""

    id: int
    own_s: float
    all_s: float
    draft: list[int]

    @property
    def n_generated(self) -> int: ...


class StepTimes:
    """The seconds of all steps so far, and each request's share. `own_s` has the shares by request number."""

    def __init__(self) -> None:
        self.all_s = 0.0
        self.own_s: OrderedDict[int, float] = OrderedDict()

    def step(self, seconds: float, rows: Iterable[tuple[Worked, int]]) -> None:
        """Record a step with the number of rows of each request."""
        self.all_s += seconds
        whole = 0
        weighed: list[tuple[Worked, int]] = []
        for request, count in rows:
            # The newest token and its draft, not a prompt or one that is computed again.
            is_answer = request.n_generated > 0 and count <= 1 + len(request.draft)
            weight = count * (ANSWER_ROWS if is_answer else 1)
            weighed.append((request, weight))
            whole += weight
        for request, weight in weighed:
            request.own_s += seconds * weight / whole
            request.all_s = self.all_s
            self.own_s[request.id] = request.own_s
            self.own_s.move_to_end(request.id)
        while len(self.own_s) > _REMEMBERED:
            self.own_s.popitem(last=False)


def step_time(request: Worked) -> StepTime:
    """Return the step time to send at the end of a request."""
    return StepTime(number=request.id, own_s=request.own_s, all_s=request.all_s)
