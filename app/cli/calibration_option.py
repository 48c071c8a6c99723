"""`tessera quantize --calibration`: a text file, or a text built from files, folders and chats."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from app.cli.echo import echo
from app.db.backup import chat_texts
from app.format import counted
from engine.services import EngineFacade

_CHATS = "chats"


@contextmanager
def calibration_options(names: tuple[str, ...], services: EngineFacade, *, ask: bool) -> Iterator[dict[str, str]]:
    """Options for the quantization job; a text file built here is deleted at the end.

    Raises: click.Abort: the user does not allow reading chats. click.UsageError: no such file. InputFault: no text.
    """
    paths = [Path(n).expanduser() for n in names if n != _CHATS]
    if missing := [p for p in paths if not p.exists()]:
        raise click.UsageError(f"--calibration: there is no {missing[0]}")
    if not names:
        yield {}
        return
    if len(paths) == len(names) == 1 and paths[0].is_file():
        yield {"calibration": str(paths[0].absolute())}
        return
    chats: list[str] = []
    if _CHATS in names:
        chats = chat_texts(services.paths.state / "chats.db")
        if ask:
            click.confirm(
                f"Calibrate on your {len(chats)} chats? They are read on this computer only. The text made of them "
                "is removed afterwards, and the file contains none of it.",
                abort=True,
                err=True,
            )
    with TemporaryDirectory(prefix="calibration-") as scratch:
        text = services.own_text(paths, Path(scratch), chats)
        sources = f"{counted(text.files, 'file')} and {counted(len(chats), 'chat')}"
        echo(f"{text.characters:,} characters of {sources}", err=True)
        if text.held_out is None:
            echo("too little text for a held-out part: the gain cannot be measured", err=True)
            yield {"calibration": str(text.calibration)}
        else:
            yield {"calibration": str(text.calibration), "own_text": str(text.held_out)}
