"""A client for commands that need a server: the running one, else one of the command's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.remote_server import RemoteServer
from app.server_process import ServerProcess
from engine.services import user_paths

if TYPE_CHECKING:
    from app.client import Client


@contextmanager
def connected(model: str | None = None, *, here: bool = False) -> "Iterator[Client]":
    """The running server, or a private one that ends with the block and begins to load `model` at once.

    `here`: one on this computer, never the one that `tessera connect` chose.
    """
    # Where none has said that it runs, ours starts while this process still imports what speaks to it.
    own = None if user_paths().server_file.exists() or (not here and RemoteServer().url) else _own(model)
    from app.client import local_server, running_server  # noqa: PLC0415 - as just said

    find = local_server if here else running_server
    client = find() if own is None else None
    if client is None:
        own = own or _own(model)
        client = own.connect()
    try:
        yield client
    finally:
        client.close()
        if own is not None:
            own.stop()


def _own(model: str | None) -> ServerProcess:
    return ServerProcess("--model", model) if model is not None else ServerProcess()
