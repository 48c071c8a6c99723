"""The model catalogue. It is stored in SQLite, so a restart does not scan the disk again."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from devices.disk_speed import drive_is_here
from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.core.errors import BadModelFile, ModelNotFound, OutOfResources, exhausted, reason_for
from engine.core.paths import BUNDLED_MODELS, Paths, installed_models, is_installed, user_paths
from engine.library import origins
from engine.library.inspect_files import inspect_gguf, inspect_onnx, inspect_safetensors
from engine.library.model_ids import file_title, folder_name, model_id, slug, stem_of
from engine.library.other_apps import find_ollama_models, is_store
from engine.library.scan import Candidate, candidate_at, find_models
from engine.library.types import Details, ModelEntry, Origin, State
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from quantize.files.gguf_split import parse_split_name

_BUSY_MS = 10_000
_SCHEMA_VERSION = 1
# Source: SQLite's documentation of PRAGMA synchronous. With a write-ahead log, NORMAL can lose the last
# transactions in a power cut and OFF can lose the file. Neither loses anything when a process is killed.
_NORMAL, _OFF = 1, 0
_SCHEMA = """
CREATE TABLE models (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, entry BLOB NOT NULL) STRICT;
CREATE TABLE folders (path TEXT PRIMARY KEY, app TEXT) STRICT;
CREATE TABLE hidden (key TEXT PRIMARY KEY) STRICT;
"""


class _Newer(Exception):
    """The file has the schema of a newer Tessera."""


class Store:
    """Entries by key (the model's path), folders to scan, and hidden keys (removed by the user).

    A damaged file is renamed to `.corrupt-<time>` and a new one is created. The disk can be scanned again, so only
    manual links are lost. The store works in memory if the folder is not writable or the file comes from a newer
    Tessera.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._decoder = msgspec.json.Decoder(learned(ModelEntry))
        self._encoder = msgspec.json.Encoder()
        self._decoded: dict[str, ModelEntry] = {}
        self._decoded_at: tuple[object, int] | None = None
        self._is_on_disk = False
        self._db = self._open()

    def _open(self) -> apsw.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._prepare(str(self.path))
        except (apsw.NotADBError, apsw.CorruptError):
            damaged = self.path.with_name(f"{self.path.name}.corrupt-{int(time.time())}")
            self.path.replace(damaged)
            _log.warning("the library's catalogue was damaged; kept as %s, scanning again", damaged)
            return self._prepare(str(self.path))
        except _Newer:
            _log.warning(
                "the library's catalogue %s is a newer program's: left as it is, works in memory", self.path
            )
            return self._prepare(":memory:")
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError, OSError) as error:
            _log.warning("the library cannot keep its catalogue at %s (%s); it works in memory", self.path, error)
            return self._prepare(":memory:")

    @staticmethod
    def _prepare(name: str) -> apsw.Connection:
        db = apsw.Connection(name)
        db.set_busy_timeout(_BUSY_MS)
        if db.pragma("user_version") > _SCHEMA_VERSION:
            db.close()
            raise _Newer
        if db.pragma("user_version") == _SCHEMA_VERSION:
            db.execute("PRAGMA journal_mode=WAL")
            return db
        # A first start waits for this file. `synchronous=OFF` is safe here: the database is still empty and is
        # recreated if it is corrupt. `_to_disk` makes up for it before anything is acknowledged.
        safe = db.pragma("synchronous")
        db.pragma("synchronous", _OFF)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("BEGIN IMMEDIATE")  # two processes may create it concurrently
        try:
            if db.pragma("user_version") == 0:
                db.execute(_SCHEMA)
                db.pragma("user_version", _SCHEMA_VERSION)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        db.pragma("synchronous", safe)
        return db

    def _to_disk(self) -> None:
        """Wait until the disk has the file itself: with an empty one SQLite ignores the log, synced or not."""
        if not self._is_on_disk and not self._db.in_transaction:
            is_busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchone() or (True, 0, 0)
            self._is_on_disk = not is_busy

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._lock:
            self._to_disk()
            self._db.execute(statement, values)

    @contextmanager
    def writing(self, *, is_scan: bool = False) -> Iterator[None]:
        """Open one transaction that excludes writers in other threads and processes.

        `is_scan`: do not wait until the disk has the data. After a power cut the next scan finds it again.
        """
        with self._lock:
            if not is_scan:
                self._to_disk()
            safe = self._db.pragma("synchronous")
            self._db.pragma("synchronous", _NORMAL if is_scan else safe)
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    self._db.execute("ROLLBACK")
                    self._decoded_at = None
                    raise
                self._db.execute("COMMIT")
            finally:
                self._db.pragma("synchronous", safe)

    def entries(self) -> dict[str, ModelEntry]:
        """All entries by key, in the order of ids. They are decoded again only after the database changed.

        Entries that cannot be decoded are omitted and scanned again.
        """
        with self._lock:
            # `data_version` counts changes by other connections, `total_changes` those by this one.
            version = (self._db.pragma("data_version"), self._db.total_changes())
            if version == self._decoded_at:
                return dict(self._decoded)
            rows: list[Any] = self._db.execute("SELECT key, entry FROM models ORDER BY id").fetchall()
            self._decoded = self._decode(rows)
            self._decoded_at = version
            return dict(self._decoded)

    def _decode(self, rows: list[Any]) -> dict[str, ModelEntry]:
        result = {}
        for key, raw in rows:
            try:
                result[str(key)] = self._decoder.decode(raw)
            except (ValueError, RecursionError) as error:
                _log.warning("unreadable catalogue entry key=%s error=%s", key, error)
        return result

    def put(self, key: str, entry: ModelEntry) -> None:
        """Add or replace the entry of `key`."""
        with self._lock:  # the encoder is for one thread at a time
            self._write(
                "INSERT INTO models (id, key, entry) VALUES (?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET id = excluded.id, entry = excluded.entry",
                (entry.id, key, self._encoder.encode(entry)),
            )

    def forget(self, key: str) -> None:
        """Delete the entry of `key`."""
        self._write("DELETE FROM models WHERE key = ?", (key,))

    def hide(self, key: str, *, hidden: bool) -> None:
        """Set or clear the mark that keeps scans from adding `key` again."""
        hide, show = "INSERT OR IGNORE INTO hidden (key) VALUES (?)", "DELETE FROM hidden WHERE key = ?"
        self._write(hide if hidden else show, (key,))

    def hidden(self) -> set[str]:
        """Keys that scans must not add again."""
        with self._lock:
            return {str(key) for (key,) in self._db.execute("SELECT key FROM hidden").fetchall()}

    def watch(self, folder: str, app: str | None) -> None:
        """Scan `folder` from now on; `app` names the application it belongs to."""
        self._write("INSERT OR REPLACE INTO folders (path, app) VALUES (?, ?)", (folder, app))

    def unwatch(self, folder: str) -> None:
        """Do not scan `folder` any more."""
        self._write("DELETE FROM folders WHERE path = ?", (folder,))

    def folders(self) -> dict[str, str | None]:
        """Folders that were linked, with the application each belongs to."""
        with self._lock:
            rows: list[Any] = self._db.execute("SELECT path, app FROM folders ORDER BY path").fetchall()
        return dict(rows)

    def close(self) -> None:
        with self._lock:
            self._db.close()


