"""`tessera logs`: logs of this computer's servers."""

import time
from collections import deque
from pathlib import Path

import click

from app.cli.echo import echo

_LOOK_S = 0.5


@click.command("logs")
@click.option("--lines", "-n", type=click.IntRange(1, 1_000_000), default=100, help="Number of lines.")
@click.option("--follow", "-f", is_flag=True, help="Follow new lines until Ctrl-C.")
def command(lines: int, follow: bool) -> None:
    """Show the log of the running or latest server: requests, loads and errors, never prompts or answers."""
    from app.server_process import server_log

    path = server_log()
    if not path.exists():
        raise click.ClickException(f"There is no log yet: {path} is written by the next server.")
    at = _print_last(path, lines)
    while follow:
        time.sleep(_LOOK_S)
        at = _print_new(path, at)


def _print_last(path: Path, lines: int) -> int:
    """Print the last lines; return the offset after them."""
    with path.open("rb") as file:
        for line in deque(file, lines):
            echo(line.decode("utf-8", "replace").rstrip("\n"))
        return file.tell()


def _print_new(path: Path, at: int) -> int:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(at if at <= file.tell() else 0)  # the file was rotated
            while line := file.readline():
                echo(line.decode("utf-8", "replace").rstrip("\n"))
            return file.tell()
    except FileNotFoundError:  # between two files
        return 0
