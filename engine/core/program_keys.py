"""Keys of programs that were connected from here, such as an editor: each has one of its own.

Unlike the keys a user makes they do not make keys required: whoever may connect without a key still may, and when
the first key is made the connected programs go on working. They are readable here, as they are in the programs' own
configurations.
"""

import hmac
import secrets
from pathlib import Path
from typing import Final

from engine.core.json_store import JsonStore, with_row

_PREFIX: Final = "tsr_"


class ProgramKeys:
    """One key for each program, by its name. They allow what the scope `chat` allows."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, str], dict, private=True)

    def names(self) -> tuple[str, ...]:
        """The programs that have a key."""
        return tuple(self._store.get())

    def key(self, program: str) -> str | None:
        """The program's key; None if it has none."""
        return self._store.get().get(program)

    def make(self, program: str) -> str:
        """The program's key, made if it has none."""
        made = _PREFIX + secrets.token_urlsafe(32)
        return self._store.change(lambda keys: keys if program in keys else {**keys, program: made})[program]

    def remove(self, program: str) -> bool:
        """Revoke the program's key; False when it has none."""
        with self._store.locked():
            found = program in self._store.get()
            self._store.change(lambda keys: with_row(keys, program, None))
            return found

    def knows(self, key: str) -> bool:
        """Whether it is the key of one of the programs."""
        presented = key.encode("utf-8", "surrogatepass")
        return any(hmac.compare_digest(known.encode(), presented) for known in self._store.get().values())
