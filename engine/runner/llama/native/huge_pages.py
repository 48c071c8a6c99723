"""Huge pages (2 MiB) on Linux: used during a load, in virtual machines only in the pauses after it.

The host of a virtual machine provides memory when it is first touched, and each huge page waits for it: clearing a
cache of 189 MB took 0.04 to 0.44 s of CPU time. Small pages mostly come from recently freed memory: 0.11 to 0.12 s
(log-archive.md, Starting).
"""

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

SIZE: Final = 2 << 20
ASKED: Final = re.compile(r"glibc\.malloc\.hugetlb=(\d)")
CPUINFO: Final = "/proc/cpuinfo"
# The first CPU's lines are shorter; reading those of all CPUs takes milliseconds.
_FIRST: Final = 8192
# From linux/prctl.h and asm-generic/mman-common.h.
PR_SET_THP_DISABLE: Final = 41
MADV_COLLAPSE: Final = 25
_SMALL: Final = 4096
_MAP: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0\b", re.ASCII)
# The top bit of each entry: the page is present. Source: admin-guide/mm/pagemap.rst.
_ENTRY: Final = 8
_PRESENT: Final = 0x80


class LargePages:
    """Huge pages of this process. Use `loading` around large allocations, `collapse` in the pauses after it."""

    def __init__(self) -> None:
        self.postponed = False
        self._left: list[int] | None = None

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """In a virtual machine, use small pages for memory allocated inside."""
        forbidden = asked() and virtual() and _forbid(1)
        try:
            yield
        finally:
            if forbidden:
                _forbid(0)
                self.postponed = True

    def collapse(self, idle: Callable[[], bool]) -> None:
        """Combine postponed pages while `idle` returns True; each takes some milliseconds at most."""
        if not self.postponed:
            return
        if self._left is None:
            self._left = whole_ranges()
        libc = ctypes.CDLL(None)
        while self._left and idle():
            address = ctypes.c_void_p(self._left.pop())
            if libc.madvise(address, ctypes.c_size_t(SIZE), MADV_COLLAPSE):
                self._left.clear()  # a kernel before 6.1, or no free huge page is left
        self.postponed = bool(self._left)


def asked() -> bool:
    """Whether huge pages are requested. The last entry has priority."""
    overrides = ASKED.findall(os.environ.get("GLIBC_TUNABLES", ""))
    return sys.platform == "linux" and bool(overrides) and overrides[-1] == "1"


def virtual() -> bool:
    """Whether this is a virtual machine. ARM CPUs do not report it."""
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as cpuinfo:  # noqa: PTH123 - reads only the first CPU
            return re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo.read(_FIRST), re.MULTILINE) is not None
    except OSError:
        return False


def whole_ranges() -> list[int]:
    """Return addresses of this process's private memory in ranges of 2 MiB that are completely present."""
    addresses = []
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - the current mappings of this process
            ranges = [(int(m[1], 16), int(m[2], 16)) for m in map(_MAP.match, maps) if m]
        with open("/proc/self/pagemap", "rb") as pages:  # noqa: PTH123 - as above
            for begin, end in ranges:
                for at in range(begin + -begin % SIZE, end - SIZE + 1, SIZE):
                    pages.seek(at // _SMALL * _ENTRY)
                    entries = pages.read(SIZE // _SMALL * _ENTRY)
                    if min(entries[_ENTRY - 1 :: _ENTRY], default=0) >= _PRESENT:
                        addresses.append(at)
    except OSError:
        return []
    return addresses


def _forbid(value: int) -> bool:
    """Disable huge pages for this process and its children, or restore the system's setting; False if it failed."""
    return bool(ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, value, 0, 0, 0) == 0)
