"""Progress of long work on the terminal."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from app.generation_phase import GenerationPhase, phase_text

if TYPE_CHECKING:
    from engine.api.jobs import Progress


def draw(text: str) -> None:
    """Write to the terminal's current line. If the terminal is closed, long work continues."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


class ProgressBar:
    """A progress bar on stderr, created when the first progress arrives."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TextColumn("{task.fields[speed]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("waiting", total=None, speed="")
        self._bar.start()

    def __call__(self, progress: "Progress") -> None:
        from app.format import duration, size

        remaining = "" if progress.eta_s is None else f", {duration(progress.eta_s)} left"
        speed = "stalled" if progress.stalled else f"{size(int(progress.speed))}/s{remaining}"
        self._bar.update(
            self._task,
            description=progress.note or progress.phase,
            completed=progress.done,
            total=progress.total,
            speed=speed,
        )

    def close(self) -> None:
        self._bar.stop()


@contextmanager
def bar() -> Iterator[ProgressBar]:
    """Show a progress bar during the block."""
    shown = ProgressBar()
    try:
        yield shown
    finally:
        shown.close()


_CLEAR = "\r\x1b[2K"


class PhaseLine:
    """Shows the phase of a response on stderr, if it is a terminal; erased before the response."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False

    def show(self, phase: GenerationPhase | None) -> None:
        """Show the phase; erase the line when the response starts."""
        if phase is None or not sys.stderr.isatty():
            return
        if phase.name in {"writing", "thinking"}:
            self.clear()
            return
        self._shown = True
        words = phase_text(phase, time.monotonic() - self._began, str, "{:,}".format)
        draw(f"{_CLEAR}{words}")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            draw(_CLEAR)


class JobLine:
    """A progress line on a terminal, redrawn in place."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def update(self, progress: "Progress") -> None:
        """Show phase, total progress, remaining time and tensor, as much as fits into one line."""
        if not self._enabled:
            return
        from app.format import duration

        share = progress.done / progress.total if progress.total else 0.0
        remaining = "" if progress.eta_s is None else f", {duration(progress.eta_s)} left"
        keeps = ", Ctrl-C keeps the file so far" if progress.partial.get("usable") else ""
        text = f"{progress.phase} {share:4.0%}{remaining}{keeps} {progress.note}"
        # A longer line would continue in the next one, which is not erased.
        draw(f"{_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}")

    def clear(self) -> None:
        if self._enabled:
            draw(_CLEAR)
