"""SQLite files that hold an index. An index can be rebuilt, so an unusable file is replaced by an empty one."""

from pathlib import Path

import apsw


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
