"""Bringing a collection's index up to what is on disk: new, changed, unfinished and deleted files."""

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.documents.file_types import size_limit
from engine.documents.reader_process import Reader
from engine.documents.store import READING, Store
from engine.documents.walk import Found, Walk

log = logging.getLogger(__name__)
# A file of some kB can say that it has any amount of text; twenty times the longest novel are no document.
MAX_CHARS: Final = 64_000_000
# After this the next file is read first.
TURN_S: Final = 20.0
Outcome = Literal["done", "later", "stopped"]


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
    queue, turns = deque(waiting), dict.fromkeys((file.path for file in waiting), TURN_S)
    while queue:
        if stopped():
            return False
        file = queue.popleft()
        progress.current = file.path
        outcome = read_file(store, file, reader, stopped, turns[file.path] if queue else None)
        if outcome == "stopped":
            return False
        if outcome == "later":
            turns[file.path] *= 2  # some formats begin again at their first page
            queue.append(file)
        else:
            progress.done += 1
    progress.current = ""
    return True


def read_file(
    store: Store, file: Found, reader: Reader, stopped: Callable[[], bool], turn_s: float | None = None
) -> Outcome:
    """Read one file, from where an earlier reading of the same state of it ended; after `turn_s` others go first.

    Of a document with more than MAX_CHARS the beginning is kept, and the reason stands beside its name.
    """
    begun = time.monotonic()
    row = store.document(file.path)
    same = row is not None and (row.size_bytes, row.mtime_ns) == (file.size_bytes, file.mtime_ns)
    if same and row is not None and row.state == READING:
        ticket, size = store.resume(file.path), row.num_chars
    else:
        title = Path(file.path).stem.replace("_", " ")
        ticket, size = store.begin(file.path, file.kind, file.size_bytes, file.mtime_ns, title), 0
    if file.size_bytes > size_limit(file.kind):
        limit = size_limit(file.kind) >> 20
        store.add_pages(ticket, (), done=True, problem=f"it has {file.size_bytes >> 20} MiB, more than {limit}")
        return "done"
    for answer in reader.read(Path(file.path), file.kind, ticket.first):
        size += sum(len(chunk.text) for page in answer.pages for chunk in page.chunks)
        done, problem = answer.done, answer.problem
        if size > MAX_CHARS and not done:
            done, problem = True, f"it has more than {MAX_CHARS:,} characters; what follows is not read"
        if not store.add_pages(ticket, answer.pages, done=done, problem=problem):
            log.info("reading given up: it is read anew, or removed")
            return "done"
        if done:
            return "done"
        if stopped():
            return "stopped"
        if turn_s is not None and time.monotonic() - begun > turn_s:
            return "later"
    return "done"
