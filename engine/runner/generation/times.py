"""When one request's tokens came."""

import time
from array import array
from dataclasses import dataclass, field

from engine.core.types import StepTime, Timings


@dataclass
class AnswerTimes:
    """Monotonic seconds of one request: submitted, admitted, its first and its newest token; 0 before they came."""

    submitted: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    gaps_s: "array[float]" = field(default_factory=lambda: array("f"))

    def sampled(self, now: float) -> None:
        """A token came at `now`."""
        if self.first_token:
            self.gaps_s.append(now - self.last_token)
        else:
            self.first_token = now
        self.last_token = now

    def timings(
        self, *, draft_tokens: int = 0, draft_accepted: int = 0, step_time: StepTime | None = None
    ) -> Timings:
        """As they are sent with the end of a request."""
        begun, first = self.admitted or time.monotonic(), self.first_token
        return Timings(
            queue_s=begun - self.submitted,
            prefill_s=first - begun if first else 0.0,
            ttft_s=first - self.submitted if first else 0.0,
            decode_s=self.last_token - first if first else 0.0,
            draft_tokens=draft_tokens,
            draft_accepted=draft_accepted,
            itl_s=_percentiles(self.gaps_s),
            step_time=step_time,
        )


def _percentiles(gaps_s: "array[float]") -> tuple[float, ...]:
    """Median, 90 and 99 % of the gaps; empty when there are none."""
    if not gaps_s:
        return ()
    ordered = sorted(gaps_s)
    return tuple(ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99))