_log = logging.getLogger(__name__)
_INSTALLATION = ("bundled", "installed")
_OWN = ("hub", "file", "built")
# Increase when readers extract more fields: entries of an older version are then read again.
_INSPECTION = 1
_READERS = {"gguf": inspect_gguf, "safetensors": inspect_safetensors, "onnx": inspect_onnx}


class Changes(msgspec.Struct, frozen=True):
    """Result of a scan: ids of models that are new, whose files changed, or whose files are in another place."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


class Catalogue:
    """Models on disk. Safe for several threads and several processes.

    A scan opens only files that are new or changed since the last scan. A model on an unmounted drive stays listed
    as offline.
    """

    def __init__(self, paths: Paths | None = None, *, scan: bool = True) -> None:
        self.paths = paths or user_paths()
        self.store = Store(self.paths.state / "library.db")
        if scan:
            self.refresh()

    def close(self) -> None:
        """Close the catalogue's database."""
        self.store.close()

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models in the order of ids, each with its current state on disk."""
        return tuple(map(_with_state, self._recorded()))

    def _recorded(self) -> list[ModelEntry]:
        """Stored entries, each with the projector from its folder."""
        recorded = [_with_name(entry) for entry in self.store.entries().values()]
        projectors: dict[Path, str] = {}
        for entry in recorded:
            if entry.details.is_projector:
                projectors.setdefault(entry.path.parent, str(entry.path))
        models = [entry for entry in recorded if not entry.details.is_projector]
        if not projectors:
            return models
        return [
            msgspec.structs.replace(entry, projector=projectors[entry.path.parent])
            if entry.format == "gguf" and not entry.projector and entry.path.parent in projectors
            else entry
            for entry in models
        ]

    def get(self, name: str) -> ModelEntry | None:
        """The model with that id, display name, file name, path or `repository:quantization`; None if unknown."""
        stripped = name.strip()
        entries = self._recorded()
        exact = next((entry for entry in entries if entry.id == stripped), None)
        if exact is not None:
            return _with_state(exact)
        folded = stripped.casefold()
        matches = [entry for entry in entries if folded in _names(entry)]
        return _with_state(matches[0]) if len(matches) == 1 else None

    def refresh(self) -> Changes:
        """Scan the bundled, own and linked folders for new and changed models."""
        candidates: dict[str, tuple[Candidate, str | None]] = {}
        blobs: set[Path] = set()
        for root, app in self.roots():
            for candidate in find_ollama_models(root) if is_store(root) else find_models(root):
                # Snapshots in a Hugging Face cache are links, and two commits may share one file.
                same = Path(candidate.files[0].path).resolve() if app == "huggingface" else None
                if same is None or same not in blobs:
                    candidates.setdefault(candidate.key, (candidate, app))
                if same is not None:
                    blobs.add(same)
        entries = self.store.entries()
        hidden = self.store.hidden()
        fresh = [
            (candidate, app)
            for key, (candidate, app) in candidates.items()
            if key not in hidden and (key not in entries or not _same_files(entries[key], candidate))
        ]
        # Headers are read before the database is locked, so that a slow drive does not block other processes.
        looked = []
        for candidate, app in fresh:
            try:
                looked.append((candidate, *self._inspect(candidate, app)))
            except OutOfResources as lack:  # not the model's fault: the next refresh tries again
                _log.warning("model not looked at path=%s: %s", candidate.key, lack)
        added: list[str] = []
        changed: list[str] = []
        moved: list[str] = []
        if looked:
            with self.store.writing(is_scan=True):
                entries = self.store.entries()
                if any(origin.kind in _INSTALLATION for *_, origin in looked):
                    self._forget_other_installations(entries)
                for candidate, details, problem, origin in looked:
                    is_new, before = candidate.key not in entries, {entry.id for entry in entries.values()}
                    entry = self._record(entries, candidate, details, problem, origin)
                    (changed if not is_new else moved if entry.id in before else added).append(entry.id)
        return Changes(tuple(added), tuple(changed), tuple(moved))

    def add(self, path: Path, origin: Origin | None = None) -> ModelEntry:
        """Add one file or folder to the catalogue without copying it.

        Raises: BadModelFile: not a model, or a broken one; nothing is recorded then.
        """
        candidate, details, found_origin = self.check(path)
        with self.store.writing():
            self.store.hide(candidate.key, hidden=False)
            return self._record(self.store.entries(), candidate, details, None, origin or found_origin)

    def relocate(self, model_id: str, path: Path) -> ModelEntry:
        """List the file or folder at `path` as a model whose files are gone; the model keeps its id and its name.

        If its files have come back meanwhile, or another model has that path, nothing is replaced: the entry of
        `path` is returned, and an entry without files is deleted. `model_id` must exist.

        Raises: BadModelFile: not a model, or a broken one; nothing is changed then.
        """
        candidate, details, origin = self.check(path)
        with self.store.writing():
            self.store.hide(candidate.key, hidden=False)
            entries = self.store.entries()
            key = next(key for key, entry in entries.items() if entry.id == model_id)
            is_gone = key != candidate.key and _state(entries[key]) in {"missing", "offline"}
            if is_gone and candidate.key in entries:
                self.store.forget(key)
                del entries[key]
            return self._record(
                entries, candidate, details, None, origin, key if is_gone and key in entries else None
            )

    def relocated(self, source: Path, target: Path) -> None:
        """List the models below `source` below `target`, because the models folder was moved there."""
        with self.store.writing():
            entries = self.store.entries()
            for key, entry in entries.items():
                new = moved_path(key, source, target)
                if new != key:
                    self.store.forget(key)
                    # A scan may have found it there meanwhile. The entry that is older has the user's settings.
                    if new not in entries or entry.added_at <= entries[new].added_at:
                        self.store.forget(new)
                        self.store.put(new, moved_entry(entry, source, target))
            for key in self.store.hidden():
                if moved_path(key, source, target) != key:
                    self.store.hide(key, hidden=False)
                    self.store.hide(moved_path(key, source, target), hidden=True)

    def check(self, path: Path) -> tuple[Candidate, Details, Origin]:
        """Inspect a file or folder without recording it. Raises: BadModelFile."""
        path = path.absolute()
        try:
            candidate = candidate_at(path)
        except OSError as error:
            raise exhausted(error) or BadModelFile(str(path), error.strerror or str(error)) from error
        if candidate is None:
            raise BadModelFile(str(path), because("no_model_there"))
        details, problem, origin = self._inspect(candidate, None)
        if problem is not None:
            raise BadModelFile(str(path), problem)
        return candidate, details, origin

    def rename(self, model_id: str, name: str) -> ModelEntry:
        """Set the display name of a model; an empty name restores the original. `model_id` must exist."""
        with self.store.writing():
            key, entry = next((key, e) for key, e in self.store.entries().items() if e.id == model_id)
            changed = msgspec.structs.replace(entry, renamed=name or None)
            self.store.put(key, changed)
        return _with_state(_with_name(changed))

    def put(self, entry: ModelEntry) -> None:
        """Record a changed entry (a verified hash, a report)."""
        with self.store.writing():
            key = key_of(entry)
            entries = self.store.entries().get(key)
            own = entries.name if entries is not None and entry.renamed else entry.name
            self.store.put(key, msgspec.structs.replace(entry, name=own))

    def roots(self) -> list[tuple[Path, str | None]]:
        """The folders that are scanned, each with the application it belongs to."""
        linked = [(Path(folder), app) for folder, app in self.store.folders().items()]
        return [(BUNDLED_MODELS, None), (installed_models(), None), (self.paths.models, None), *linked]

    def _forget_other_installations(self, entries: dict[str, ModelEntry]) -> None:
        """Delete entries of other installations, so that an update does not list these models twice."""
        for key, entry in list(entries.items()):
            if entry.origin.kind in _INSTALLATION and not is_installed(Path(key)):
                self.store.forget(key)
                del entries[key]

    def _inspect(self, candidate: Candidate, app: str | None) -> tuple[Details, str | Reason | None, Origin]:
        """The model's details, why it cannot be used (or None), and its origin. Raises: OutOfResources."""
        path = Path(candidate.key)
        origin = origins.of(path, self.paths, app)
        if candidate.expected:
            origin = msgspec.structs.replace(origin, expected=candidate.expected)
        if candidate.missing:
            lost = because("parts_missing", count=len(candidate.missing), first=candidate.missing[0])
            return Details(architecture=""), lost, origin
        try:
            return _READERS[candidate.format](path), None, origin
        except TesseraError as error:
            lack = exhausted(error)
            if lack is not None:
                raise lack from error
            reason = reason_for(error)
            _log.warning("model not usable path=%s reason=%s", path, sentence(reason))
            return Details(architecture=""), reason, origin

    def _record(
        self,
        entries: dict[str, ModelEntry],
        candidate: Candidate,
        details: Details,
        problem: str | Reason | None,
        origin: Origin,
        earlier: str | None = None,
    ) -> ModelEntry:
        """Store a candidate. `earlier` is the key of the entry to replace, by default a moved model's."""
        path = Path(candidate.key)
        old = entries.get(candidate.key)
        if old is None:
            earlier = earlier or _moved_from(entries, candidate, details)
            if earlier is not None:
                old = entries.pop(earlier)
                self.store.forget(earlier)
                if old.origin.kind not in _OWN:  # its files belong to the library now, or to another application
                    old = msgspec.structs.replace(old, origin=origin)
        ident = old.id if old else self._new_id(path, candidate, origin, entries)
        card = origins.adjacent_card(path)
        entry = ModelEntry(
            id=ident,
            name=origins.card_title(card) if card is not None else _display_name(candidate),
            format=candidate.format,
            files=candidate.files,
            origin=origin if old is None or origin.kind != "file" else old.origin,
            details=details,
            added_at=old.added_at if old else time.time(),
            folder=candidate.folder,
            projector=candidate.projector,
            report=origins.adjacent_report(path),
            card=str(card) if card is not None else None,
            inspected=_INSPECTION,
            problem=sentence(problem) or None,
            problem_detail=problem if isinstance(problem, Reason) else None,
            renamed=old.renamed if old else None,
        )
        self.store.put(candidate.key, entry)
        entries[candidate.key] = entry
        return entry

    @staticmethod
    def _new_id(path: Path, candidate: Candidate, origin: Origin, entries: dict[str, ModelEntry]) -> str:
        used_ids = {entry.id for entry in entries.values()}
        if candidate.title:
            path = path.with_name(f"{slug(candidate.title)}.gguf")
        elif origin.kind == "bundled":
            path = path.with_name(f"{path.stem.removesuffix('-f16')}.gguf")  # spark-f16.gguf gets the id "spark"
        return model_id(path, is_folder=candidate.folder is not None, used_ids=used_ids)


