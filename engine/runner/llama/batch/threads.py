"""How many threads a decode step should use right now.

Threads of a step meet at hundreds of barriers; when another program takes one core, all wait for it, and fewer
threads are faster. The governor notices that steps get less processor time than their threads could use, tries
fewer, and comes back when the machine is quiet again. How long a step takes says nothing: it grows with the batch
and with the length of the text. Pure bookkeeping: the caller measures and sets.
"""

from dataclasses import dataclass, field
from typing import Final

# Threads that run less than this part of their time wait for other programs. Measured: docs/log.md, engine
# (two threads, mean of a step: .90 to 1.0 alone, .72 beside one busy program).
STARVED: Final = 0.82
# A change must pay this much, or the count would flutter.
WORTH: Final = 0.9
PROBE_STEPS: Final = 3
# Pause before more threads are tried again; doubled each time that fails.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 16.0


@dataclass
class ThreadGovernor:
    """Feed it the seconds of each step of one width; `threads` is what the next step should use."""

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
        """The number of threads that is known to pay, also while another is tried."""
        return self._probe_from if self._probe else self.threads

    def note(self, step_s: float, cpu_s: float, now: float) -> None:
        """One step took `step_s` and `cpu_s` of processor time with `threads`; `now` is a monotonic clock."""
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
        # Growing back to a machine that is still busy costs whole steps: one bad one is enough to know.
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


# From this many rows a step is a matrix product over stolen chunks, which tolerates a slow thread.
WIDE_ROWS: Final = 32


class BatchThreads:
    """The governors of narrow batches, one for each order of magnitude: a step's time depends on its width."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._governors: dict[int, ThreadGovernor] = {}
        self._last = most

    def threads(self, rows: int) -> int:
        """Threads for a batch of `rows`."""
        if rows >= WIDE_ROWS:
            return self.most
        governor = self._governors.get(rows.bit_length())
        if governor is None:
            governor = self._governors[rows.bit_length()] = ThreadGovernor(self.most)
            governor.threads = self._last
        return governor.threads

    def note(self, rows: int, step_s: float, cpu_s: float, now: float) -> None:
        """A batch of `rows` took `step_s` and `cpu_s` of processor time."""
        governor = self._governors.get(rows.bit_length()) if rows < WIDE_ROWS else None
        if governor is not None:
            governor.note(step_s / rows, cpu_s / rows, now)
            self._last = governor.settled
