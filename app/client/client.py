"""A client with every route."""

from app.client.chat_client import ChatClient
from app.client.discovery import chosen_server, server_here
from app.client.routes import Routes
from engine.core.paths import Paths


class Client(ChatClient, Routes):
    """Speaks to one server about everything."""


def running_server(paths: Paths | None = None) -> Client | None:
    """As `chosen_server`. Raises: ApiError."""
    return chosen_server(Client, paths)


def local_server(paths: Paths | None = None) -> Client | None:
    """As `server_here`."""
    return server_here(Client, paths)
