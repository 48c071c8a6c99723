"""A line on the terminal that says where an answer is until its first word."""

import sys
import time

from app.cli.progress import draw
from app.generation_phase import Phase, phase_text

_CLEAR = "\r\x1b[2K"


class PhaseLine:
    """Written to stderr where that is a terminal, and wiped away before the answer."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False

    def show(self, phase: Phase | None) -> None:
        """Say where it is; text of the answer ends the line."""
        if phase is None or not sys.stderr.isatty():
            return
        if phase.name in {"writing", "thinking"}:
            self.clear()
            return
        self._shown = True
        words = phase_text(phase, time.monotonic() - self._began, str, "{:,}".format)
        draw(f"{_CLEAR}{words}")

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._shown:
            self._shown = False
            draw(_CLEAR)
