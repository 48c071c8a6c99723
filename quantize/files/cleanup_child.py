"""Removes unfinished files if the process that writes them is killed; reads paths from stdin, one per line.

The line "done" means that no file is left to remove. End of input without it means that the writer died.
"""

import signal
import sys
import time
from pathlib import Path

# The child processes of a dying job end within this time; a removed file must not reappear.
_CHILDREN_END_S = 2.0


def main() -> int:
    """Read until the writer is done or gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the end of the writer counts
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
