"""What `tessera bench` and `tessera autotune` share: a job of the server here, and a line that changes in place."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app.cli.progress import draw

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.jobs import Job, Measured, Progress


def measure(start: "Callable[[Client], Job]", on_interrupt: Literal["pause", "cancel"] = "cancel") -> "Measured":
    """Start a job and show it until it ends; its result. Raises: as `finish`."""
    from app.cli.job_line import finish, this_computers_server  # noqa: PLC0415 - keeps `tessera --help` fast
    from engine.api.jobs import Measured  # noqa: PLC0415 - as above

    try:
        with this_computers_server() as client:
            return finish(client, start(client), Measured, _print_progress, on_interrupt=on_interrupt)
    finally:
        _line("")


def source_of(model: str | None) -> str | None:
    """A file by its whole path, for a server that runs elsewhere; a model's name as it is."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_file() else model


def _print_progress(progress: "Progress") -> None:
    count = f"{progress.done}" + (f" of {progress.total}" if progress.total else "")
    _line(f"{progress.note} ({count} {progress.unit})" if progress.done else progress.note)


def _line(text: str) -> None:
    """Where the work is, for people only."""
    if sys.stderr.isatty():
        from app.tools.types import shown_text  # noqa: PLC0415 - keeps --help fast

        draw(f"\r\033[K{shown_text(text)}")
