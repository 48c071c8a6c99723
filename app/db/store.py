"""The chat database with its single thread: it runs all reads and writes in order."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import apsw

from app.db import backup
from app.db.backup import back_up, backups
from app.db.errors import StoreFromNewerVersion, StoreInUse, StoreUnwritable
from app.db.records import Prompt
from devices.atomic_file import make_private

# Open the database: durability settings, health check, migration after a backup, and recovery.

log = logging.getLogger(__name__)
# First SQLite without a bug that could corrupt a WAL file at its reset. Source: sqlite.org/releaselog.
_WAL_SAFE = (3, 51, 3)
_UNWRITABLE = (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError)


@dataclass(frozen=True)
class Opened:
    """An open database. `quarantined` is the unreadable file that was renamed, `restorable` its backups."""

    connection: apsw.Connection
    path: Path
    quarantined: Path | None = None
    restorable: tuple[Path, ...] = ()


def open_store(path: Path, *, before_step: Callable[[int], None] | None = None) -> Opened:
    """Open or create the database at `path` and migrate it to the newest format.

    A damaged file is never overwritten or deleted: it is renamed to `.corrupt-<time>` and replaced by an empty
    database. The caller must inform the user and offer `restorable`. `before_step` is called inside each
    migration's transaction (tests stop the process there).
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
            log.exception("store is damaged, moved to %s", quarantined)
            connection = _connect(path)
        _migrate(connection, path, before_step)
        _mark_interrupted(connection)
    except apsw.BusyError as error:
        raise StoreInUse(path) from error
    except _UNWRITABLE as error:
        raise StoreUnwritable(path, str(error)) from error
    return Opened(connection, path, quarantined, tuple(backups(path)) if quarantined else ())


def open_in_memory() -> Opened:
    """An in-memory database for a home folder that cannot be written; it is lost when the process ends."""
    connection = apsw.Connection(":memory:")
    path = Path(":memory:")
    connection.pragma("foreign_keys", True)
    _migrate(connection, path, None)
    return Opened(connection, path)


def quarantine(path: Path) -> Path:
    """Rename the database and its side files to a name with the time; return the new path."""
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
    make_private(path)
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(2000)
    safe = tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) >= _WAL_SAFE
    connection.pragma("journal_mode", "wal" if safe else "delete")
    connection.pragma("synchronous", "full")  # an acknowledged message survives a power cut
    connection.pragma("foreign_keys", True)
    return connection


def _check(connection: apsw.Connection) -> None:
    """Raise CorruptError if the structure of the file is damaged."""
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
    """Mark messages that were being generated when the last process ended; nothing will complete them."""
    connection.execute("UPDATE messages SET status = 'interrupted' WHERE status = 'streaming'")


# Schema of the database, one step per version. A released step is never changed: add a new one.

# Sort by id, never by time, because clocks may jump. Times are Unix seconds, for display only.
_CHATS = """
CREATE TABLE folders(
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
CREATE TABLE conversations(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL DEFAULT '',
  folder_id INTEGER REFERENCES folders(id) ON DELETE SET NULL,
  pinned INTEGER NOT NULL DEFAULT 0,
  model TEXT NOT NULL DEFAULT '',
  system_prompt TEXT NOT NULL DEFAULT '',
  sampling TEXT NOT NULL DEFAULT '{}',
  draft TEXT NOT NULL DEFAULT '',
  leaf_id INTEGER,
  touched INTEGER NOT NULL DEFAULT 0,
  created_s REAL NOT NULL,
  trashed_s REAL);
CREATE INDEX conversations_by_touched ON conversations(trashed_s, pinned, touched);
CREATE TABLE messages(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation_id INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
  parent_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
  role TEXT NOT NULL CHECK(role IN ('user', 'assistant', 'tool')),
  content TEXT NOT NULL DEFAULT '',
  reasoning TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL DEFAULT 'complete',
  model TEXT NOT NULL DEFAULT '',
  facts TEXT NOT NULL DEFAULT '{}',
  created_s REAL NOT NULL);
CREATE INDEX messages_by_conversation ON messages(conversation_id, id);
CREATE INDEX messages_by_parent ON messages(parent_id);
"""

# A message is indexed when its generation ends, so that streaming has no indexing cost.
_SEARCH = """
CREATE VIRTUAL TABLE messages_index USING fts5(
  content, content='messages', content_rowid='id', prefix='1 2 3 4 5', tokenize="unicode61 remove_diacritics 2");
CREATE TRIGGER messages_inserted AFTER INSERT ON messages WHEN new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_finished AFTER UPDATE ON messages
  WHEN old.status = 'streaming' AND new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_reopened AFTER UPDATE ON messages
  WHEN old.status <> 'streaming' AND new.status = 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER messages_edited AFTER UPDATE OF content ON messages
  WHEN old.status <> 'streaming' AND new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_deleted AFTER DELETE ON messages WHEN old.status <> 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
END;
INSERT INTO messages_index(messages_index) VALUES ('rebuild');
"""

