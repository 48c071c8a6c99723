"""`tessera phone`: opens this computer's server on a phone."""

import socket
from urllib.parse import quote, urlsplit

import click
import segno

from app.cli.echo import InputRefused, NotPossibleHere, echo
from app.client import ApiError, running_server
from engine.api.requests import KeyRequest

_LOCAL = ("127.0.0.1", "localhost", "::1")


@click.command(help="Show a QR code that opens this server's chat page on a phone.")
@click.option("--name", default="phone", show_default=True, help="Name of the new key.")
def command(name: str) -> None:
    """The server must listen at an address that the phone can reach."""
    client = running_server()
    if client is None or urlsplit(client.url).hostname in _LOCAL:
        raise NotPossibleHere(
            "No server of this computer can be reached by a phone. Start one: "
            f"tessera keys add NAME, then tessera serve --host {_address()}"
        )
    with client:
        try:
            key = client.make_key(KeyRequest(name=name))
        except ApiError as error:
            raise InputRefused(f"{error} Choose another: tessera phone --name NAME") from error
        link = f"{client.url}/chat#key={quote(key.key)}"
    segno.make(link, error="m", micro=False).terminal(compact=True)
    echo(link)
    echo(f"Anyone with this link may run models here. To revoke it: tessera keys remove {name}")


def _address() -> str:
    """This computer's address in its local network; found without sending any packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "ADDRESS"
