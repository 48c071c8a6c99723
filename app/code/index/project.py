"""The index of one project: built once, then updated with what changed."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.code.errors import PathRefused
from app.code.index.database import IndexDatabase, delete_unused, index_path
from app.code.index.walk import MAX_INDEXED_BYTES, FoundFile, is_ignored, walk
from app.code.index.worker import ParsedFile
from app.code.workspace import Workspace
from devices.child import BoundedChild, ChildFailed
from devices.msgspec_lock import learned

# Files per transaction: an interrupted first build continues where it stopped.
_TRANSACTION_FILES = 256


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """Numbers of files in one refresh."""

    num_files: int
    num_parsed: int
    num_removed: int


class ProjectIndex:
    """Search and symbols of a workspace. Calls are serialized; thread-safe."""

    def __init__(self, workspace: Workspace, cache: Path, num_workers: int | None = None) -> None:
        self.workspace = workspace
        path = index_path(cache, workspace.root)
        self.database = IndexDatabase(path)
        delete_unused(path)
        self.lock = self.database.lock
        self._pool = ParserPool(workspace.root, num_workers)

    def refresh(self, on_progress: Callable[[int, int], None] | None = None) -> Refreshed:
        """Update the whole index; `on_progress(done, total)` counts files that need parsing."""
        with self.lock:
            indexed = self.database.indexed_files()
            files = {file.path: file for file in walk(self.workspace.root)}
            removed = indexed.keys() - files.keys()
            self.database.remove(removed)
            changed = [f for p, f in files.items() if indexed.get(p) != (f.size_bytes, f.mtime_ns)]
            self._parse(changed, on_progress)
            return Refreshed(num_files=len(files), num_parsed=len(changed), num_removed=len(removed))

    def update(self, paths: Iterable[str]) -> Refreshed:
        """Update single files: after an edit, a save, or a file system event."""
        with self.lock:
            present: list[FoundFile] = []
            removed: list[str] = []
            for path in paths:
                file = self._file_entry(path)
                if file is None:
                    removed.append(path)
                else:
                    present.append(file)
            self.database.remove(removed)
            self._parse(present, None)
            return Refreshed(num_files=len(present), num_parsed=len(present), num_removed=len(removed))

    def _file_entry(self, path: str) -> FoundFile | None:
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


# Paths per request: enough to keep a worker busy, few enough to balance the load.
_BATCH = 16
# A file that takes longer to parse is skipped; ordinary files take a few milliseconds.
PARSE_LIMIT_S = 20.0
# Address space of one worker. Measured: log entry "Project index".
MEMORY_LIMIT_BYTES = 2 << 30
_TWO = 2


class ParserPool:
    """Up to `num_workers` child processes that parse files of one project; started on first use."""

    def __init__(self, root: Path, num_workers: int | None = None) -> None:
        self._root = root
        self._num_workers = num_workers or max(1, min(_TWO, os.cpu_count() or 1))
        self._idle: queue.SimpleQueue[BoundedChild] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def parse(self, paths: Sequence[str]) -> Iterator[ParsedFile]:
        """Parse all paths, in any order; a file that crashes or stalls its parser is returned as a problem."""
        batches: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        for start in range(0, len(paths), _BATCH):
            batches.put(paths[start : start + _BATCH])
        results: queue.Queue[ParsedFile | None] = queue.Queue(maxsize=8 * _BATCH)
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._drain, args=(batches, results, stop), name="code-index")
            for _ in range(min(self._num_workers, max(1, len(paths) // _BATCH)))
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                parsed = results.get()
                if parsed is None:
                    running -= 1
                else:
                    yield parsed
        finally:
            stop.set()
            while any(thread.is_alive() for thread in threads):
                with contextlib.suppress(queue.Empty):
                    results.get(timeout=0.05)
            for thread in threads:
                thread.join()

    def _drain(
        self,
        batches: "queue.SimpleQueue[Sequence[str]]",
        results: "queue.Queue[ParsedFile | None]",
        stop: threading.Event,
    ) -> None:
        try:
            while not stop.is_set():
                try:
                    batch = list(batches.get_nowait())
                except queue.Empty:
                    return
                child = self._take()
                for path in batch:
                    if stop.is_set():
                        break
                    results.put(self._parsed(child, path))
                self._give_back(child)
        finally:
            results.put(None)

    @staticmethod
    def _parsed(child: BoundedChild, path: str) -> ParsedFile:
        try:
            return msgspec.msgpack.decode(
                child.ask_blocking(path.encode("utf-8", "surrogateescape")), type=learned(ParsedFile)
            )
        except ChildFailed as failed:  # the next file gets a new child
            return ParsedFile(path, problem=_failure_text(failed))

    def _take(self) -> BoundedChild:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        return BoundedChild(
            "app.code.index.worker", str(self._root), timeout_s=PARSE_LIMIT_S, memory_bytes=MEMORY_LIMIT_BYTES
        )

    def _give_back(self, child: BoundedChild) -> None:
        with self._lock:
            if not self._closed:
                self._idle.put(child)
                return
        child.close()

    def close(self) -> None:
        """Stop the child processes."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()


def _failure_text(failed: ChildFailed) -> str:
    """The reason why a file has no symbols, as text for the index."""
    if failed.timed_out:
        return f"parsing took longer than {PARSE_LIMIT_S:.0f} s"
    return f"the parser ended with code {failed.exit_code}"
