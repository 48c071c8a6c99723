"""`tessera window`."""

import os
import sys
from pathlib import Path

import click

from app.cli.echo import NotPossibleHere


@click.command(help="Open the window. FILES are models or documents to open in it.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def command(files: tuple[Path, ...]) -> None:
    """Open the window; returns when it is closed."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in displays):
        # Qt would abort the process without a display.
        raise NotPossibleHere("There is no display here. Use `tessera chat`, or `tessera serve` for programs.")
    try:
        from app.gui import load_qt

        load_qt()
        from app.gui.application import run
    except ImportError as error:
        from devices.install_hints import add_part

        raise NotPossibleHere(
            f"The window needs PySide6, which is not usable here ({error}). "
            f"Install it with: python3 start.py (or {add_part('window')}). "
            "`tessera chat` works without it."
        ) from error
    raise SystemExit(run([str(path.absolute()) for path in files]))
