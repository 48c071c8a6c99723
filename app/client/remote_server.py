"""The server on another machine that terminal and window use instead of the local one."""

import os
from typing import Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from app.client.chat_client import ChatClient
from engine.core.json_store import JsonStore
from engine.core.paths import Paths, user_paths
from engine.upstreams.keys import UpstreamKeys

C = TypeVar("C", bound=ChatClient)

# These environment variables override the choice of `tessera connect`.
URL_VARIABLE: Final = "TESSERA_SERVER"
KEY_VARIABLE: Final = "TESSERA_KEY"
_KEY: Final = "connected-server"


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """Server that the user's commands use; empty for this computer."""

    url: str = ""


class RemoteServer:
    """Stores the choice of `tessera connect`: the URL in a file, the key in the keyring or a private file."""

    def __init__(self, paths: Paths | None = None) -> None:
        config = (paths or user_paths()).config
        self._store = JsonStore(config / "connected.json", Connected, Connected)
        self._keys = UpstreamKeys(config / "connected-key.json")

    @property
    def url(self) -> str:
        """Server URL; empty for the local server."""
        return os.environ.get(URL_VARIABLE, "").strip() or self._store.get().url

    def client(self, kind: type[C]) -> C | None:
        """A client of the chosen server; None if none is chosen. Raises: InputFault: invalid URL."""
        from_environment = os.environ.get(URL_VARIABLE, "").strip()
        if from_environment:
            url, key = parts_of(from_environment)
            return kind(url, os.environ.get(KEY_VARIABLE) or key)
        url = self._store.get().url
        return kind(url, self._keys.get(_KEY)) if url else None

    def choose(self, url: str, key: str | None) -> str:
        """Use this server from now on; return where the key is stored, or ""."""
        self._store.put(Connected(url=url))
        if key is None:
            self._keys.remove(_KEY)
            return ""
        return self._keys.put(_KEY, key)

    def forget(self) -> None:
        """Use the local server again."""
        self._store.put(Connected())
        self._keys.remove(_KEY)


def parts_of(link: str) -> tuple[str, str | None]:
    """URL and key of a link as in the QR code: `http://host:port/chat#key=KEY`. Raises: InputFault."""
    from engine.upstreams.registry import checked_url

    parts = urlsplit(link.strip())
    key = parse_qs(parts.fragment).get("key", [None])[0]
    bare = link.strip().partition("#")[0]
    return checked_url(bare.rstrip("/").removesuffix("/chat")), key
