"""Seconds that something took, less those that a busy machine added: a limit is for what the program does.

Linux counts for each thread how long it could have run and had no processor (/proc/PID/task/*/schedstat), and for
the whole computer how long its host gave the processors to others (/proc/stat). Elsewhere nothing is taken off.
"""

import contextlib
import os
import time
from pathlib import Path

STOLEN = 8  # the column of /proc/stat's first line


class Stopwatch:
    """Started at once. `pids` are the other processes that take part; this one does in any case."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._waits, self._stolen_s = self._waited(), _stolen_s()
        self._started = time.monotonic()

    def hindered_s(self) -> float:
        """How long they waited for a processor since the start."""
        now = self._waited()
        waited_ns = sum(ns - self._waits.get(thread, 0) for thread, ns in now.items())
        return waited_ns / 1e9 + _stolen_s() - self._stolen_s

    def seconds(self) -> float:
        """Since the start, without that."""
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
