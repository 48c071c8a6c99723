"""Other files that help to fill a gap: definitions of the names used near the cursor."""

import re

from app.code.errors import CodeError
from app.code.index.project import ProjectIndex
from engine.chat.fim import FimFile

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_NEAR_LINES = 40
_MAX_NAMES = 60
# A name with more definitions than this says nothing about which is meant.
_MAX_DEFINITIONS = 3
_DEFINITION_LINES = 24


class Neighbours:
    """Chooses context for one buffer at a time and keeps the choice while the cursor stays on its line.

    A choice that moved with every keystroke would cost the cached prompt more than it could tell the model.
    """

    def __init__(self, index: ProjectIndex, budget_chars: int = 4000) -> None:
        self._index = index
        self._budget_chars = budget_chars
        self._key: tuple[str, int] | None = None
        self._files: tuple[FimFile, ...] = ()

    def around(self, path: str, prefix: str) -> tuple[FimFile, ...]:
        """Files for a cursor after `prefix` in `path`, the most telling last."""
        key = (path, prefix.count("\n"))
        if key != self._key:
            self._key, self._files = key, self._choose(path, prefix)
        return self._files

    def _choose(self, path: str, prefix: str) -> tuple[FimFile, ...]:
        near = "\n".join(prefix.split("\n")[:-1][-_NEAR_LINES:])
        # Names nearest to the cursor first; those defined in this file are before the model already.
        names = list(dict.fromkeys(reversed(_NAME.findall(near))))[:_MAX_NAMES]
        pieces: dict[str, list[str]] = {}
        left = self._budget_chars
        with self._index.lock:
            for name in names:
                hits = self._index.database.symbols_named(name, limit=_MAX_DEFINITIONS + 1)
                hits = [h for h in hits if h.name == name and h.kind != "heading"]
                if not hits or len(hits) > _MAX_DEFINITIONS or any(h.path == path for h in hits):
                    continue
                hit = hits[0]
                text = self._lines(hit.path, hit.line, min(hit.end_line, hit.line + _DEFINITION_LINES - 1))
                if text is None or len(text) > left or text in pieces.get(hit.path, ()):
                    continue
                left -= len(text)
                pieces.setdefault(hit.path, []).append(text)
        return tuple(FimFile(p, "\n\n".join(texts)) for p, texts in reversed(pieces.items()))

    def _lines(self, path: str, first: int, last: int) -> str | None:
        try:
            lines = self._index.workspace.read(path).text.split("\n")
        except (CodeError, OSError):
            return None
        return "\n".join(lines[first - 1 : last])
