"""Chooses the number of threads of a decode step.

The threads of a step synchronize at hundreds of barriers. If another program takes one core, all threads wait for
it, and fewer threads are faster. The governor detects that steps get less CPU time than their threads could use,
tries fewer, and returns to more when the machine is idle again. The duration of a step is not an indicator: it
grows with the batch and the length of the text. This module only calculates: the caller measures and sets.
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
    trial_steps: int = PROBE_STEPS
    newest: float = 0.2
    first_pause_s: float = FIRST_PAUSE_S
    _mean_s: dict[int, float] = field(default_factory=dict)
    _ran: float = 1.0
    _probe: int = 0
    _probe_from: int = 0
    _probe_s: list[float] = field(default_factory=list)
    _pause_s: float = 0.0
    _quiet_until: float = 0.0

    def __post_init__(self) -> None:
        self.threads, self._pause_s = self.most, self.first_pause_s

    def presume_busy(self, now: float) -> None:
        """Begin with half of the threads; all are tried after a pause."""
        self._probe, self.threads = 0, max(1, self.most // 2)
        self._quiet_until = now + self._pause_s

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
        self._ran += self.newest * (min(1.0, cpu_s / (step_s * self.threads)) - self._ran)
        if self.threads < self.most and now >= self._quiet_until:
            self._begin(self.most)
        elif self._ran < STARVED and self.threads > 1 and now >= self._quiet_until:
            self._begin(max(1, self.threads // 2))

    def _begin(self, threads: int) -> None:
        self._probe_from, self.threads = self.threads, threads
        self._probe, self._probe_s, self._ran = self.trial_steps, [], 1.0

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
            self._pause_s = self.first_pause_s
        else:
            self.threads = self._probe_from
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._quiet_until = now + self._pause_s


# From this many rows on, a step is a matrix product over chunks with work stealing, which tolerates a slow thread.
# Such steps are long and few: one of them decides on a trial, and trials are rare. Measured next to two busy
# programs on two cores (tests/bench/busy_prompts.py): 256 tokens take 0.6 s with one thread and 5.4 s with two.
WIDE_PAUSE_S: Final = 4.0
WIDE_ROWS: Final = 32
WIDE_TRIAL: Final = 1
# Weight of the newest step in the share of the time that threads ran.
NEWEST: Final = 0.2
NEWEST_WIDE: Final = 0.5


class BatchThreads:
    """One governor per power of two of narrow batches, whose times depend on the width, and one for prompts."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._governors: dict[int, ThreadGovernor] = {}
        self._wide = ThreadGovernor(most, 0, WIDE_TRIAL, NEWEST_WIDE, WIDE_PAUSE_S)
        self._last = most
        self._ran = 1.0

    def presume_busy(self, now: float) -> None:
        """Begin the steps after a pause with fewer threads, because other programs use the CPU."""
        for governor in (self._wide, *self._governors.values()):
            governor.presume_busy(now)
        self._last = self._wide.threads

    @property
    def is_starved(self) -> bool:
        """Whether the threads of the last steps had to wait for other programs."""
        return self._ran < STARVED

    def threads(self, rows: int) -> int:
        """Return the number of threads for a batch of `rows`."""
        if rows >= WIDE_ROWS:
            return self._wide.threads
        governor = self._governors.get(rows.bit_length())
        if governor is None:
            governor = self._governors[rows.bit_length()] = ThreadGovernor(self.most)
            governor.threads = self._last
        return governor.threads

    def note(self, rows: int, step_s: float, cpu_s: float, threads: int, now: float) -> None:
        """Record a batch of `rows` with `threads` threads, its duration and CPU time."""
        if step_s > 0:
            newest = NEWEST_WIDE if rows >= WIDE_ROWS else NEWEST
            self._ran += newest * (min(1.0, cpu_s / (step_s * threads)) - self._ran)
        governor = self._wide if rows >= WIDE_ROWS else self._governors.get(rows.bit_length())
        if governor is not None and governor.threads == threads:  # otherwise the number was fixed for this step
            governor.note(step_s / rows, cpu_s / rows, now)
            if governor is not self._wide:
                self._last = governor.settled
