"""Who may do what: API keys for inference, the local token for management."""

import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from engine.errors import EngineError

MANAGEMENT_PREFIX: Final = "/tessera/"
# Routes of other protocols that change what is on the disk.
MANAGEMENT_PATHS: Final = frozenset({"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"})


class Unauthorized(EngineError):
    """No valid key for this route."""

    code = "invalid_api_key"


def presented_keys(headers: Mapping[str, str]) -> list[str]:
    """Every key a request carries, in all the header forms clients use."""
    keys = []
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        keys.append(value.strip())
    keys.extend(headers[name] for name in ("x-api-key", "api-key") if headers.get(name))
    return keys


class Access:
    """Decides by path and keys. Without API keys anyone on loopback may infer; management needs the token."""

    def __init__(self, token: str, api_keys: Iterable[str] = ()) -> None:
        self.token = token
        self._api_keys = tuple(api_keys)

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Pass, or raise Unauthorized. `/health` is open to all."""
        if path in ("/health", "/"):
            return
        keys = presented_keys(headers)
        if any(_same(key, self.token) for key in keys):
            return
        if path.startswith(MANAGEMENT_PREFIX) or path.rstrip("/") in MANAGEMENT_PATHS:
            raise Unauthorized("This route needs the local management token.")
        if self._api_keys and not any(_same(key, valid) for key in keys for valid in self._api_keys):
            raise Unauthorized("This server needs an API key.")


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(32)


def write_server_file(path: Path, url: str, token: str) -> None:
    """Tell this user's other programs, and only those, where the server is and how to manage it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "token": token, "pid": os.getpid()}, file)
    temporary.replace(path)


def remove_server_file(path: Path) -> None:
    """Remove the file if it is still this process's own."""
    try:
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()
    except (OSError, ValueError, KeyError):
        return
