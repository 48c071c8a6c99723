"""All collections of this user: their configurations, their indexes, and the threads that keep them up to date."""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import apsw
import msgspec
from filelock import Timeout

from engine.core.errors import exhausted
from engine.core.paths import Paths
from engine.documents.collection_config import NAMED, CollectionConfig, Definitions, RemovedCollections, writer_lock
from engine.documents.file_types import size_limit
from engine.documents.reader_process import Reader, ocr_installed
from engine.documents.store import READING, Store
from engine.documents.types import NEEDS_OCR, OCR_MISSING
from engine.documents.vectors import Vectors, packed
from engine.documents.walk import Follower, ScannedFile, Walk, is_below, is_ignore_file, is_there, is_wanted
from engine.message_catalog.reasons import Reason, because

# Updates a collection's index to match the disk: new, changed, unfinished and deleted files.

# A book of 1 MB can name 200,000 chapters that it does not have.
MAX_UNREAD: Final = 10_000
# A file of a few kB can expand to any amount of text. This is twenty times the longest novel.
MAX_CHARS: Final = 64_000_000
# How files are read. If an index was built in another way, all files but these kinds are read again, not PDFs with
# OCR, which is slow; equal passages keep their vectors.
_CUT: Final = "cells and lines of any length, rows by their numbers, forms of PDFs"
_READ_AS_BEFORE: Final = frozenset({"picture", "text"})
# After this time the next file gets a turn.
TURN_S: Final = 20.0
Outcome = Literal["done", "later", "stopped"]


class Progress(msgspec.Struct, kw_only=True):
    """Progress of a pass over the files; counts only files that need work."""

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
    """Read new, changed and unfinished files, and remove deleted ones. False: it was stopped before the end.

    Entries of files that the walk could not access stay.
    """
    store.index_words_again()
    indexed = store.indexed_files()
    # Files that were read before OCR was requested or installed are read again.
    waits = (NEEDS_OCR, *OCR_MISSING) if ocr_installed() else (NEEDS_OCR,)
    scans = store.with_page_problems(waits) if reader.ocr else frozenset()
    cut_now = store.fact("cut") == _CUT
    read_as_before = _READ_AS_BEFORE | ({"pdf"} if reader.ocr else set())
    waiting: list[ScannedFile] = []
    skipped: dict[str, str] = {}
    for file in walk.files():
        if stopped():
            return False
        if file.skipped:
            skipped[file.path] = file.skipped
            continue
        size, mtime, state = indexed.pop(file.path, (-1, -1, ""))
        if (
            (size, mtime) != (file.size_bytes, file.mtime_ns)
            or state == READING
            or file.path in scans
            or (not cut_now and file.kind not in read_as_before)
        ):
            waiting.append(file)
    store.remove([path for path in indexed if not walk.hid(path)])
    store.set_skipped({path: why for path, why in store.skipped().items() if walk.hid(path)} | skipped)
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
            turns[file.path] *= 2  # some formats restart at their first page
            queue.append(file)
        else:
            progress.done += 1
    progress.current = ""
    store.forget_spare()
    if not cut_now:
        store.set_fact("cut", _CUT)
    return True


def read_file(
    store: Store, file: ScannedFile, reader: Reader, stopped: Callable[[], bool], turn_s: float | None = None
) -> Outcome:
    """Read one file, continuing an earlier read of the same version; after `turn_s` other files get a turn.

    Of a document with more than MAX_CHARS, or more than MAX_UNREAD unreadable pages, only the beginning is indexed,
    and the reason is recorded.
    """
    started_at = time.monotonic()
    row = store.document(file.path)
    same = row is not None and (row.size_bytes, row.mtime_ns) == (file.size_bytes, file.mtime_ns)
    if same and row is not None and row.state == READING:
        ticket, size, unread = store.resume(file.path), row.chars, row.unread_pages
    else:
        title = Path(file.path).stem.replace("_", " ")
        ticket, size = store.begin(file.path, file.kind, file.size_bytes, file.mtime_ns, title), 0
        unread = 0
    if file.size_bytes > size_limit(file.path, file.kind):
        limit = size_limit(file.path, file.kind) >> 20
        store.add_pages(ticket, (), done=True, problem=f"it has {file.size_bytes >> 20} MiB, more than {limit}")
        return "done"
    for answer in reader.read(Path(file.path), file.kind, ticket.first):
        size += sum(len(chunk.text) for page in answer.pages for chunk in page.chunks)
        unread += sum(bool(page.problem) for page in answer.pages)
        done, problem = answer.done, answer.problem
        if unread > MAX_UNREAD and not done:
            done, problem = True, f"more than {MAX_UNREAD:,} of its pages cannot be read; what follows is left out"
        if size > MAX_CHARS and not done:
            done, problem = True, f"it has more than {MAX_CHARS:,} characters; what follows is not read"
        if not store.add_pages(ticket, answer.pages, done=done, problem=problem):
            log.info("reading given up: it is read again, or removed")
            return "done"
        if done:
            return "done"
        if stopped():
            return "stopped"
        if turn_s is not None and time.monotonic() - started_at > turn_s:
            return "later"
    return "done"


