"""The server there is: this user's own on this computer, or the one that `tessera connect` chose."""

import json
import os
from typing import TypeVar

from app.client.chat_client import FIRST_S, ChatClient
from app.client.remote_server import RemoteServer
from engine.core.paths import Paths, user_paths

C = TypeVar("C", bound=ChatClient)


def chosen_server(kind: type[C], paths: Paths | None = None) -> C | None:
    """A client for this user's running server, or None. The file of a server that crashed names a dead process.

    Where the user chose a server on another machine (`tessera connect`), a client for that.
    Raises: ApiError: the chosen one does not answer, or refuses the key.
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
    """A client for the server that runs on this computer, whatever `tessera connect` chose; None without one."""
    try:
        found = json.loads((paths or user_paths()).server_file.read_text())
        client = kind(str(found["url"]), str(found["token"]), int(found["pid"]), local=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Where its process is gone, or is another one, any program of any user may hold its port now.
    if _runs(client.pid) and client.trusted(FIRST_S):
        return client
    client.close()
    return None


def _runs(pid: int) -> bool:
    """Whether there is such a process on this computer."""
    if os.name == "nt":  # where `os.kill` ends it
        import psutil  # noqa: PLC0415 - a chat's first token does not wait for it

        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
