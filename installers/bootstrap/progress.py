"""Lines about progress while Tessera is set up or built.

Nothing here raises: standard output may be closed, a pipe whose reader has left, or unable to show a character, and
a build of minutes must not end because of that.
"""

import os
import sys
from contextlib import suppress


def is_terminal() -> bool:
    """Standard output is a terminal, where a line can be drawn again in place."""
    with suppress(Exception):
        return sys.stdout.isatty()
    return False


def show(text: str = "") -> None:
    """Print a line."""
    with suppress(Exception):
        print(text, flush=True)


def redraw(text: str) -> None:
    """Draw the current line of a terminal again."""
    with suppress(Exception):
        print(f"\r{text}", end="", flush=True)


def open_closed_streams() -> None:
    """Give standard streams that were closed (`>&-`) a place to write to.

    The next file opened would get their number, and the children that inherit it would write into that file.
    """
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error's
            os.set_inheritable(opened, True)
        os.close(opened)