log = logging.getLogger(__name__)

# Check interval if the system cannot report changes, and for sources on removable drives.
LOOK_AGAIN_S: Final = 60.0
# Passages per embedding batch: a few seconds of work at most, which is lost if a chat starts.
EMBED_BATCH: Final = 24
_IDLE_S: Final = 1.0
# The vectors of an unused collection are freed after this time.
_VECTORS_TTL_S: Final = 600.0
# A changed file up to this size is read within 1 to 2 s; larger ones are read with low priority.
_QUICK_BYTES: Final = 4 << 20
# If more files change together, the whole collection is checked.
_MOST_CHANGED: Final = 200
_SCANNED: Final = ("pdf", "picture")
# Each open index holds four file descriptors. At most this many stay open, and idle ones are closed.
MAX_OPEN: Final = 32
OPEN_S: Final = 30.0
_KINDS: Final = "SELECT DISTINCT kind FROM document"
NONE: Final = "none"


class EmbeddingDeferred(Exception):
    """Embedding is not possible now; `why` is None if other work merely has priority."""

    def __init__(self, why: Reason | None = None) -> None:
        super().__init__(why)
        self.why = why


class EmbeddingModel(NamedTuple):
    """The embedding model, and the prompt that it expects before each passage.

    `server` is the URL of the other server that runs it, empty for this computer.
    """

    id: str
    passage_prefix: str = ""
    server: str = ""


