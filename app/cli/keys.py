"""`tessera keys`: who else may use this server."""

from typing import TYPE_CHECKING

import click

from app.cli.say import say

if TYPE_CHECKING:
    from engine.server.keys import KeyStore


@click.group(help="API keys for other programs and machines.")
def command() -> None:
    """The keys live in one file; a running server notices changes."""


@command.command("add")
@click.argument("name")
@click.option("--manage", is_flag=True, help="May also load, fetch and delete models.")
def add(name: str, *, manage: bool) -> None:
    """Make a key. It is shown this once."""
    say(_store().add(name, ("chat", "manage") if manage else ("chat",)))
    say("Keep it now: only its hash is stored.", err=True)


@command.command("list")
def list_keys() -> None:
    """Names and scopes."""
    for key in _store().all():
        say(f"{key.name}\t{', '.join(key.scopes)}")


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Revoke a key."""
    if not _store().remove(name):
        raise click.ClickException(f"There is no key named {name!r}.")


def _store() -> "KeyStore":
    from engine.server.keys import KeyStore  # noqa: PLC0415 - see above
    from engine.services import user_paths  # noqa: PLC0415 - the command's own imports wait until it runs

    return KeyStore(user_paths().config / "api-keys.json")
