"""The catalogue's memory: one small SQLite file, safe for the server and the terminal at once."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from devices.msgspec_lock import learned
from engine.library.types import ModelEntry

_log = logging.getLogger(__name__)
_BUSY_MS = 10_000
_SCHEMA_VERSION = 1
# Source: SQLite's documentation of PRAGMA synchronous. With a write-ahead log the first can lose the last
# transactions in a power cut, the second the file; neither loses anything when a process is killed.
_NORMAL, _OFF = 1, 0
_SCHEMA = """
CREATE TABLE models (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, entry BLOB NOT NULL) STRICT;
CREATE TABLE folders (path TEXT PRIMARY KEY, app TEXT) STRICT;
CREATE TABLE hidden (key TEXT PRIMARY KEY) STRICT;
"""


class _Newer(Exception):
    """The file has a form of a newer program."""


class Store:
    """Entries by key (where the model lies), folders to watch, and keys that were removed and stay hidden.

    A damaged file is kept beside as `.corrupt-<time>` and a new one begun: the disk can be scanned again, so
    nothing of worth is lost but manual links. Where the folder cannot be written, or the file is a newer program's,
    it works in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._decoder = msgspec.json.Decoder(learned(ModelEntry))
        self._encoder = msgspec.json.Encoder()
        self._decoded: dict[str, ModelEntry] = {}
        self._decoded_at: tuple[object, int] | None = None
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
        # A first start waits for this file. Nothing is in it yet, and a damaged one is begun again.
        safe = db.pragma("synchronous")
        db.pragma("synchronous", _OFF)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("BEGIN IMMEDIATE")  # two processes may both be first
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

    @contextmanager
    def writing(self, *, found: bool = False) -> Iterator[None]:
        """One transaction that excludes writers in other threads and processes.

        What a scan `found` is not waited for until it is on the disk: after a power cut it is found again.
        """
        with self._lock:
            safe = self._db.pragma("synchronous")
            self._db.pragma("synchronous", _NORMAL if found else safe)
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
        """Every entry by key, in the order of ids; decoded again only when somebody changed the database.

        An entry that cannot be decoded is left out and scanned again.
        """
        with self._lock:
            # The first counts changes by other connections, the second those by this one.
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
        with self._lock:
            self._db.execute(
                "INSERT INTO models (id, key, entry) VALUES (?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET id = excluded.id, entry = excluded.entry",
                (entry.id, key, self._encoder.encode(entry)),
            )

    def forget(self, key: str) -> None:
        """Drop the entry of `key`."""
        with self._lock:
            self._db.execute("DELETE FROM models WHERE key = ?", (key,))

    def hide(self, key: str, *, hidden: bool) -> None:
        """Remember (or no longer) that a scan must not bring `key` back."""
        with self._lock:
            if hidden:
                self._db.execute("INSERT OR IGNORE INTO hidden (key) VALUES (?)", (key,))
            else:
                self._db.execute("DELETE FROM hidden WHERE key = ?", (key,))

    def hidden(self) -> set[str]:
        """Keys a scan must not bring back."""
        with self._lock:
            return {str(key) for (key,) in self._db.execute("SELECT key FROM hidden").fetchall()}

    def watch(self, folder: str, app: str | None) -> None:
        """Scan `folder` from now on; `app` names the application it belongs to."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO folders (path, app) VALUES (?, ?)", (folder, app))

    def folders(self) -> dict[str, str | None]:
        """Folders that were linked, with the application each belongs to."""
        with self._lock:
            rows: list[Any] = self._db.execute("SELECT path, app FROM folders ORDER BY path").fetchall()
        return dict(rows)

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._db.close()
