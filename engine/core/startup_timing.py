"""Measures the phases from the start of a process to its first response."""

import os
import sys
import time
from pathlib import Path

import msgspec


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase: wall-clock seconds, and CPU seconds of all threads of the process."""

    name: str
    seconds: float
    cpu_s: float


class StartupTimer:
    """A stopwatch for one process. With `from_start` the first phase starts with the process itself."""

    def __init__(self, *, from_start: bool = False) -> None:
        self._phases: list[Phase] = []
        self._at = time.monotonic() - (process_age_s() if from_start else 0.0)
        self._cpu = 0.0 if from_start else time.process_time()

    def done(self, name: str) -> None:
        """End a phase that started when the previous one ended; repeating a name adds to that phase."""
        now, cpu = time.monotonic(), time.process_time()
        seconds, cpu_s = now - self._at, cpu - self._cpu
        self._at, self._cpu = now, cpu
        if self._phases and self._phases[-1].name == name:
            before = self._phases.pop()
            seconds, cpu_s = before.seconds + seconds, before.cpu_s + cpu_s
        self._phases.append(Phase(name=name, seconds=round(seconds, 4), cpu_s=round(cpu_s, 4)))

    def all(self) -> tuple[Phase, ...]:
        """Return the phases so far, in order."""
        return tuple(self._phases)


def process_age_s() -> float:
    """Seconds since this process started; 0 on systems that do not report it to better than one second."""
    if sys.platform != "linux":
        return 0.0
    try:
        stat = Path("/proc/self/stat").read_text("ascii", "replace")
        ticks = int(stat.rpartition(")")[2].split()[19])  # field 22 of proc(5), `starttime`
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
