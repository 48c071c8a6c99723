"""API keys with scopes. Only hashes are stored, so the file does not reveal a key."""

import hashlib
import secrets
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.core.errors import InputFault
from engine.core.json_store import CorruptStateFile, JsonStore
from engine.message_catalog.reasons import because

Scope = Literal["chat", "manage"]
MAX_KEYS: Final = 1000
LONGEST_NAME: Final = 100
_PREFIX: Final = "tsr_"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. `chat` may run models; `manage` may also change files on disk and loaded models."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = ("chat",)
    created_at: float = 0.0


class BadKeyFile(InputFault):
    """The key file cannot be read; ignoring it would open the server to everyone."""

    code = "bad_key_file"


def digest(key: str) -> str:
    """Return the hash that identifies a key. Keys are random, so one round is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class KeyStore:
    """The keys of this installation, read again if another process changed the file."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, list[ApiKey], list, private=True)

    def all(self) -> tuple[ApiKey, ...]:
        """Return all keys. Raises: BadKeyFile."""
        return tuple(self._read())

    def in_use(self) -> bool:
        """Whether requests need a key: a key file exists, even an empty one. Raises: BadKeyFile."""
        return bool(self.all()) or (self._store.path is not None and self._store.path.exists())

    def scopes(self, key: str) -> tuple[Scope, ...] | None:
        """Return the scopes of this key, or None if it is unknown. Raises: BadKeyFile."""
        key_hash = digest(key)
        return next((stored.scopes for stored in self._read() if stored.sha256 == key_hash), None)

    def add(self, name: str, scopes: tuple[Scope, ...]) -> str:
        """Create a key and return it; it cannot be shown again. Raises: InputFault, BadKeyFile."""
        key = _PREFIX + secrets.token_urlsafe(32)
        api_key = ApiKey(name=name, sha256=digest(key), scopes=scopes or ("chat",), created_at=time.time())
        with self._store.locked():
            keys = self._read()
            if not name.strip() or len(name) > LONGEST_NAME:
                raise InputFault(because("key_name_length", most=LONGEST_NAME), "name")
            if any(stored.name == name for stored in keys):
                raise InputFault(because("key_there", name=name), "name")
            if len(keys) >= MAX_KEYS:
                raise InputFault(because("too_many_keys", most=MAX_KEYS), "name")
            self._store.put([*keys, api_key])
        return key

    def remove(self, name: str) -> bool:
        """Revoke a key by its name; False if there is none. Raises: BadKeyFile."""
        with self._store.locked():
            keys = self._read()
            remaining = [stored for stored in keys if stored.name != name]
            if not remaining and keys:
                self._store.remove()  # without the last key, requests need none
            elif len(remaining) < len(keys):
                self._store.put(remaining)
            return len(remaining) < len(keys)

    def _read(self) -> list[ApiKey]:
        try:
            return self._store.read()
        except CorruptStateFile as error:
            raise BadKeyFile(f"{error} Correct it or remove it.") from error
