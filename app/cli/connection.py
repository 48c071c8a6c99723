"""A client for commands that need a server: the running one, else one of the command's own."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.client import Client, running_server
from app.server_process import ServerProcess


@contextmanager
def connected() -> Iterator[Client]:
    """The running server, or a private one that ends with the block."""
    client = running_server()
    own = None
    if client is None:
        own = ServerProcess()
        client = own.connect()
    try:
        yield client
    finally:
        client.close()
        if own is not None:
            own.stop()
