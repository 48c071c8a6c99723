"""`tessera models converter`: llama.cpp's converter; commands offer it for model families that need it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from app.cli.echo import echo, print_json
from app.cli.progress import bar
from app.format import size

if TYPE_CHECKING:
    from app.client import Client
    from engine.api.converting import ConverterState

T = TypeVar("T")
NEEDED = "converter_needed"


@click.group("converter")
def converter_command() -> None:
    """Manage llama.cpp's converter, for model families that Tessera's does not support."""


@converter_command.command("show")
@click.option("--architectures", is_flag=True, help="List the architectures it knows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_command(architectures: bool, as_json: bool) -> None:
    """Show whether the converter is installed, its disk space, and the size of its download."""
    from app.cli.job_line import this_computers_server

    with this_computers_server() as client:
        state = client.converter()
    if as_json:
        print_json(state)
        return
    if state.installed:
        echo(f"llama.cpp's converter ({state.version}) is here: {size(state.bytes)} in {state.path}")
    else:
        leftover = f" {size(state.bytes)} of an earlier try are here." if state.bytes else ""
        echo(f"llama.cpp's converter ({state.version}) is not here. {_cost(state)}{leftover}")
    if architectures:
        echo("\n".join(state.architectures))


@converter_command.command("install")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def install_command(yes: bool) -> None:
    """Download the converter. Ctrl-C stops; the same command continues."""
    from app.cli.job_line import this_computers_server

    with this_computers_server() as client:
        get_converter(client, ask=not yes)


@converter_command.command("remove")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def remove_command(yes: bool) -> None:
    """Remove the converter and its packages; converted models stay."""
    from app.cli.job_line import this_computers_server

    with this_computers_server() as client:
        state = client.converter()
        if not state.bytes:
            echo("llama.cpp's converter is not here.")
            return
        if not yes:
            click.confirm(f"Remove llama.cpp's converter, {size(state.bytes)}?", abort=True, err=True)
        freed = client.remove_converter().freed_bytes
    echo(f"Removed: {size(freed)} are free again.")


def get_converter(client: "Client", *, ask: bool) -> None:
    """Install the converter if it is missing; prints the cost first. Raises: click.Abort: the user declines."""
    from app.cli.job_line import finish
    from engine.api.converting import ConverterFetched

    state = client.converter()
    if state.installed:
        echo("llama.cpp's converter is here.")
        return
    echo(_cost(state), err=True)
    if ask:
        click.confirm("Get llama.cpp's converter?", abort=True, err=True)
    with bar() as show:
        fetched = finish(client, client.fetch_converter(), ConverterFetched, show)
    echo(f"llama.cpp's converter is ready: {size(fetched.bytes)} in {fetched.path}", err=True)


def with_converter(client: "Client", work: Callable[[], T], *, ask: bool) -> T:
    """Run `work`; if it needs llama.cpp's converter and the user agrees, install it and run `work` again.

    Raises: click.Abort: the user declines. Also any error of `work`.
    """
    from app.client import JobFailed

    try:
        return work()
    except JobFailed as error:
        if error.code != NEEDED:
            raise
        echo(error.message, err=True)
    get_converter(client, ask=ask)
    return work()


def _cost(state: "ConverterState") -> str:
    minutes = max(1, round(state.seconds / 60))
    return (
        f"Getting it downloads about {size(state.download_bytes)} (torch for the CPU, transformers), takes "
        f"about {minutes} min over a fast line and {size(state.disk_bytes)} of disk. "
        "`tessera models converter remove` removes it."
    )
