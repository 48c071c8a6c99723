"""A stopwatch that subtracts the delays of a busy machine, for time limits on the program itself.

Linux counts how long each thread was runnable without a CPU (/proc/PID/task/*/schedstat), and how long the host
gave the CPUs to others (/proc/stat). On other systems nothing is subtracted.
"""

import contextlib
import os
import time
from pathlib import Path

STOLEN = 8  # column in the first line of /proc/stat


class Stopwatch:
    """Starts immediately. `pids` are the other processes that take part, in addition to this one."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._waits, self._stolen_s = self._waited(), _stolen_s()
        self._started = time.monotonic()

    def hindered_s(self) -> float:
        """Seconds that these processes have waited for a CPU since the start."""
        now = self._waited()
        waited_ns = sum(ns - self._waits.get(thread, 0) for thread, ns in now.items())
        return waited_ns / 1e9 + _stolen_s() - self._stolen_s

    def seconds(self) -> float:
        """Seconds since the start, minus the waits."""
        return time.monotonic() - self._started - self.hindered_s()

    def _waited(self) -> dict[str, int]:
        found = {}
        for pid in self._pids:
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError):
                        found[str(thread)] = int((thread / "schedstat").read_text().split()[1])
        return found


def _stolen_s() -> float:
    with contextlib.suppress(OSError):
        line = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(line[STOLEN]) / os.sysconf("SC_CLK_TCK")
    return 0.0
