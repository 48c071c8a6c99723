"""Joule ledger: shares the measured energy, minus the idle power, among the active requests.

Energy is assigned to runners by their share of CPU time, and on a device by their share of its busy time. A
runner's energy is assigned to its requests by their share of step time. This class does no measuring; the caller
passes the readings. Energy that no runner used is not assigned.
"""

import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from devices.power import CPU, SYSTEM

# The idle power is the median of this many samples.
IDLE_SAMPLES: Final = 60
# If CPU use exceeds this share, other programs are working and the sample is not idle power.
IDLE_BUSY: Final = 0.1
_MOST_MODELS: Final = 200


class Active(msgspec.Struct, frozen=True):
    """Use of one runner in an interval: seconds of CPU time, and its devices other than the CPU."""

    model: str
    cpu_s: float
    devices: frozenset[str] = frozenset()
    works: bool = True


class Tally(msgspec.Struct, frozen=True):
    """Joules above idle of one model's requests, and the tokens they generated."""

    joules: float = 0.0
    tokens: int = 0
    requests: int = 0

    @property
    def tokens_per_joule(self) -> float | None:
        """Tokens per joule; None before anything was measured."""
        return self.tokens / self.joules if self.joules > 0 and self.tokens else None


@dataclass
class _Runner:
    """State of a runner. `pending_j` is unassigned; `all_s` and `own_s` are its counts when that was last zero."""

    pending_j: float = 0.0
    watts: float = 0.0
    all_s: float = 0.0
    own_s: dict[int, float] = field(default_factory=dict)
    settled_j: dict[int, float] = field(default_factory=dict)


class JouleLedger:
    """Assigns energy to requests from intervals, step times and finished requests. `key` is a runner's pid."""

    def __init__(self) -> None:
        self._idle: dict[str, deque[float]] = {}
        self._runners: dict[int, _Runner] = {}
        self._tallies: OrderedDict[str, Tally] = OrderedDict()
        self._at = 0.0
        self.measured = False
        self.total_j = 0.0

    def idle_w(self, part: str) -> float | None:
        """Idle power of a part in watts; None before it was measured idle."""
        seen = self._idle.get(part)
        return statistics.median(seen) if seen else None

    def rests(self, part: str) -> int:
        """Number of idle samples behind `idle_w`."""
        return len(self._idle.get(part, ()))

    def interval(
        self,
        at: float,
        seconds: float,
        parts: Mapping[str, float],
        busy_s: float,
        cores: int,
        active: Mapping[int, Active],
    ) -> None:
        """Add an interval of `seconds` up to `at`: watts by part, and the CPU time of all programs (`busy_s`)."""
        self._at = at
        if not parts or seconds <= 0:
            return
        self.measured = True
        at_work = any(a.works for a in active.values())
        if not at_work and busy_s < IDLE_BUSY * seconds * cores:
            for part, watts in parts.items():
                self._idle.setdefault(part, deque(maxlen=IDLE_SAMPLES)).append(watts)
        for key in [k for k in self._runners if k not in active]:
            del self._runners[key]
        for key, used in active.items():
            runner = self._runners.setdefault(key, _Runner())
            joules = self._used_j(seconds, parts, busy_s, used, active) if used.works else 0.0
            runner.watts = joules / seconds
            runner.pending_j += joules
            self.total_j += joules

    def _used_j(
        self, seconds: float, parts: Mapping[str, float], busy_s: float, used: Active, active: Mapping[int, Active]
    ) -> float:
        """Joules above idle of one runner. The whole-system meter counts only if no part has its own meter."""
        of_parts = {p: w for p, w in parts.items() if p != SYSTEM} or dict(parts)
        joules = 0.0
        for part, watts in of_parts.items():
            above = (watts - (self.idle_w(part) or 0.0)) * seconds
            if part == CPU or (part == SYSTEM and not used.devices):
                joules += above * min(1.0, used.cpu_s / max(busy_s, used.cpu_s, 1e-9))
            elif part in used.devices or part == SYSTEM:
                sharing = sum(1 for a in active.values() if a.works and (part in a.devices or part == SYSTEM))
                joules += above / max(1, sharing)
        return joules

    def add_step_times(self, key: int, all_s: float, own_s: Mapping[int, float]) -> None:
        """Add a runner's counts since its load: seconds of all steps, and each active request's share of them."""
        runner = self._runners.setdefault(key, _Runner())
        grown = {n: max(0.0, s - runner.own_s.get(n, 0.0)) for n, s in own_s.items()}
        whole = sum(grown.values())
        if whole > 0:
            for number, seconds in grown.items():
                share = runner.pending_j * seconds / whole
                runner.settled_j[number] = runner.settled_j.get(number, 0.0) + share
            runner.pending_j = 0.0
        runner.all_s, runner.own_s = all_s, dict(own_s)
        runner.settled_j = {n: j for n, j in runner.settled_j.items() if n in own_s}

    def finished(self, key: int, number: int, own_s: float, all_s: float, now: float) -> float | None:
        """Joules above idle of a request that just ended; None if nothing is measured."""
        runner = self._runners.get(key)
        if runner is None or not self.measured:
            return None
        grown = max(0.0, own_s - runner.own_s.pop(number, 0.0))
        whole = max(all_s - runner.all_s, grown)
        # Energy since the last interval is not measured yet: assume the same power.
        open_j = runner.pending_j + runner.watts * max(0.0, now - self._at)
        share = open_j * grown / whole if whole > 0 else 0.0
        runner.pending_j -= share
        runner.all_s += grown
        return max(0.0, runner.settled_j.pop(number, 0.0) + share)

    def count(self, model: str, joules: float, tokens: int) -> None:
        """Add a finished request's joules and generated tokens to its model's tally."""
        before = self._tallies.pop(model, Tally())
        self._tallies[model] = Tally(before.joules + joules, before.tokens + tokens, before.requests + 1)
        while len(self._tallies) > _MOST_MODELS:
            self._tallies.popitem(last=False)

    def tallies(self) -> tuple[tuple[str, Tally], ...]:
        """The tallies of all models, the most recently used last."""
        return tuple(self._tallies.items())

    def tally(self, model: str) -> Tally:
        """The tally of one model's requests."""
        return self._tallies.get(model, Tally())
