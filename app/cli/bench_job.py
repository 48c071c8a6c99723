"""Shared by `tessera bench` and `tessera autotune`: a list of numbers, and a job with one progress line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from app.cli.progress import draw

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.jobs import Job, Measured, Progress


def measure(start: "Callable[[Client], Job]", on_interrupt: Literal["pause", "cancel"] = "cancel") -> "Measured":
    """Start a job, show its progress and return its result. Raises: see `finish`."""
    from app.cli.job_line import finish, this_computers_server
    from engine.api.jobs import Measured

    try:
        with this_computers_server() as client:
            return finish(client, start(client), Measured, _print_progress, on_interrupt=on_interrupt)
    finally:
        _line("")


def source_of(model: str | None) -> str | None:
    """Absolute path of a model file, because the server has another working folder; else the model's name."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_file() else model


def _print_progress(progress: "Progress") -> None:
    count = f"{progress.done}" + (f" of {progress.total}" if progress.total else "")
    _line(f"{progress.note} ({count} {progress.unit})" if progress.done else progress.note)


def _line(text: str) -> None:
    """Show progress, on terminals only."""
    if sys.stderr.isatty():
        from app.tools.types import shown_text

        draw(f"\r\033[K{shown_text(text)}")


class Numbers(click.ParamType[tuple[int, ...]]):
    """Positive numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse `512,2048` to (512, 2048)."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 512,2048", param, ctx)
        if not numbers or min(numbers) < 1 or max(numbers) > 1 << 20:
            self.fail(f"{value!r} has numbers out of range", param, ctx)
        return numbers
