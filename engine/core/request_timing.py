"""Measures how the time of one request is spent, in any protocol: the parts are added up while it runs."""

import time
from collections import OrderedDict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import msgspec

from engine.core.types import Timings
from engine.message_catalog.reasons import Reason

MAX_ENTRIES: Final = 200
# A client that has not returned a tool result for this long has continued with something else.
LONGEST_TOOLS_S: Final = 3600.0
MOST_CALLS: Final = 2000


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one finished request, per part.

    `network_s`: waiting for the client to send its request or to receive the response. `tools_s`: the client ran
    the tools that the previous response had called; this time is before the request and not part of `total_s`.
    `other_s`: templates, parsing, and all other work of the server.
    """

    id: str
    route: str
    model: str
    at: float
    total_s: float
    queue_s: float
    load_s: float
    prefill_s: float
    decode_s: float
    tools_s: float
    network_s: float
    other_s: float


@dataclass
class Clock:
    """Collects the parts of one request. With several concurrent generations, the longest time of each part counts.

    `called` are the ids of tool calls in the response, `results` those whose results the request contained.
    `ran_on` says which other machine responds, and by which rule; None: this one does.
    """

    id: str
    began: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - looked up when called
    model: str = ""
    ran_on: Reason | None = None
    load_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    network_s: float = 0.0
    called: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def generated(self, model: str, timings: Timings) -> None:
        """Add the timings of a finished generation."""
        self.model = model
        self.queue_s = max(self.queue_s, timings.queue_s)
        self.prefill_s = max(self.prefill_s, timings.prefill_s)
        self.decode_s = max(self.decode_s, timings.decode_s)

    def finished(self, route: str, tools_s: float = 0.0) -> TimeSpent:
        """Return all parts and the unexplained rest. Sending overlaps with decoding; nothing is counted twice."""
        total = time.monotonic() - self.began
        accounted_s = self.load_s + self.queue_s + self.prefill_s + self.decode_s
        network = min(self.network_s, max(0.0, total - accounted_s))
        return TimeSpent(
            id=self.id,
            route=route,
            model=self.model,
            at=time.time(),
            total_s=total,
            queue_s=self.queue_s,
            load_s=self.load_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            tools_s=tools_s,
            network_s=network,
            other_s=max(0.0, total - accounted_s - network),
        )


_current: ContextVar[Clock | None] = ContextVar("clock", default=None)


def start_clock(request_id: str) -> Clock:
    """Start a clock for the request that this task and its children serve."""
    clock = Clock(request_id)
    _current.set(clock)
    return clock


def current_clock() -> Clock | None:
    """Return the clock of the current request; None outside a request."""
    return _current.get()


class TimeLog:
    """The newest requests that generated something, and the tool calls that have no results yet."""

    def __init__(self) -> None:
        self._finished: deque[TimeSpent] = deque(maxlen=MAX_ENTRIES)
        self._started_at: OrderedDict[str, float] = OrderedDict()

    def add(self, clock: Clock, route: str) -> TimeSpent:
        """Record a finished request that generated something."""
        now = time.monotonic()
        waited = [clock.began - self._started_at.pop(i) for i in clock.results if i in self._started_at]
        for call_id in clock.called:
            self._started_at[call_id] = now
        while len(self._started_at) > MOST_CALLS:
            self._started_at.popitem(last=False)
        spent = clock.finished(route, max((s for s in waited if 0 <= s < LONGEST_TOOLS_S), default=0.0))
        self._finished.append(spent)
        return spent

    def newest(self, count: int = MAX_ENTRIES) -> list[TimeSpent]:
        """Return the newest requests, newest first."""
        return list(reversed(self._finished))[:count]
