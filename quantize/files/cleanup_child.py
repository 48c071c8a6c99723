"""Removes unfinished files when the process that makes them is killed: paths come in on stdin, one a line.

The line "done" means that nothing is left to remove; the end of input without it means that the writer died.
"""

import signal
import sys
import time
from pathlib import Path

# A dying job's children end within this time; a file must not reappear after it was removed.
_CHILDREN_END_S = 2.0


def main() -> int:
    """Read until the writer is done or gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the writer decides; its end is what counts
    paths = []
    for line in sys.stdin:
        if line == "done\n":
            return 0
        paths.append(Path(line.rstrip("\n")))
    deadline = time.monotonic() + _CHILDREN_END_S
    while True:
        for path in paths:
            path.unlink(missing_ok=True)
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