class Embedding(Protocol):
    """Creates embeddings in the background. Called from threads."""

    def model(self, definition: CollectionConfig, used: str) -> EmbeddingModel | None:
        """The collection's embedding model, else the `used` one, else another local one; None if there is none.

        `used` computed the vectors so far. Raises: EmbeddingDeferred.
        """
        ...

    def embed(self, model: EmbeddingModel, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each passage. Raises: EmbeddingDeferred."""
        ...


class OpenCollection:
    """One open collection. Other processes may read its index while this process keeps it up to date.

    `pending`: some passages may lack a vector. If it is False, the index is not opened to check.
    """

    def __init__(self, definition: CollectionConfig, folder: Path, on_open: Callable[[], None]) -> None:
        self.definition = definition
        self.folder = folder
        self.store = Store(folder / "index.db", on_open)
        self.pending = True
        self.vectors = Vectors(self.store)
        self.progress = Progress()
        self.reading = False
        self.embedding_problem: Reason | None = None
        # Why the last pass could not check all files; they are checked again soon.
        self.unseen: Reason | None = None
        self.checked_at = 0.0
        self.asked_at = 0.0
        self.embedded_to = 0
        # The model whose vectors the index has; None until the first pass.
        self.used_model: str | None = None
        self._lock = writer_lock(folder)
        self._turn = threading.Lock()
        self._closed = False

    def owned(self) -> bool:
        """Return whether this process holds the writer lock, and thus keeps the index up to date."""
        with self._turn:
            if self._closed:
                return False
            if not self._lock.is_locked:
                with contextlib.suppress(Timeout, OSError):
                    self._lock.acquire(timeout=0)
            return bool(self._lock.is_locked)

    def rest(self) -> bool:
        """Close the index until it is needed; False if it is in use."""
        if self.reading or not self.store.rest():
            return False
        self._lock.release()
        return True

    def close(self) -> None:
        """Close it for good: a thread that still works on it does not create the folder again."""
        self.store.close()
        with self._turn:
            self._closed = True
            self._lock.release()


class Collections:
    """Entry point to all collections. Threads start with the first collection. Safe from any thread."""

    def __init__(self, paths: Paths, embedding: Embedding | None = None) -> None:
        self.definitions = Definitions(paths.config / "collections.json")
        self.folder = paths.state / "collections"
        self.removed = RemovedCollections(self.folder)
        self.embedding = embedding
        self._live: dict[str, OpenCollection] = {}
        self._lock = threading.RLock()
        self._wake = threading.Condition()
        self._dirty: set[str] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._readers = {False: Reader(), True: Reader(ocr=True)}
        # Readers for files that change during a pass: small files are read immediately, slow ones with lower
        # priority.
        self._quick = Reader(urgent=True)
        self._beside = {False: Reader(), True: Reader(ocr=True)}
        self._warmed: set[str] = set()
        self.follower = Follower(self._changed, self._check_followed)

    # ------------------------------------------------------------------ collections

    def start(self) -> None:
        """Bring every collection up to date, and keep it so."""
        self.removed.delete_left(lambda: {definition.id for definition in self.definitions.all()})
        if self.definitions.all():
            self._begin()

    def live(self, key: str) -> OpenCollection:
        """A collection; its index is opened on first use. Raises: NoCollection."""
        with self._lock:
            return self._live_of(self.definitions.get(key))

    def _live_of(self, definition: CollectionConfig) -> OpenCollection:
        live = self._live.get(definition.id)
        if live is None:
            folder = self.folder / definition.id
            live = self._live[definition.id] = OpenCollection(definition, folder, self._close_surplus)
        live.definition = definition
        return live

    def _close_surplus(self) -> None:
        """Close the least recently used indexes before another one is opened."""
        opened = sorted((v for v in list(self._live.values()) if v.store.is_open), key=lambda v: v.store.used_at)
        surplus = len(opened) + 1 - MAX_OPEN
        for live in opened:
            if surplus <= 0:
                return
            surplus -= live.rest()

    def _rest_idle(self) -> None:
        for live in list(self._live.values()):
            if live.store.is_open and time.monotonic() - live.store.used_at > OPEN_S:
                live.rest()

    def all(self) -> list[OpenCollection]:
        # One step, or a collection that is removed in between is opened again.
        with self._lock:
            return [self._live_of(definition) for definition in self.definitions.all()]

    def add(self, name: str, prefix: str = NAMED, **fields: object) -> OpenCollection:
        """Add a collection and start reading its files. Raises: InputFault."""
        definition = self.definitions.add(name, prefix, **fields)
        self.refresh(definition.id)
        return self.live(definition.id)

    def change(self, key: str, change: Callable[[CollectionConfig], CollectionConfig]) -> OpenCollection:
        """Change the configuration of a collection. Raises: NoCollection."""
        changed = self.definitions.change(key, change)
        self.refresh(changed.id)
        live = self.live(changed.id)
        live.embedding_problem, live.pending = None, True  # a changed configuration may allow embedding
        return live

    def remove(self, key: str, *, restorable: bool = False) -> CollectionConfig:
        """Delete a collection and its index, or keep them to be restored for a time. The files stay.

        Raises: NoCollection.
        """
        removed = self.definitions.remove(key)
        with self._lock:
            live = self._live.pop(removed.id, None)
        if live is not None:
            with live.store.lock:
                live.close()
        if restorable:
            self.removed.keep(removed)
        else:
            shutil.rmtree(self.folder / removed.id, ignore_errors=True)
        self._follow()
        return removed

    def restore(self, key: str) -> OpenCollection:
        """Bring a removed collection back, by its id. Raises: NoCollection, InputFault: its name was taken."""
        self.removed.restore(key, self.definitions)
        self.refresh(key)
        return self.live(key)

    def refresh(self, key: str) -> None:
        """Check a collection's files now."""
        definition = self.definitions.get(key)
        self._mark_dirty(definition.id)
        self._begin()

    def _mark_dirty(self, collection: str) -> None:
        with self._wake:
            self._dirty.add(collection)
            self._wake.notify_all()

    def close(self) -> None:
        """Stop all work; text that was read stays in the index."""
        self._stop.set()
        with self._wake:
            self._wake.notify_all()
        self.follower.stop()
        for thread in self._threads:
            thread.join()
        for reader in (*self._readers.values(), self._quick, *self._beside.values()):
            reader.close()
        with self._lock:
            for live in self._live.values():
                live.close()
            self._live.clear()
        self.removed.delete_old(0.0)

    # ------------------------------------------------------------------ work

    def _begin(self) -> None:
        with self._lock:
            if self._threads or self._stop.is_set():
                return
            for work in (self._read_forever, self._embed_forever):
                thread = threading.Thread(target=work, name=f"documents{work.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _follow(self) -> None:
        sources = [s for d in self.definitions.all() if d.follow for s in d.sources]
        self.follower.follow(sources)

    def _check_followed(self) -> None:
        """Check all files whose changes are followed from now on."""
        for definition in self.definitions.all():
            if definition.follow:
                self._mark_dirty(definition.id)

    def _read_forever(self) -> None:
        while not self._stop.is_set():
            self._follow()
            passed = []
            elsewhere: set[str] = set()  # due, but another process has the writer lock
            for live in self.all():
                if self._stop.is_set():
                    break
                due = live.definition.follow and time.monotonic() - live.checked_at > self._recheck_interval_s(live)
                if due or self.is_reading(live):
                    if live.owned():
                        self._guarded(live)
                        passed.append(live)
                    else:
                        elsewhere.add(live.definition.id)
                if time.monotonic() - live.asked_at > _VECTORS_TTL_S:
                    live.vectors.release()
            if passed and not self._stop.is_set():
                self._get_ready(passed)
            self._rest_idle()
            self.removed.delete_old()
            existing = {definition.id for definition in self.definitions.all()}
            with self._wake:
                self._dirty &= existing
                if self._dirty <= elsewhere and not self._stop.is_set():
                    self._wake.wait(_IDLE_S)

    def is_reading(self, live: OpenCollection) -> bool:
        """Return whether a pass over its files is running or due."""
        return live.reading or not live.checked_at or live.definition.id in self._dirty

    def _get_ready(self, passed: Sequence[OpenCollection]) -> None:
        """End the child processes that read the files; preload the readers of these kinds for later changes."""
        for reader in self._readers.values():
            reader.close()
        kinds: set[str] = set()
        for live in passed:
            if live.definition.follow and not self._is_removed(live):
                with live.store.lock, contextlib.suppress(apsw.Error):  # the collection may have been removed
                    kinds.update(kind for (kind,) in live.store.connection.execute(_KINDS))
        kinds -= {"picture", *self._warmed}  # OCR is slow anyway
        self._quick.warm(kinds)
        self._warmed |= kinds

    def _recheck_interval_s(self, live: OpenCollection) -> float:
        return LOOK_AGAIN_S if self.follower.problem or live.unseen else 10 * LOOK_AGAIN_S

    def _guarded(self, live: OpenCollection) -> None:
        """Run one pass over a collection's files; an error in one collection does not affect the others."""
        live.reading = True
        with self._wake:
            self._dirty.discard(live.definition.id)
        try:
            live.used_model = live.store.fact("embedding_model")
            walk = Walk(live.definition.sources)
            reader = self._readers[live.definition.ocr]
            update(live.store, walk, reader, live.progress, self._interrupted(live))
            live.unseen = None
            for path, why in list(walk.unseen.items())[:1]:
                live.unseen = because("not_checked", what=path, why=why)
                log.warning("%d places of a collection could not be looked at: %s", len(walk.unseen), path)
        except Exception as error:
            if not self._is_removed(live):
                live.unseen = because("not_checked", what=live.definition.name, why=str(error))
                _complain("a collection could not be brought up to date", error)
        finally:
            live.reading, live.pending = False, True
            live.checked_at = time.monotonic()

    def _interrupted(self, live: OpenCollection) -> Callable[[], bool]:
        return lambda: self._stop.is_set() or self._is_removed(live)

    def _is_removed(self, live: OpenCollection) -> bool:
        return self._live.get(live.definition.id) is not live

    def _changed(self, paths: set[str]) -> None:
        """Read files that changed on disk, before other pending reads."""
        for live in self.all():
            definition = live.definition
            mine = [p for p in paths if any(is_below(p, s) for s in definition.sources)]
            if not definition.follow or not mine or not live.owned():
                continue
            try:
                self._read_changed(live, mine)
                live.pending = True
            except Exception as error:
                if not self._is_removed(live):
                    _complain("changed documents could not be read", error)
                    self._mark_dirty(definition.id)

    def _read_changed(self, live: OpenCollection, mine: list[str]) -> None:
        definition = live.definition
        if len(mine) > _MOST_CHANGED or any(_is_tree(live, path) or is_ignore_file(path) for path in mine):
            self.refresh(definition.id)
            return
        changed_paths = [p for p in mine if any(is_below(p, s) and is_wanted(p, s) for s in definition.sources)]
        walk = Walk(changed_paths)
        files = {f.path: f for f in walk.files() if not f.skipped}
        # Handle removed files first. Their vectors are then free for the same text at another path: a moved file.
        for path in mine:
            if walk.hid(path):
                self._mark_dirty(definition.id)
            elif path not in files:
                live.store.remove([path])
                if not os.path.lexists(path):
                    live.store.forget_skipped(path)
        for path in mine:
            file = files.get(path)
            if file is not None and not walk.hid(path):
                read_file(live.store, file, self._reader_of_changed(file, live), self._interrupted(live))
        if not live.reading:
            live.store.forget_spare()

    def _reader_of_changed(self, file: ScannedFile, live: OpenCollection) -> Reader:
        ocr = live.definition.ocr and file.kind in _SCANNED
        return self._beside[ocr] if ocr or file.size_bytes > _QUICK_BYTES else self._quick

    def _embed_forever(self) -> None:
        while not self._stop.is_set():
            worked = False
            models: dict[Any, EmbeddingModel | None] = {}
            for live in self.all():
                if self._stop.is_set():
                    return
                try:
                    worked = self._embed_some(live, models) or worked
                except EmbeddingDeferred as error:
                    live.embedding_problem = error.why
                except Exception as error:
                    if not self._is_removed(live):
                        _complain("passages could not be embedded", error)
            if not worked:
                self._stop.wait(_IDLE_S / 4)

    def _embed_some(self, live: OpenCollection, models: dict[Any, EmbeddingModel | None]) -> bool:
        """Embed a batch. Returns whether there was work. `models` caches the models chosen in this round."""
        definition = live.definition
        if self.embedding is None or definition.embedding_model == NONE or not (live.pending or live.reading):
            return False
        if live.used_model is None:  # the first pass sets it
            return False
        choice = definition.embedding_model, live.used_model, tuple(definition.agreed.items())
        if choice not in models:
            models[choice] = self.embedding.model(definition, live.used_model)
        model = models[choice]
        if model is None:
            raise EmbeddingDeferred(because("no_embedding_model"))
        if not live.owned():
            return False
        live.pending = False  # set again if passages are added now
        try:
            missing = live.store.without_vector(live.embedded_to, EMBED_BATCH)
            has_text = bool(missing) or live.store.num_vectors() > 0
            is_new = has_text and live.store.use_model(model.id, model.passage_prefix)
        except BaseException:
            live.pending = True
            raise
        if not missing and not is_new:
            return False
        live.pending = True
        if is_new:
            live.used_model, live.embedded_to = model.id, 0
            return True
        vectors = self.embedding.embed(model, [text for _, text in missing])
        rows = [(chunk_id, packed(v)) for (chunk_id, _), v in zip(missing, vectors, strict=True)]
        # If another process changed the model meanwhile, begin again.
        live.embedded_to = missing[-1][0] if live.store.add_vectors(model.id, rows) else 0
        live.embedding_problem = None
        return True


def _is_tree(live: OpenCollection, path: str) -> bool:
    """Return whether the path is a folder or was one with documents (not a file that a program renamed away)."""
    if is_there(path):
        return Path(path).is_dir()
    below = path + os.sep
    return any(row.path.startswith(below) for row in live.store.documents(after=below, limit=1))


def _complain(what: str, error: Exception) -> None:
    """Log a bug with its traceback. Log a lack of disk space or descriptors in one line: it will be retried."""
    lack = exhausted(error)
    if lack is None:
        log.error(what, exc_info=error)
    else:
        log.warning("%s, missing: %s: %s", what, lack.what, error)
