"""The index of one project: built once, then kept up to date by what changed."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.code.errors import PathRefused
from app.code.index.database import IndexDatabase, index_path
from app.code.index.walk import MAX_INDEXED_BYTES, FoundFile, is_ignored, walk
from app.code.index.worker import ParsedFile
from app.code.index.workers import ParserPool
from app.code.workspace import Workspace

# Files stored in one transaction: an interrupted first build continues where it stopped.
_TRANSACTION_FILES = 256


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What one refresh did, in files."""

    num_files: int
    num_parsed: int
    num_removed: int


class ProjectIndex:
    """Search and symbols of a workspace. Calls are serialised; safe to use from several threads."""

    def __init__(self, workspace: Workspace, cache: Path, num_workers: int | None = None) -> None:
        self.workspace = workspace
        self.database = IndexDatabase(index_path(cache, workspace.root))
        self.lock = threading.RLock()
        self._pool = ParserPool(workspace.root, num_workers)

    def refresh(self, on_progress: Callable[[int, int], None] | None = None) -> Refreshed:
        """Bring the whole index up to date; `on_progress(done, total)` counts files that needed parsing."""
        with self.lock:
            indexed = self.database.indexed_files()
            found = {file.path: file for file in walk(self.workspace.root)}
            gone = indexed.keys() - found.keys()
            self.database.remove(gone)
            changed = [f for p, f in found.items() if indexed.get(p) != (f.size_bytes, f.mtime_ns)]
            self._parse(changed, on_progress)
            return Refreshed(num_files=len(found), num_parsed=len(changed), num_removed=len(gone))

    def update(self, paths: Iterable[str]) -> Refreshed:
        """Bring single files up to date: after an edit, a save, or a notice of the file system."""
        with self.lock:
            present: list[FoundFile] = []
            gone: list[str] = []
            for path in paths:
                file = self._found(path)
                if file is None:
                    gone.append(path)
                else:
                    present.append(file)
            self.database.remove(gone)
            self._parse(present, None)
            return Refreshed(num_files=len(present), num_parsed=len(present), num_removed=len(gone))

    def _found(self, path: str) -> FoundFile | None:
        try:
            name = self.workspace.normalize(path)
            status = (self.workspace.root / name).lstat()
        except (PathRefused, OSError):
            return None
        if status.st_size > MAX_INDEXED_BYTES or is_ignored(self.workspace.root, name):
            return None
        return FoundFile(name, status.st_size, status.st_mtime_ns)

    def _parse(self, files: list[FoundFile], on_progress: Callable[[int, int], None] | None) -> None:
        by_path = {file.path: file for file in files}
        waiting: list[tuple[FoundFile, ParsedFile]] = []
        done = 0
        for parsed in self._pool.parse(list(by_path)) if by_path else ():
            waiting.append((by_path[parsed.path], parsed))
            done += 1
            if len(waiting) >= _TRANSACTION_FILES:
                self.database.store(waiting)
                waiting.clear()
                if on_progress is not None:
                    on_progress(done, len(by_path))
        self.database.store(waiting)
        if on_progress is not None:
            on_progress(done, len(by_path))

    def close(self) -> None:
        """Stop the parsers and close the database."""
        self._pool.close()
        with self.lock:
            self.database.close()
