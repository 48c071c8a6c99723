"""Keeps the log from filling the disk: limits repeated lines and shortens the log file of the GUI's server."""

import asyncio
import logging
import os
import stat
import sys
import time
from typing import Final

# Maximum lines of one kind per window. One request writes one line, so this allows 100 requests per second.
_SAME_LINES: Final = 1000
_WINDOW_S: Final = 10.0
# Maximum size of the log file, and the part that remains after shortening.
FILE_BYTES: Final = 16 << 20
TAIL_BYTES: Final = 1 << 20
_LOOK_S: Final = 15.0
_STDERR: Final = 2
# The parent process sets this if standard error is a log file that this process may shorten.
OWN_LOG: Final = "TESSERA_OWN_LOG"


log = logging.getLogger(__name__)


def ignored_in_a_line() -> None:
    """Log exceptions that Python cannot raise as one line, for example from a half-created event loop."""
    sys.unraisablehook = lambda raised: log.warning(
        "ignored in %s: %s: %s",
        getattr(raised.object, "__qualname__", "?"),
        raised.exc_type.__name__,
        raised.exc_value,
    )


class LogRateLimit(logging.Filter):
    """Passes at most _SAME_LINES of one kind per _WINDOW_S, and reports the number of dropped lines."""

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
    """Truncate a log file that is too large to its last part; it must be open for reading and appending."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= FILE_BYTES:
        return False
    tail = os.pread(descriptor, TAIL_BYTES, status.st_size - TAIL_BYTES)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"[the log was shortened]\n" + tail.partition(b"\n")[2])
    return True


async def bound_log() -> None:
    """Limit the log's size while the server runs."""
    if not os.environ.get(OWN_LOG) or not hasattr(os, "pread"):
        return
    while True:
        try:
            shorten(_STDERR)
        except OSError:
            return  # not readable: the file belongs to another program
        await asyncio.sleep(_LOOK_S)
