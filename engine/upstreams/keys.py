"""Stores keys of upstreams in the system's keyring or, if there is none, in a file for this user only."""

import logging
import secrets
from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.core.json_store import JsonStore, with_row

log = logging.getLogger(__name__)
_SERVICE: Final = "tessera-upstreams"
KeyStorage = Literal["keyring", "file"]


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, or None if the keyring has it. `revision` changes with each new key."""

    revision: str
    key: str | None = None


class UpstreamKeys:
    """Maps an upstream's name to its key. All calls but `entry` block; a keyring may ask the user to unlock it."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonStore(path, dict[str, StoredKey], dict, private=True)

    def entry(self, name: str) -> StoredKey | None:
        """The entry in the file. It avoids an unlock prompt if the keyring has no key of Tessera's."""
        return self._file.get().get(name)

    def get(self, name: str) -> str | None:
        stored = self.entry(name)
        if stored is None:
            return None
        return stored.key if stored.key is not None else _from_keyring(name)

    def put(self, name: str, key: str) -> KeyStorage:
        """Store a key; return where it was stored. Raises: OSError: the file cannot be written."""
        where: KeyStorage = "keyring" if _to_keyring(name, key) else "file"
        entry = StoredKey(revision=secrets.token_hex(8), key=None if where == "keyring" else key)
        self._file.change(lambda stored: with_row(stored, name, entry))
        return where

    def remove(self, name: str) -> None:
        """Delete a key, if there is one."""
        entry = self.entry(name)
        if entry is None:
            return
        if entry.key is None:
            _to_keyring(name, None)
        self._file.change(lambda stored: with_row(stored, name, None))

    def storage(self, name: str) -> KeyStorage | None:
        """Where its key is stored; None if it has none."""
        stored = self.entry(name)
        return None if stored is None else "file" if stored.key is not None else "keyring"


def _from_keyring(name: str) -> str | None:
    import keyring
    import keyring.errors

    try:
        return keyring.get_password(_SERVICE, name)
    except (keyring.errors.KeyringError, OSError) as error:
        log.warning("the keyring does not give the key of upstream %s: %s", name, type(error).__name__)
        return None


def _to_keyring(name: str, key: str | None) -> bool:
    """Write or delete a key; False if there is no keyring."""
    import keyring
    import keyring.errors

    try:
        if key is None:
            keyring.delete_password(_SERVICE, name)
        else:
            keyring.set_password(_SERVICE, name, key)
    except (keyring.errors.KeyringError, OSError) as error:
        log.info("no keyring: %s", type(error).__name__)
        return False
    return True
