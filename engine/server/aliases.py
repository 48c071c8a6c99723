"""Other names for local models, set by the user: `gpt-4o` or `claude-*` may stand for any model."""

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from engine.errors import InputFault

MAX_ALIASES: Final = 1000
MAX_NAME: Final = 200


class Aliases:
    """Patterns and the models they mean, kept in a file. `*` and `?` match as in file names."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._names: dict[str, str] = {}

    def all(self) -> dict[str, str]:
        """Every alias and its model."""
        self._read()
        return dict(self._names)

    def resolve(self, name: str) -> str:
        """The model that `name` stands for, or `name` itself. An exact alias comes before patterns."""
        self._read()
        folded = name.casefold()
        if folded in self._names:
            return self._names[folded]
        # The longest pattern is the most particular one.
        for pattern in sorted(self._names, key=len, reverse=True):
            if fnmatchcase(folded, pattern):
                return self._names[pattern]
        return name

    def set(self, name: str, model: str) -> None:
        """Let `name` stand for `model`. Raises: InputFault: an empty or overlong name, or too many."""
        self._read()
        key = name.strip().casefold()
        if not key or len(key) > MAX_NAME or not model or len(model) > MAX_NAME:
            raise InputFault(f"An alias and its model need 1 to {MAX_NAME} characters.", "alias")
        if key not in self._names and len(self._names) >= MAX_ALIASES:
            raise InputFault(f"There are already {MAX_ALIASES} aliases.", "alias")
        self._names[key] = model
        self._write()

    def remove(self, name: str) -> bool:
        """Forget an alias; False when there was none."""
        self._read()
        if self._names.pop(name.strip().casefold(), None) is None:
            return False
        self._write()
        return True

    def _read(self) -> None:
        """Read the file again when another process changed it. A damaged file counts as empty."""
        if self._path is None:
            return
        try:
            info = self._path.stat()
            stamp = (info.st_mtime_ns, info.st_size)
            if stamp == self._stamp:
                return
            found = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            self._stamp, self._names = None, {}
            return
        except (OSError, ValueError):
            return
        self._stamp = stamp
        if isinstance(found, dict):
            self._names = {str(k).casefold(): v for k, v in found.items() if isinstance(v, str)}

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self._names, indent=1, sort_keys=True), "utf-8")
        temporary.replace(self._path)
        self._stamp = None