_ATTACHMENTS_AND_PRESETS = """
CREATE TABLE attachments(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  mime TEXT NOT NULL,
  text TEXT NOT NULL DEFAULT '',
  data BLOB);
CREATE INDEX attachments_by_message ON attachments(message_id);
CREATE TABLE presets(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  system_prompt TEXT NOT NULL DEFAULT '',
  sampling TEXT NOT NULL DEFAULT '{}');
"""

_ARCHIVE = "ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;"

# A folder with a path is a project. A fold is a summary of messages of a branch, or of older folds and messages.
_TOOLS_PROJECTS_FOLDS = """
ALTER TABLE conversations ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
ALTER TABLE folders ADD COLUMN path TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN instructions TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN sampling TEXT NOT NULL DEFAULT '{}';
ALTER TABLE folders ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
CREATE TABLE folds(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation_id INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
  first_id INTEGER NOT NULL,
  last_id INTEGER NOT NULL,
  summary TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '',
  opened INTEGER NOT NULL DEFAULT 0,
  edited INTEGER NOT NULL DEFAULT 0,
  inside_id INTEGER REFERENCES folds(id) ON DELETE SET NULL,
  created_s REAL NOT NULL);
CREATE INDEX folds_by_conversation ON folds(conversation_id, first_id);
"""

_PROMPTS = """
CREATE TABLE prompts(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  text TEXT NOT NULL);
"""

# A fact of a project goes with it.
_MEMORIES = """
CREATE TABLE memories(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  text TEXT NOT NULL,
  folder_id INTEGER REFERENCES folders(id) ON DELETE CASCADE,
  created_s REAL NOT NULL);
CREATE INDEX memories_by_folder ON memories(folder_id);
"""

MIGRATIONS: tuple[str, ...] = (
    _CHATS,
    _SEARCH,
    _ATTACHMENTS_AND_PRESETS,
    _ARCHIVE,
    _TOOLS_PROJECTS_FOLDS,
    _PROMPTS,
    _MEMORIES,
)
VERSION = len(MIGRATIONS)


P = ParamSpec("P")
T = TypeVar("T")


# Ids from here on belong to temporary chats and their messages, which exist in memory only.
# Signals of Qt carry 32 bits.
TEMPORARY: Final = 1 << 30


class Store:
    """Runs functions on the connection, one after another, on a separate thread."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._closed = threading.Event()
        self._temporary: Store | None = None

    def of(self, number: int) -> "Store":
        """The store of the conversation or message with this id.

        Temporary chats have a store in memory. Call it on the thread that created the store.
        """
        if number < TEMPORARY:
            return self
        if self._temporary is None:
            opened = open_in_memory()
            opened.connection.pragma("temp_store", "memory")
            rows = [("conversations", TEMPORARY), ("messages", TEMPORARY)]
            opened.connection.executemany("INSERT INTO sqlite_sequence(name, seq) VALUES (?, ?)", rows)
            self._temporary = Store(opened)
        return self._temporary

    @property
    def in_memory(self) -> bool:
        """True if the data is lost when the process ends."""
        return str(self.opened.path) == ":memory:"

    def submit(
        self, function: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run `function(connection, ...)` on the store's thread.

        The future raises StoreUnwritable if writing fails, and StoreInUse if another process locks the file. The
        transaction is rolled back.
        """

        def run() -> T:
            try:
                return function(self.opened.connection, *args, **kwargs)
            except apsw.BusyError as error:
                raise StoreInUse(self.opened.path) from error
            except (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError) as error:
                raise StoreUnwritable(self.opened.path, str(error)) from error

        return self._executor.submit(run)

    def back_up_daily(self, keep: int) -> Path | None:
        """Create today's copy if there is none; call it on a worker thread.

        It uses a separate connection, so chats can be written meanwhile.
        """
        if self.in_memory:
            return None
        reader = apsw.Connection(str(self.opened.path))
        try:
            reader.set_busy_timeout(5000)
            return backup.back_up_daily(reader, self.opened.path, keep)
        finally:
            reader.close()

    def close(self) -> None:
        """Finish the submitted functions and close the file."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._temporary is not None:
            self._temporary.close()
        self._executor.submit(self.opened.connection.close)
        self._executor.shutdown(wait=True)


def open_or_memory(path: Path) -> tuple[Store, StoreUnwritable | None]:
    """Open the database, or one in memory with the reason if the home folder is not writable.

    Raises: StoreInUse, StoreFromNewerVersion.
    """
    try:
        return Store(open_store(path)), None
    except StoreUnwritable as error:
        return Store(open_in_memory()), error


# Read and write saved prompts. All functions run on the store's single thread.


def prompts(connection: apsw.Connection) -> list[Prompt]:
    """All saved prompts, sorted by name."""
    return [
        Prompt(*row)
        for row in connection.execute("SELECT id, name, text FROM prompts ORDER BY name COLLATE NOCASE, id")
    ]


def save_prompt(connection: apsw.Connection, name: str, text: str) -> None:
    """Create or replace the prompt with this name."""
    connection.execute(
        "INSERT INTO prompts(name, text) VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET text = excluded.text",
        (name, text),
    )


def remove_prompt(connection: apsw.Connection, prompt_id: int) -> None:
    """Remove a prompt."""
    connection.execute("DELETE FROM prompts WHERE id = ?", (prompt_id,))
