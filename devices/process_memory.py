"""What one process really holds, as the ledger audits it, and what it has computed."""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

from devices.types import ProcessMemory

KIB = 1024


def cpu_seconds(pid: int) -> float | None:
    """Seconds a process has computed, its children left out; None: it is gone, or no descriptor to look with."""
    import psutil  # noqa: PLC0415 - dry runs weigh what runners weigh, which do without

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return None
    return float(times.user + times.system)


def process_memory(pid: int) -> ProcessMemory | None:
    """Memory of a process and of swap it was pushed to; None when it is gone or may not be looked at."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return _portable(pid)
    found = {name: int(kib) * KIB for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", rollup, re.MULTILINE)}
    if "Pss" not in found:
        return _portable(pid)
    anonymous = found.get("Pss_Anon", found.get("Anonymous", 0)) + found.get("SwapPss", 0)
    return ProcessMemory(
        rss_bytes=found.get("Rss", 0),
        pss_bytes=found["Pss"] + found.get("SwapPss", 0),
        anonymous_bytes=anonymous,
        mapped_bytes=max(0, found["Pss"] - found.get("Pss_Anon", found.get("Anonymous", 0))),
    )


def heaviest_descendant(pid: int) -> int:
    """Of a process and all that it started, the one with most memory; itself where it is gone."""
    import psutil  # noqa: PLC0415 - dry runs weigh what runners weigh, which do without

    try:
        process = psutil.Process(pid)
        sizes = {}
        for found in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                sizes[found.pid] = found.memory_info().rss
    except psutil.Error:
        return pid
    return max(sizes, key=lambda found: sizes[found], default=pid)


def _portable(pid: int) -> ProcessMemory | None:
    import psutil  # noqa: PLC0415 - dry runs weigh what runners weigh, which do without

    try:
        process = psutil.Process(pid)
        rss = process.memory_info().rss
        own = getattr(process.memory_full_info(), "uss", rss)
    except psutil.Error:
        return None
    return ProcessMemory(rss, rss, own, max(0, rss - own))


# Source: malloc.h of glibc. One heap for the main thread and one for all others: the interpreter lets one thread at
# a time allocate, so more save nothing.
_M_ARENA_MAX = -8
_HEAPS = 2


def few_heaps() -> bool:
    """Let the C library keep two heaps; True where it does. Call it before threads begin.

    It makes eight for each processor otherwise, one for each thread, and what a thread once needed is never given
    back: a server of many short jobs grew by 10 MB a minute, half of it free (docs/log.md, marathon). glibc only.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _HEAPS))


def give_back_freed() -> bool:
    """Return to the system what this process has freed and its C library has kept; True where something was.

    Takes some ms for 80 MB, in which other threads wait for memory. glibc only.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))


def bound_memory(pid: int) -> None:
    """Let a child have no more memory of its own than the computer has, and leave no core file.

    It then fails by itself, where it would have taken the computer with it. Linux only. RLIMIT_AS would refuse what
    is only reserved.
    """
    import psutil  # noqa: PLC0415 - dry runs weigh what runners weigh, which do without

    if sys.platform != "linux":
        return
    import resource  # noqa: PLC0415 - absent on Windows

    limit = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):  # it may have ended already
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def allowed_cores() -> int:
    """Logical processors within the affinity mask, where a system has one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
