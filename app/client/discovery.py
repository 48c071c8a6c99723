"""Find the server to use: this user's server on this computer, or the one that `tessera connect` chose."""

import json
import os
from typing import TypeVar

from app.client.chat_client import FIRST_S, ChatClient
from app.client.remote_server import RemoteServer
from engine.core.paths import Paths, user_paths

C = TypeVar("C", bound=ChatClient)


def chosen_server(kind: type[C], paths: Paths | None = None) -> C | None:
    """Client of the server that `tessera connect` chose, else of this user's running server, or None.

    If a server crashed, its file names a dead process and is ignored.
    Raises: ApiError: the chosen server does not respond or rejects the key.
    """
    chosen = RemoteServer(paths).client(kind)
    if chosen is not None:
        try:
            chosen.chat_models()
        except BaseException:
            chosen.close()
            raise
        return chosen
    return server_here(kind, paths)


def server_here(kind: type[C], paths: Paths | None = None) -> C | None:
    """Client of the server on this computer, whatever `tessera connect` chose; None if none runs."""
    try:
        record = json.loads((paths or user_paths()).server_file.read_text())
        client = kind(str(record["url"]), str(record["token"]), int(record["pid"]), local=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # If the process is gone or is another program, any user's program may now use its port.
    if _runs(client.pid) and client.trusted(FIRST_S):
        return client
    client.close()
    return None


def _runs(pid: int) -> bool:
    if os.name == "nt":  # on Windows, `os.kill` would end the process
        import psutil

        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
