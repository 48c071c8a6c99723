"""Measures one process: its memory, for the ledger's audits, its CPU time, and whether it waits for a CPU."""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

from devices.types import ProcessMemory

KIB = 1024


def cpu_seconds(pid: int) -> float | None:
    """CPU seconds of a process without its children; None if it is gone, or no file descriptor is free."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return None
    return float(times.user + times.system)


def wants_cpu(pid: int) -> bool:
    """Whether a thread of a process runs or waits for a free CPU; False if the system does not say."""
    for thread in Path("/proc", str(pid), "task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            state = thread.read_bytes().rpartition(b") ")[2][:1]  # after the name, which may contain brackets
            if state == b"R":
                return True
    return False


def process_memory(pid: int) -> ProcessMemory | None:
    """Memory of a process, including swapped memory; None if it is gone or not readable."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return _portable(pid)
    sizes = {name: int(kib) * KIB for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", rollup, re.MULTILINE)}
    if "Pss" not in sizes:
        return _portable(pid)
    anonymous = sizes.get("Pss_Anon", sizes.get("Anonymous", 0)) + sizes.get("SwapPss", 0)
    return ProcessMemory(
        rss_bytes=sizes.get("Rss", 0),
        pss_bytes=sizes["Pss"] + sizes.get("SwapPss", 0),
        anonymous_bytes=anonymous,
        mapped_bytes=max(0, sizes["Pss"] - sizes.get("Pss_Anon", sizes.get("Anonymous", 0))),
    )


def heaviest_descendant(pid: int) -> int:
    """The process with the most memory among a process and its descendants; itself if it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        sizes = {}
        for relative in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                sizes[relative.pid] = relative.memory_info().rss
    except psutil.Error:
        return pid
    return max(sizes, key=lambda each: sizes[each], default=pid)


def _portable(pid: int) -> ProcessMemory | None:
    import psutil

    try:
        process = psutil.Process(pid)
        rss = process.memory_info().rss
        own = getattr(process.memory_full_info(), "uss", rss)
    except psutil.Error:
        return None
    return ProcessMemory(rss, rss, own, max(0, rss - own))


# Source: malloc.h of glibc. One heap for the main thread and one for all others: the interpreter lets only one
# thread allocate at a time, so more heaps gain nothing.
_M_ARENA_MAX = -8
_HEAPS = 2


def few_heaps() -> bool:
    """Limit the C library to two heaps; True if it accepts. Call it before threads start.

    By default it creates eight per CPU, one per thread, and never returns what a thread once needed: a server of
    many short jobs grew by 10 MB per minute, half of it free (log-archive.md, marathon). glibc only.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _HEAPS))


# Python's threads take turns of this length (5 ms by default). An event loop gives the lock back with each system
# call, and waits a whole turn of each computing thread to get it again. Median time of an echo next to three
# computing threads, on two busy cores: 120 ms with turns of 5 ms, 11 ms with 1 ms, 2 ms with 0.5 ms.
_TURN_S = 0.0005


def short_turns() -> None:
    """Let the event loop of this process answer soon while other threads compute."""
    sys.setswitchinterval(_TURN_S)


def give_back_freed() -> bool:
    """Return freed memory that the C library still holds to the system; True if there was some.

    Takes some ms for 80 MB, during which other threads wait for memory. glibc only.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))


def bound_memory(pid: int) -> None:
    """Limit a child's own memory to the computer's memory, and disable its core file.

    It then fails alone instead of exhausting the computer's memory. Linux only. RLIMIT_AS would also refuse memory
    that is only reserved.
    """
    import psutil

    if sys.platform != "linux":
        return
    import resource

    limit = psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):  # it may have ended already
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def allowed_cores() -> int:
    """Logical CPUs within the affinity mask if the system has one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