def key_of(entry: ModelEntry) -> str:
    """The key that identifies a model across scans: its folder or its first file, even if that part is missing."""
    split = parse_split_name(entry.path.name) if entry.folder is None else None
    return str(entry.path if split is None else entry.path.with_name(split.part(1)))


def _display_name(candidate: Candidate) -> str:
    path = Path(candidate.key)
    return candidate.title or (file_title(path) if candidate.folder is None else folder_name(path))


def _with_name(entry: ModelEntry) -> ModelEntry:
    """The entry with the name that the user gave it."""
    return msgspec.structs.replace(entry, name=entry.renamed) if entry.renamed else entry


def _same_files(entry: ModelEntry, candidate: Candidate) -> bool:
    if entry.inspected != _INSPECTION:
        return False
    stamp = [(f.path, f.size_bytes, f.mtime_ns) for f in entry.files]
    return stamp == [(f.path, f.size_bytes, f.mtime_ns) for f in candidate.files]


def moved_path(path: str, source: Path, target: Path) -> str:
    """The path below `target` of a file that was below `source`; any other path unchanged."""
    return str(target / Path(path).relative_to(source)) if Path(path).is_relative_to(source) else path


def moved_entry(entry: ModelEntry, source: Path, target: Path) -> ModelEntry:
    """The entry with all paths below `source` moved to `target`."""
    files = []
    for file in entry.files:
        path = moved_path(file.path, source, target)
        with contextlib.suppress(OSError):  # a missing file keeps its known facts
            info = Path(path).stat()
            if path != file.path and info.st_size == file.size_bytes:  # a file system may round times
                file = msgspec.structs.replace(file, mtime_ns=info.st_mtime_ns)  # noqa: PLW2901
        files.append(msgspec.structs.replace(file, path=path))
    others = {
        name: moved_path(path, source, target)
        for name in ("folder", "projector", "report", "card")
        if (path := getattr(entry, name)) is not None
    }
    return msgspec.structs.replace(entry, files=tuple(files), **others)


