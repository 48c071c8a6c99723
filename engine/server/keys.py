"""API keys with scopes. Only their hashes are kept, so the file betrays no key."""

import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.errors import InputFault

Scope = Literal["chat", "manage"]
MAX_KEYS: Final = 1000
_PREFIX: Final = "tsr_"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. `chat` may run models; `manage` may also change what is on the disk and what is loaded."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = ("chat",)
    created_at: float = 0.0


class BadKeyFile(InputFault):
    """The file of keys cannot be read; without it the server would be open."""

    code = "bad_key_file"


def digest(key: str) -> str:
    """The hash a key is known by. Keys are random, so one round is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class KeyStore:
    """The keys of this installation, read again when another process changed the file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: dict[str, ApiKey] = {}

    def all(self) -> tuple[ApiKey, ...]:
        """Every key. Raises: BadKeyFile."""
        self._read()
        return tuple(self._keys.values())

    def scopes(self, key: str) -> tuple[Scope, ...] | None:
        """What this key allows; None if it is none of ours. Raises: BadKeyFile."""
        self._read()
        found = self._keys.get(digest(key))
        return found.scopes if found is not None else None

    def add(self, name: str, scopes: tuple[Scope, ...]) -> str:
        """Make a key and return it: the only time it is seen. Raises: InputFault, BadKeyFile."""
        self._read()
        if not name or len(name) > 100 or any(k.name == name for k in self._keys.values()):  # noqa: PLR2004
            raise InputFault(f"A key needs a name of its own, up to 100 characters; {name!r} is not.", "name")
        if len(self._keys) >= MAX_KEYS:
            raise InputFault(f"There are already {MAX_KEYS} keys.", "name")
        key = _PREFIX + secrets.token_urlsafe(32)
        made = ApiKey(name=name, sha256=digest(key), scopes=scopes or ("chat",), created_at=time.time())
        self._keys[made.sha256] = made
        self._write()
        return key

    def remove(self, name: str) -> bool:
        """Revoke a key by its name; False when there is none. Raises: BadKeyFile."""
        self._read()
        found = next((k for k in self._keys.values() if k.name == name), None)
        if found is None:
            return False
        del self._keys[found.sha256]
        self._write()
        return True

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            info = self._path.stat()
            stamp = (info.st_mtime_ns, info.st_size)
            if stamp == self._stamp:
                return
            keys = msgspec.json.decode(self._path.read_bytes(), type=list[ApiKey])
        except FileNotFoundError:
            self._stamp, self._keys = None, {}
            return
        except (OSError, msgspec.MsgspecError) as error:
            raise BadKeyFile(f"{self._path} cannot be read: {error}. Mend it or remove it.") from error
        self._stamp, self._keys = stamp, {k.sha256: k for k in keys}

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(msgspec.to_builtins(list(self._keys.values())), file, indent=1)
        temporary.replace(self._path)
        self._stamp = None
