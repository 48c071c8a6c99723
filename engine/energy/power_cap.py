"""Keeps the computer's power below a cap: fewer threads first, then pauses between steps.

Model: power is the idle power including other programs, plus the power of Tessera's steps times the share of time
they run (duty). Every sample updates the step power for the current number of threads; from that follows the duty
that meets the cap. A slow correction term compensates for errors of this model. Fewer threads come before pauses:
with fewer threads the same work needs less energy, while pauses only delay it. This class does no measuring; the
caller passes the readings.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

# Samples are averaged over about this many seconds, because meters are noisy and delayed.
SMOOTH_S: Final = 1.0
# Minimum duty of Tessera's steps: less would look like a hang.
LEAST_DUTY: Final = 0.1
# Below this duty, fewer threads are tried. One more thread is tried if threads times duty grows by MORE_WORTH.
FEWER_BELOW: Final = 0.6
MORE_WORTH: Final = 1.05
# Minimum seconds between changes of the thread count: the meter must have seen the last one.
HOLD_S: Final = 2.0
# The learned power of higher thread counts may be wrong (a delayed meter, other clock rates). It is discarded after
# this many seconds at less than this share of the cap.
DOUBT_S: Final = 8.0
DOUBT_BELOW: Final = 0.88
# Learning rate of the correction term, as a share of the error per second; and its limit, as a share of the cap.
CORRECTION: Final = 0.25
MOST_CORRECTION: Final = 0.2


class RunnerLimits(msgspec.Struct, frozen=True):
    """Settings for runners: threads per step (0: the runner's choice), and the share of time that steps may run."""

    threads: int = 0
    duty: float = 1.0


FREE: Final = RunnerLimits()


@dataclass
class CapController:
    """Call `look` about once per second; `pace` holds the current settings for the runners."""

    cap_w: float
    most_threads: int
    pace: RunnerLimits = FREE
    _slope_w: dict[int, float] = field(default_factory=dict)
    _base_w: float | None = None
    _smooth_w: float | None = None
    _trim_w: float = 0.0
    _held_s: float = 0.0
    _below_s: float = 0.0

    def __post_init__(self) -> None:
        self.pace = RunnerLimits(self.most_threads, 1.0)

    def look(self, seconds: float, power_w: float, duty: float) -> RunnerLimits:
        """Update with `power_w` over `seconds`, during which Tessera's steps ran for the share `duty` (0: idle)."""
        keep = max(0.0, 1.0 - seconds / SMOOTH_S)
        self._smooth_w = power_w if self._smooth_w is None else keep * self._smooth_w + (1 - keep) * power_w
        self._held_s += seconds
        if duty < LEAST_DUTY / 2:
            self._rested(power_w)
            return self.pace
        self._learn(power_w, duty)
        if self._base_w is None:
            self._base_w = 0.0  # never measured idle: attribute all power to Tessera, which errs towards less power
        error = self.cap_w - power_w
        if self.pace.duty < 1.0 or error < 0:
            bound = MOST_CORRECTION * self.cap_w
            self._trim_w = min(bound, max(-bound, self._trim_w + CORRECTION * seconds * error))
        low = (self._smooth_w or 0.0) < DOUBT_BELOW * self.cap_w and self.pace.duty >= 1.0
        self._below_s = self._below_s + seconds if low else 0.0
        if self._below_s >= DOUBT_S:
            self._below_s = 0.0
            self._slope_w = {n: w for n, w in self._slope_w.items() if n <= self.pace.threads}
        self.pace = self._next()
        return self.pace

    def _rested(self, power_w: float) -> None:
        """Update the idle power: no step of Tessera ran."""
        self._base_w = power_w if self._base_w is None else 0.7 * self._base_w + 0.3 * power_w
        self._trim_w *= 0.9

    def _learn(self, power_w: float, duty: float) -> None:
        seen = max(0.1, (power_w - (self._base_w or 0.0)) / duty)
        threads = self.pace.threads
        before = self._slope_w.get(threads)
        self._slope_w[threads] = seen if before is None else 0.6 * before + 0.4 * seen

    def _room_w(self) -> float:
        return self.cap_w - (self._base_w or 0.0) + self._trim_w

    def _duty_for(self, threads: int) -> float:
        """The duty that meets the cap with this thread count; unknown counts are extrapolated from known ones."""
        slope = self._slope_w.get(threads)
        if slope is None:
            near = min(self._slope_w, key=lambda n: abs(n - threads))
            slope = self._slope_w[near] * threads / near
        return self._room_w() / slope

    def _next(self) -> RunnerLimits:
        threads = self.pace.threads
        duty = self._duty_for(threads)
        if self._held_s >= HOLD_S:
            fewer, more = max(1, round(threads * max(duty, 0.5))), min(self.most_threads, threads + 1)
            if duty < FEWER_BELOW and fewer < threads:
                threads, self._held_s = fewer, 0.0
            elif min(1.0, self._duty_for(more)) * more > MORE_WORTH * min(1.0, duty) * threads:
                threads, self._held_s = more, 0.0
            duty = self._duty_for(threads)
        return RunnerLimits(threads, min(1.0, max(LEAST_DUTY, duty)))
