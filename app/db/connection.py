"""Opening the store: durable settings, health check, migration with a backup first, and recovery."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from app.db.backup import back_up, backups
from app.db.errors import StoreFromNewerVersion, StoreInUse, StoreUnwritable
from app.db.schema import MIGRATIONS

log = logging.getLogger(__name__)
# First SQLite without the bug that could corrupt a WAL file when it is reset. Source: sqlite.org/releaselog.
_WAL_SAFE = (3, 51, 3)
_UNWRITABLE = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError)


@dataclass(frozen=True)
class Opened:
    """An open store. `quarantined` is the unreadable file that was put aside, `restorable` its backups."""

    connection: apsw.Connection
    path: Path
    quarantined: Path | None = None
    restorable: tuple[Path, ...] = ()


def open_store(path: Path, *, before_step: Callable[[int], None] | None = None) -> Opened:
    """Open or make the store at `path` and bring it to the newest format.

    A damaged file is never overwritten or deleted: it is renamed to `.corrupt-<time>` and an empty store is
    opened in its place, and the caller must tell the user and offer `restorable`. `before_step` is called
    inside each migration's transaction (tests stop the process there).

    Raises: StoreUnwritable, StoreInUse, StoreFromNewerVersion.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(path, error.strerror or str(error)) from error
    quarantined: Path | None = None
    try:
        try:
            connection = _connect(path)
            _check(connection)
        except (apsw.NotADBError, apsw.CorruptError):
            quarantined = quarantine(path)
            log.exception("store is damaged, kept as %s", quarantined)
            connection = _connect(path)
        _migrate(connection, path, before_step)
        _mark_interrupted(connection)
    except apsw.BusyError as error:
        raise StoreInUse(path) from error
    except _UNWRITABLE as error:
        raise StoreUnwritable(path, str(error)) from error
    return Opened(connection, path, quarantined, tuple(backups(path)) if quarantined else ())


def open_in_memory() -> Opened:
    """A store that lives as long as the process, for a home that cannot be written."""
    connection = apsw.Connection(":memory:")
    path = Path(":memory:")
    connection.pragma("foreign_keys", True)
    _migrate(connection, path, None)
    return Opened(connection, path)


def quarantine(path: Path) -> Path:
    """Put the store and its side files aside under a name that says when; returns the new name."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    path.rename(target)
    for suffix in ("-wal", "-shm", "-journal"):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    return target


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(2000)
    safe = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) >= _WAL_SAFE
    connection.pragma("journal_mode", "wal" if safe else "delete")
    connection.pragma("synchronous", "full")  # an acknowledged message survives a power cut
    connection.pragma("foreign_keys", True)
    return connection


def _check(connection: apsw.Connection) -> None:
    """Raise CorruptError unless the file's structure is sound."""
    if connection.execute("PRAGMA quick_check(1)").get != "ok":
        raise apsw.CorruptError("quick_check failed")


def _migrate(connection: apsw.Connection, path: Path, before_step: Callable[[int], None] | None) -> None:
    version = connection.pragma("user_version")
    if version > len(MIGRATIONS):
        connection.close()
        raise StoreFromNewerVersion(path, version, len(MIGRATIONS))
    if 0 < version < len(MIGRATIONS):
        back_up(connection, path, f"before-format-{len(MIGRATIONS)}")
    for step in range(version, len(MIGRATIONS)):
        with connection:
            connection.execute(MIGRATIONS[step])
            if before_step is not None:
                before_step(step)
            connection.pragma("user_version", step + 1)


def _mark_interrupted(connection: apsw.Connection) -> None:
    """What was being written when the last process ended will not be finished by anyone."""
    connection.execute("UPDATE messages SET status = 'interrupted' WHERE status = 'streaming'")
