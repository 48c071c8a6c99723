"""Where the time from the start of a process to its first answer went: phases, one behind the other."""

import os
import sys
import time
from pathlib import Path

import msgspec


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase: seconds on the wall, and of processor time in all threads of the process meanwhile."""

    name: str
    seconds: float
    cpu_s: float


class Phases:
    """A stopwatch that belongs to one process. With `from_start` the first phase begins with the process itself."""

    def __init__(self, *, from_start: bool = False) -> None:
        self._phases: list[Phase] = []
        self._at = time.monotonic() - (process_age_s() if from_start else 0.0)
        self._cpu = 0.0 if from_start else time.process_time()

    def done(self, name: str) -> None:
        """What happened since the phase before was this one; the same name again adds to it."""
        now, cpu = time.monotonic(), time.process_time()
        seconds, cpu_s = now - self._at, cpu - self._cpu
        self._at, self._cpu = now, cpu
        if self._phases and self._phases[-1].name == name:
            before = self._phases.pop()
            seconds, cpu_s = before.seconds + seconds, before.cpu_s + cpu_s
        self._phases.append(Phase(name=name, seconds=round(seconds, 4), cpu_s=round(cpu_s, 4)))

    def all(self) -> tuple[Phase, ...]:
        """The phases so far, in the order in which they were."""
        return tuple(self._phases)


def process_age_s() -> float:
    """Seconds since this process began; 0 where the system does not tell to better than a second."""
    if sys.platform != "linux":
        return 0.0
    try:
        told = Path("/proc/self/stat").read_text("ascii", "replace")
        ticks = int(told.rpartition(")")[2].split()[19])  # field 22 of proc(5), `starttime`
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
