"""Progress output while Tessera is set up or built.

Nothing here raises: standard output may be closed, a pipe without a reader, or unable to encode a character. A
build of minutes must not fail because of that.
"""

import io
import os
import sys
from contextlib import suppress


def is_terminal() -> bool:
    """Return whether standard output is a terminal, where a line can be redrawn."""
    with suppress(Exception):
        return sys.stdout.isatty()
    return False


def show(text: str = "") -> None:
    """Print a line."""
    with suppress(Exception):
        print(text, flush=True)


def redraw(text: str) -> None:
    """Redraw the current line of a terminal."""
    with suppress(Exception):
        print(f"\r{text}", end="", flush=True)


def open_closed_streams() -> None:
    """Redirect closed standard streams (`>&-`) to the null device, and let standard output show every text.

    Otherwise the next opened file gets their number, and child processes that inherit it write into that file. A
    line with a character that the terminal lacks, such as a path in another encoding, would not be shown at all.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            sys.stdout.reconfigure(errors="backslashreplace")
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error's
            os.set_inheritable(opened, True)
        os.close(opened)
