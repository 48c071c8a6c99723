"""What `tessera bench` and `tessera autotune` share: the workshop here, and a line that changes in place."""

import sys
from typing import TYPE_CHECKING

import click

from app.cli.from_settings import obey_offline

if TYPE_CHECKING:
    from engine.measure_jobs.work import Workshop


def open_workshop() -> "Workshop":
    """The workshop of this user. A server that runs is asked nothing: measuring needs a quiet machine anyway."""
    from functools import partial  # noqa: PLC0415 - the commands' own imports wait until they run

    from engine.dispatch.memory_admission import MemoryAdmission  # noqa: PLC0415
    from engine.dispatch.placer import Placer  # noqa: PLC0415
    from engine.dispatch.resources import open_resources  # noqa: PLC0415
    from engine.library.catalogue import Catalogue  # noqa: PLC0415
    from engine.measure_jobs.work import Workshop  # noqa: PLC0415
    from engine.paths import user_paths  # noqa: PLC0415

    obey_offline()
    paths = user_paths()
    placer = Placer(open_resources(paths))
    return Workshop(paths, placer, MemoryAdmission(placer), partial(Catalogue, paths))


def tell_progress(text: str) -> None:
    """Where the work is, for people only."""
    if sys.stderr.isatty():
        from app.tools.shown import shown_text  # noqa: PLC0415 - keeps --help fast

        click.echo(f"\r\033[K{shown_text(text)}", nl=False, err=True)
