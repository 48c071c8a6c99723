"""Other names for local models, set by the user: `gpt-4o` or `claude-*` may stand for any model."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from engine.core.errors import InputFault
from engine.core.json_store import JsonStore

MAX_ALIASES: Final = 1000
MAX_NAME: Final = 200


class Aliases:
    """Patterns and the models they mean, kept in a file. `*` and `?` match as in file names."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, str], dict)

    def all(self) -> dict[str, str]:
        """Every alias and its model."""
        return {name.casefold(): model for name, model in self._store.get().items()}

    def resolve(self, name: str) -> str:
        """The model that `name` stands for, or `name` itself. An exact alias comes before patterns."""
        names, folded = self.all(), name.casefold()
        if folded in names:
            return names[folded]
        # The longest pattern is the most particular one.
        for pattern in sorted(names, key=len, reverse=True):
            if fnmatchcase(folded, pattern):
                return names[pattern]
        return name

    def set(self, name: str, model: str) -> None:
        """Let `name` stand for `model`. Raises: InputFault: an empty or overlong name, or too many."""
        key = name.strip().casefold()
        if not key or len(key) > MAX_NAME or not model or len(model) > MAX_NAME:
            raise InputFault(f"An alias and its model need 1 to {MAX_NAME} characters.", "alias")
        with self._store.locked():
            names = self.all()
            if key not in names and len(names) >= MAX_ALIASES:
                raise InputFault(f"There are already {MAX_ALIASES} aliases.", "alias")
            self._store.put({**names, key: model})

    def remove(self, name: str) -> bool:
        """Forget an alias; False when there was none."""
        with self._store.locked():
            names = self.all()
            if names.pop(name.strip().casefold(), None) is None:
                return False
            self._store.put(names)
        return True
