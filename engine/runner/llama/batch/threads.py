"""Chooses the number of threads of a decode step.

The threads of a step synchronize at hundreds of barriers. If another program takes one core, all threads wait for
it, and fewer threads are faster. The governor detects that steps get less CPU time than their threads could use,
tries fewer, and returns to more when the machine is idle again. The duration of a step is no indicator: it grows
with the batch and the length of the text. This module only calculates: the caller measures and sets.
"""

from dataclasses import dataclass, field
from typing import Final

# Threads that run less than this fraction of their time wait for other programs. Measured: the log, engine (two
# threads, mean of a step: 0.90 to 1.0 alone, 0.72 next to one busy program).
STARVED: Final = 0.82
# A change must reduce the time to this fraction, or the number would change all the time.
WORTH: Final = 0.9
PROBE_STEPS: Final = 3
# Pause before more threads are tried again; doubled after each failure.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 16.0


@dataclass
class ThreadGovernor:
    """Learns from the seconds of each step of one width; `threads` is the number for the next step."""

    most: int
    threads: int = 0
    _mean_s: dict[int, float] = field(default_factory=dict)
    _ran: float = 1.0
    _probe: int = 0
    _probe_from: int = 0
    _probe_s: list[float] = field(default_factory=list)
    _pause_s: float = FIRST_PAUSE_S
    _quiet_until: float = 0.0

    def __post_init__(self) -> None:
        self.threads = self.most

    @property
    def settled(self) -> int:
        """The number of threads that is known to pay, even while another is being tried."""
        return self._probe_from if self._probe else self.threads

    def note(self, step_s: float, cpu_s: float, now: float) -> None:
        """Record a step's duration and CPU time with `threads` threads; `now` is a monotonic clock."""
        if self.most == 1 or step_s <= 0:
            return
        if self._probe:
            self._note_probe(step_s, now)
            return
        mean = self._mean_s.get(self.threads, step_s)
        self._mean_s[self.threads] = 0.8 * mean + 0.2 * step_s
        self._ran = 0.8 * self._ran + 0.2 * min(1.0, cpu_s / (step_s * self.threads))
        if self.threads < self.most and now >= self._quiet_until:
            self._begin(self.most)
        elif self._ran < STARVED and self.threads > 1 and now >= self._quiet_until:
            self._begin(max(1, self.threads // 2))

    def _begin(self, threads: int) -> None:
        self._probe_from, self.threads = self.threads, threads
        self._probe, self._probe_s, self._ran = PROBE_STEPS, [], 1.0

    def _note_probe(self, step_s: float, now: float) -> None:
        self._probe_s.append(step_s)
        self._probe -= 1
        before = self._mean_s.get(self._probe_from, step_s)
        # Trying more threads on a machine that is still busy costs whole steps, so one bad step ends the attempt.
        much_slower = self.threads > self._probe_from and step_s > 2 * before
        if self._probe and not much_slower:
            return
        self._probe = 0
        typical = sorted(self._probe_s)[len(self._probe_s) // 2]
        if not much_slower and typical < WORTH * before:
            self._mean_s[self.threads] = typical
            self._pause_s = FIRST_PAUSE_S
        else:
            self.threads = self._probe_from
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._quiet_until = now + self._pause_s


# From this many rows on, a step is a matrix product over chunks with work stealing, which tolerates a slow thread.
WIDE_ROWS: Final = 32


class BatchThreads:
    """One governor per power of two of narrow batches, because the time of a step depends on its width."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._governors: dict[int, ThreadGovernor] = {}
        self._last = most

    def threads(self, rows: int) -> int:
        """Return the number of threads for a batch of `rows`."""
        if rows >= WIDE_ROWS:
            return self.most
        governor = self._governors.get(rows.bit_length())
        if governor is None:
            governor = self._governors[rows.bit_length()] = ThreadGovernor(self.most)
            governor.threads = self._last
        return governor.threads

    def note(self, rows: int, step_s: float, cpu_s: float, now: float) -> None:
        """Record a batch of `rows`, its duration and CPU time."""
        governor = self._governors.get(rows.bit_length()) if rows < WIDE_ROWS else None
        if governor is not None:
            governor.note(step_s / rows, cpu_s / rows, now)
            self._last = governor.settled