def _moved_from(entries: dict[str, ModelEntry], candidate: Candidate, details: Details) -> str | None:
    """The key of an entry whose files are gone and now are those of the candidate, or None.

    A moved file keeps its size and time. A copy keeps its size and its name. Both keep the header's facts.
    """
    sizes = [file.size_bytes for file in candidate.files]
    times = [file.mtime_ns for file in candidate.files]
    names = [Path(file.path).name for file in candidate.files]
    candidates = []
    for key, entry in entries.items():
        if entry.format != candidate.format or [file.size_bytes for file in entry.files] != sizes:
            continue
        has_names = [Path(file.path).name for file in entry.files] == names
        has_times = [file.mtime_ns for file in entry.files] == times
        if (has_names or has_times) and _contents(entry.details) == _contents(details):
            candidates.append((has_names, has_times, key))
    return next((key for *_, key in sorted(candidates, reverse=True) if _state(entries[key]) == "missing"), None)


def _contents(details: Details) -> tuple[object, ...]:
    """The header's facts about the model, without those derived from the file's name."""
    return details.architecture, details.title, details.n_params, details.context_train, details.type_bytes


def _with_state(entry: ModelEntry) -> ModelEntry:
    """The entry with its current state on disk."""
    state = _state(entry)
    return entry if state == entry.state else msgspec.structs.replace(entry, state=state)


def _state(entry: ModelEntry) -> State:
    for file in entry.files:
        try:
            info = Path(file.path).stat()
        except OSError:
            return "missing" if drive_is_here(Path(file.path)) else "offline"
        if (info.st_size, info.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
            return "changed"
    return "online" if entry.problem is None else "broken"


def _names(entry: ModelEntry) -> set[str]:
    first = Path(entry.files[0].path)
    names = {entry.id, entry.name, first.name, stem_of(first.name), str(entry.path)}
    if entry.origin.repo:
        names.add(f"{entry.origin.repo}:{entry.details.quantization}")
    return {name.casefold() for name in names}


def require(catalogue: Catalogue, name: str) -> ModelEntry:
    """The model with that name; refreshes the catalogue if unknown. Raises: ModelNotFound with the closest ids."""
    entry = catalogue.get(name)
    if entry is None:
        catalogue.refresh()
        entry = catalogue.get(name)
    if entry is not None:
        return entry
    import difflib

    ids = [entry.id for entry in catalogue.entries()]
    close = difflib.get_close_matches(name.lower(), ids, n=5, cutoff=0.4)
    raise ModelNotFound(name, tuple(close or ids[:8]))
