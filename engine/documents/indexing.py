"""Bringing a collection's index up to what is on disk: new, changed, unfinished and deleted files."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.documents.kinds import size_limit
from engine.documents.reading import Reader
from engine.documents.store import READING, Store
from engine.documents.walk import Found, Walk

log = logging.getLogger(__name__)


class Progress(msgspec.Struct, kw_only=True):
    """How far a pass over the files is; counts of files that need work."""

    files: int = 0
    done: int = 0
    current: str = ""


def update(
    store: Store,
    walk: Walk,
    reader: Reader,
    progress: Progress,
    stopped: Callable[[], bool],
) -> bool:
    """Read what is new, changed or unfinished, and forget what is gone. False: it was stopped before the end.

    What the walk could not look at stays as it is known.
    """
    indexed = store.indexed_files()
    waiting: list[Found] = []
    for file in walk.files():
        if stopped():
            return False
        size, mtime, state = indexed.pop(file.path, (-1, -1, ""))
        if (size, mtime) != (file.size_bytes, file.mtime_ns) or state == READING:
            waiting.append(file)
    store.remove([path for path in indexed if not walk.hid(path)])
    progress.files, progress.done = len(waiting), 0
    for file in waiting:
        if stopped():
            return False
        progress.current = file.path
        if not read_file(store, file, reader, stopped):
            return False
        progress.done += 1
    progress.current = ""
    return True


def read_file(store: Store, file: Found, reader: Reader, stopped: Callable[[], bool]) -> bool:
    """Read one file, from where an earlier reading of the same state of it ended. False: it was stopped."""
    row = store.document(file.path)
    same = row is not None and (row.size_bytes, row.mtime_ns) == (file.size_bytes, file.mtime_ns)
    if same and row is not None and row.state == READING:
        ticket = store.resume(file.path)
    else:
        title = Path(file.path).stem.replace("_", " ")
        ticket = store.begin(file.path, file.kind, file.size_bytes, file.mtime_ns, title)
    if file.size_bytes > size_limit(file.kind):
        limit = size_limit(file.kind) >> 20
        store.add_pages(ticket, (), done=True, problem=f"it has {file.size_bytes >> 20} MiB, more than {limit}")
        return True
    for answer in reader.read(Path(file.path), file.kind, ticket.first):
        if not store.add_pages(ticket, answer.pages, done=answer.done, problem=answer.problem):
            log.info("reading given up: it is read anew, or removed")
            return True
        if stopped() and not answer.done:
            return False
    return True
