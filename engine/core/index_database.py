"""SQLite files that hold an index. An index can be rebuilt, so an unusable file is replaced by an empty one."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import apsw

# Facts about an index, and the vectors of its chunks. Row ids only grow, so a reader finds what is new.
VECTOR_TABLES: Final = """
CREATE TABLE vector(id INTEGER PRIMARY KEY AUTOINCREMENT, chunk_id INTEGER NOT NULL UNIQUE
  REFERENCES chunk(id) ON DELETE CASCADE, vector BLOB NOT NULL);
CREATE TABLE fact(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class IndexStore(ABC):
    """An index of text with a table `chunk`, its words in `term`, and VECTOR_TABLES. Safe from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @property
    @abstractmethod
    def connection(self) -> apsw.Connection:
        """The connection; hold `lock`."""

    def fact(self, name: str) -> str:
        """A metadata value of the index; empty if there is none."""
        with self.lock:
            return str(self.connection.execute("SELECT value FROM fact WHERE name=?", (name,)).get or "")

    def set_fact(self, name: str, value: str) -> None:
        with self.lock, self.connection:
            self.connection.execute("INSERT OR REPLACE INTO fact VALUES(?, ?)", (name, value))

    def num_vectors(self) -> int:
        """Number of chunks that have a vector."""
        with self.lock:
            return int(self.connection.execute("SELECT count(*) FROM vector").get)

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, bytes]]) -> bool:
        """Store vectors that `model` computed; chunks deleted in the meantime are skipped.

        Returns False if the index has the vectors of another model by now.
        """
        with self.lock, self.connection:
            if self.fact("embedding_model") != model:
                return False
            self.connection.executemany(
                "INSERT OR REPLACE INTO vector(chunk_id, vector)"
                " SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM chunk WHERE id=?1)",
                vectors,
            )
        return True

    def use_model(self, model: str, passage_prefix: str = "") -> bool:
        """Set the model and passage prefix of all vectors from now on.

        Returns True if either changed; the old vectors are then deleted.
        """
        made_by = {"embedding_model": model, "passage_prefix": passage_prefix}
        with self.lock, self.connection:
            if all(self.fact(name) == value for name, value in made_by.items()):
                return False
            self._delete_vectors()
            self.connection.executemany("INSERT OR REPLACE INTO fact VALUES(?, ?)", made_by.items())
        return True

    def _delete_vectors(self) -> None:
        self.connection.execute("DELETE FROM vector")

    def chunk_counts(self, stems: Iterable[str]) -> dict[str, int]:
        """The number of chunks that contain each stem. Hold `lock`."""
        ask = self.connection.execute
        return {s: int(ask("SELECT coalesce(sum(doc), 0) FROM term WHERE term=?", (s,)).get) for s in stems}


def open_index(path: Path, schema: str, version: int) -> apsw.Connection:
    """Open the index at `path` with this schema; a corrupt file or one of another version is emptied first.

    A power cut may lose the last transactions, never parts of one.

    Raises: OSError, apsw.Error: the folder or the file cannot be used.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        db = _connect(path)
        if db.pragma("user_version") == version:
            return db
        db.close()
    except (apsw.CorruptError, apsw.NotADBError):
        pass
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    db = _connect(path)
    with db:
        db.execute(schema)
        db.pragma("user_version", version)
    return db


def _connect(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    # One call per statement: in a call with several, those after the first that returns a row would not run.
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "normal")
    db.pragma("foreign_keys", True)
    db.pragma("cache_size", -32768)
    db.pragma("temp_store", "memory")
    db.pragma("journal_size_limit", 32 << 20)
    return db
