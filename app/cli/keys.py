"""`tessera keys`: API keys for other users of this server."""

import click

from app.cli.echo import InputRefused, echo, print_json
from engine.services import EngineFacade

_NONE = (
    "There are no keys now: programs on this computer need none, and a server at a public address accepts no "
    "requests. Create one: tessera keys add NAME"
)


@click.group(help="API keys for other programs and machines.")
def command() -> None:
    """The keys live in one file; a running server notices changes."""


@command.command("add")
@click.argument("name")
@click.option("--manage", is_flag=True, help="May also load, download and delete models.")
def add(name: str, *, manage: bool) -> None:
    """Create a key. It is shown only once."""
    echo(EngineFacade().keys.add(name, ("chat", "manage") if manage else ("chat",)))
    echo("Keep it now: only its hash is stored.", err=True)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_keys(*, as_json: bool) -> None:
    """List names and scopes."""
    services = EngineFacade()
    keys = services.keys.all()
    if as_json:
        rows = [{"name": key.name, "scopes": key.scopes} for key in keys]
        print_json({"keys": rows, "programs": services.program_keys.names()})
        return
    for key in keys:
        echo(f"{key.name}\t{', '.join(key.scopes)}")
    for name in services.program_keys.names():
        echo(f"{name}\tchat, of the connected program")
    if not keys:
        echo(_NONE, err=True)


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Revoke a key."""
    services = EngineFacade()
    keys = services.keys
    if not keys.remove(name):
        if not services.program_keys.remove(name):
            raise InputRefused(f"There is no key named {name!r}.")
        echo(f"{name} needs to be connected again: tessera launch {name} --connect", err=True)
        return
    if not keys.all():
        echo(_NONE, err=True)
