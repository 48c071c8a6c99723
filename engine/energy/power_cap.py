"""Keeping the computer's power under a cap: fewer threads, then rests between steps. Pure: the caller measures.

Power is what the computer draws at rest and beside us, plus what our steps draw for the share of time they run. The
second is learnt from every look, for each number of threads; what follows is the share that meets the cap. A slow
remainder corrects what the model of it misses. Fewer threads come before rests: steps of few threads draw less for
the same work, where rests only wait.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

# Looks are averaged over about this many seconds: noise of a meter, and meters that are late.
SMOOTH_S: Final = 1.0
# Our own steps run at least this share of the time: less would look like a hang.
LEAST_DUTY: Final = 0.1
# Below this share fewer threads are tried. One more is, when that gives so much more of threads times share.
FEWER_BELOW: Final = 0.6
MORE_WORTH: Final = 1.05
# After a change of threads so many seconds pass before the next: the meter must have seen it.
HOLD_S: Final = 2.0
# What was learnt of other numbers of threads may be wrong, by a late meter or other clocks: after so many seconds
# this far below the cap it is asked again.
DOUBT_S: Final = 8.0
DOUBT_BELOW: Final = 0.88
# How fast the remainder is learnt, as a share of the error a second; and how large it may become, of the cap.
CORRECTION: Final = 0.25
MOST_CORRECTION: Final = 0.2


class Pace(msgspec.Struct, frozen=True):
    """What runners are told: threads of a step (0: their own choice), and the share of time that steps may run."""

    threads: int = 0
    duty: float = 1.0


FREE: Final = Pace()


@dataclass
class CapController:
    """Feed it a look every second or so; `pace` is what runners should do next."""

    cap_w: float
    most_threads: int
    pace: Pace = FREE
    _slope_w: dict[int, float] = field(default_factory=dict)
    _base_w: float | None = None
    _smooth_w: float | None = None
    _trim_w: float = 0.0
    _held_s: float = 0.0
    _below_s: float = 0.0

    def __post_init__(self) -> None:
        self.pace = Pace(self.most_threads, 1.0)

    def look(self, seconds: float, power_w: float, duty: float) -> Pace:
        """`power_w` was drawn for `seconds`, while our steps ran for this share of the time (0: nothing to do)."""
        keep = max(0.0, 1.0 - seconds / SMOOTH_S)
        self._smooth_w = power_w if self._smooth_w is None else keep * self._smooth_w + (1 - keep) * power_w
        self._held_s += seconds
        if duty < LEAST_DUTY / 2:
            self._rested(power_w)
            return self.pace
        self._learn(power_w, duty)
        if self._base_w is None:
            self._base_w = 0.0  # never seen at rest: all of it is ours, which errs towards the quiet
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
        """Nothing of ours ran: what is drawn now is others', and the next steps start from what is known."""
        self._base_w = power_w if self._base_w is None else 0.7 * self._base_w + 0.3 * power_w
        self._trim_w *= 0.9

    def _learn(self, power_w: float, duty: float) -> None:
        seen = max(0.1, (power_w - (self._base_w or 0.0)) / duty)
        threads = self.pace.threads
        before = self._slope_w.get(threads)
        self._slope_w[threads] = seen if before is None else 0.6 * before + 0.4 * seen

    def _room_w(self) -> float:
        return self.cap_w - (self._base_w or 0.0) + self._trim_w

    def _wanted(self, threads: int) -> float:
        """The share of time that meets the cap with so many threads; unknown counts are guessed from known ones."""
        slope = self._slope_w.get(threads)
        if slope is None:
            near = min(self._slope_w, key=lambda n: abs(n - threads))
            slope = self._slope_w[near] * threads / near
        return self._room_w() / slope

    def _next(self) -> Pace:
        threads = self.pace.threads
        duty = self._wanted(threads)
        if self._held_s >= HOLD_S:
            fewer, more = max(1, round(threads * max(duty, 0.5))), min(self.most_threads, threads + 1)
            if duty < FEWER_BELOW and fewer < threads:
                threads, self._held_s = fewer, 0.0
            elif min(1.0, self._wanted(more)) * more > MORE_WORTH * min(1.0, duty) * threads:
                threads, self._held_s = more, 0.0
            duty = self._wanted(threads)
        return Pace(threads, min(1.0, max(LEAST_DUTY, duty)))
