"""Client for commands that need a server: uses the running server, else starts a private one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from app.client.remote_server import RemoteServer
from app.server_process import ServerProcess
from engine.services import user_paths

if TYPE_CHECKING:
    from app.client import ChatClient, Client

C = TypeVar("C", bound="ChatClient")


@contextmanager
def connected(model: str | None = None, *, here: bool = False) -> "Iterator[Client]":
    """Yield a client of the running server, or of a private one that starts loading `model` immediately.

    A private server ends with the block. `here`: use a local server, never the one that `tessera connect` chose.
    """

    def kind() -> "type[Client]":
        from app.client import Client

        return Client

    with _connected(kind, model, here=here) as client:
        yield client


@contextmanager
def answering(model: str) -> "Iterator[ChatClient]":
    """The same with a chat-only client, which imports faster, so the first token arrives sooner."""

    def kind() -> "type[ChatClient]":
        from app.client import ChatClient

        return ChatClient

    with _connected(kind, model, here=False) as client:
        yield client


@contextmanager
def _connected(kind: Callable[[], type[C]], model: str | None, *, here: bool) -> Iterator[C]:
    # No server is announced: start a private one while this process still imports the client.
    own = None if user_paths().server_file.exists() or (not here and RemoteServer().url) else _private_server(model)
    client_kind = kind()
    from app.client.discovery import chosen_server, server_here

    find = server_here if here else chosen_server
    client = find(client_kind) if own is None else None
    if client is None:
        own = own or _private_server(model)
        client = own.connect(client_kind)
    try:
        yield client
    finally:
        client.close()
        if own is not None:
            own.stop()


def _private_server(model: str | None) -> ServerProcess:
    return ServerProcess("--model", model) if model is not None else ServerProcess()
