"""API keys of connected programs, such as an editor: one key per program.

Unlike keys that a user creates, these do not make keys required. Clients without a key still connect, and when the
user creates the first key, connected programs continue to work. The keys are stored in plain text, as in the
programs' own configurations.
"""

import hmac
import secrets
from pathlib import Path
from typing import Final

from engine.core.json_store import JsonStore, with_row

_PREFIX: Final = "tsr_"


class ProgramKeys:
    """One key per program, by its name. Each allows what the scope `chat` allows."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, str], dict, private=True)

    def names(self) -> tuple[str, ...]:
        return tuple(self._store.get())

    def key(self, program: str) -> str | None:
        """Return the program's key; None if it has none."""
        return self._store.get().get(program)

    def make(self, program: str) -> str:
        """Return the program's key; create it if it has none."""
        new_key = _PREFIX + secrets.token_urlsafe(32)
        return self._store.change(lambda keys: keys if program in keys else {**keys, program: new_key})[program]

    def remove(self, program: str) -> bool:
        """Revoke the program's key; False if it has none."""
        with self._store.locked():
            existed = program in self._store.get()
            self._store.change(lambda keys: with_row(keys, program, None))
            return existed

    def knows(self, key: str) -> bool:
        """Whether the key belongs to one of the programs."""
        presented = key.encode("utf-8", "surrogatepass")
        return any(hmac.compare_digest(stored.encode(), presented) for stored in self._store.get().values())
