"""A log that cannot fill a disk: repeated lines are counted instead, and a file of the window's is begun again."""

import asyncio
import logging
import os
import stat
import sys
import time
from typing import Final

# Lines of one kind in a window of time; one request writes one line, so this is a hundred requests a second.
_SAME_LINES: Final = 1000
_WINDOW_S: Final = 10.0
# What is kept of the file, and how large it may become.
FILE_BYTES: Final = 16 << 20
TAIL_BYTES: Final = 1 << 20
_LOOK_S: Final = 15.0
# Set by whoever gives this process a file for its standard error that is its own to shorten.
OWN_LOG: Final = "TESSERA_OWN_LOG"


log = logging.getLogger(__name__)


def ignored_in_a_line() -> None:
    """What Python cannot raise is one line: an event loop half made for want of descriptors, taken apart."""
    sys.unraisablehook = lambda raised: log.warning(
        "ignored in %s: %s: %s",
        getattr(raised.object, "__qualname__", "?"),
        raised.exc_type.__name__,
        raised.exc_value,
    )


class Sparing(logging.Filter):
    """Lets at most _SAME_LINES of one kind through in _WINDOW_S, and says how many it kept."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written."""
        key = (record.name, str(record.msg)[:100])
        now = time.monotonic()
        began, count = self._seen.get(key, (now, 0))
        if now - began > _WINDOW_S:
            if count > _SAME_LINES:
                record.msg = f"[{count - _SAME_LINES} lines like this were left out] {record.msg}"
            began, count = now, 0
        if len(self._seen) > _SAME_LINES:
            self._seen.clear()
        self._seen[key] = began, count + 1
        return count < _SAME_LINES


def shorten(descriptor: int) -> bool:
    """Keep only the end of a log file that has grown too large; it must be open for reading and appending."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= FILE_BYTES:
        return False
    tail = os.pread(descriptor, TAIL_BYTES, status.st_size - TAIL_BYTES)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"[the log was shortened]\n" + tail.partition(b"\n")[2])
    return True


async def bound_log(descriptor: int = 2) -> None:
    """Look after the log for as long as the server runs."""
    if not os.environ.get(OWN_LOG) or not hasattr(os, "pread"):
        return
    while True:
        try:
            shorten(descriptor)
        except OSError:
            return  # not readable: a file of someone else
        await asyncio.sleep(_LOOK_S)
