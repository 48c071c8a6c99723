"""What `tessera bench` and `tessera autotune` share: the workshop here, and a line that changes in place."""

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.bench.work import Workshop


def open_workshop() -> "Workshop":
    """The workshop of this user. A server that runs is asked nothing: measuring needs a quiet machine anyway."""
    from functools import partial  # noqa: PLC0415 - the commands' own imports wait until they run

    from engine.bench.work import Workshop  # noqa: PLC0415
    from engine.dispatch.placer import Placer  # noqa: PLC0415
    from engine.library.catalogue import Catalogue  # noqa: PLC0415
    from engine.paths import user_paths  # noqa: PLC0415

    paths = user_paths()
    return Workshop(paths, Placer(paths), partial(Catalogue, paths))


def say(text: str) -> None:
    """Where the work is, for people only."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", nl=False, err=True)
