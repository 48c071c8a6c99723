"""`tessera connect`: choose a server on another machine for terminal and window."""

import click

from app.cli.echo import echo, secret
from app.client import Client
from app.client.remote_server import RemoteServer, parts_of
from app.format import counted
from engine.services import is_plain_text


@click.command(help="Use a Tessera server on another machine, from terminal and window.")
@click.argument("url", required=False)
@click.option("--off", is_flag=True, help="Use this computer's own server again.")
def command(url: str | None, *, off: bool) -> None:
    """URL may be the link of a QR code, with the key in it; otherwise you are asked for the key."""
    remote = RemoteServer()
    if off:
        remote.forget()
        echo("This computer's own server is used again.")
        return
    if url is None:
        echo(f"Connected to {remote.url}." if remote.url else "This computer's own server is used.")
        return
    address, key = parts_of(url)
    key = key or secret("Key") or None
    with Client(address, key) as client:
        models = client.chat_models()
        manages = client.trusted()
    where = remote.choose(address, key)
    echo(f"Connected to {address}: {counted(len(models), 'model')}. Back: tessera connect --off")
    if where == "file":
        echo("There is no keyring here, so the key is stored in a file that only this user can read.")
    if not manages:
        echo(
            "The key may run models only; to manage that server from here, run there: tessera keys "
            "add NAME --manage"
        )
    if is_plain_text(address):
        echo("Not encrypted: others on the network can read everything. Use https or a tunnel.")
