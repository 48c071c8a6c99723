"""Stores the previous contents of edited files, so that every applied edit can be undone, even after a restart."""

import time
from dataclasses import dataclass
from pathlib import Path

import apsw

from app.code.errors import JournalFromNewerVersion
from devices.atomic_file import make_private

# Adding a group deletes the oldest one: undo covers recent edits, git covers the rest.
_MAX_GROUPS = 200

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS edit_group(id INTEGER PRIMARY KEY, made_at REAL NOT NULL, label TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS file_change(
  group_id INTEGER NOT NULL REFERENCES edit_group(id) ON DELETE CASCADE,
  path TEXT NOT NULL, before BLOB, before_sha TEXT, after_sha TEXT);
"""
_COLUMNS_OF_2 = ("before_executable INTEGER", "new_folders INTEGER NOT NULL DEFAULT 0")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file's change. `before` is None if the file was created, `after_sha` is None if it was deleted.

    `before_executable` is None if the mode does not change; `new_folders` counts the folders that were created for
    it.
    """

    path: str
    before: bytes | None
    before_sha: str | None
    after_sha: str | None
    before_executable: bool | None = None
    new_folders: int = 0


@dataclass(frozen=True, kw_only=True)
class EditGroup:
    """Changes that were applied together."""

    group_id: int
    made_at: float
    label: str
    changes: tuple[FileChange, ...]


class Journal:
    """An undo journal in a separate SQLite file. Raises: JournalFromNewerVersion."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_private(path)  # contains files of the project
        self._db = apsw.Connection(str(path))
        self._db.set_busy_timeout(5000)
        version = int(self._db.pragma("user_version"))
        if version > _VERSION:
            self._db.close()
            raise JournalFromNewerVersion(path, version)
        self._db.pragma("journal_mode", "WAL")
        self._db.pragma("foreign_keys", True)
        if version < _VERSION:  # 0: a new file, or one without a version, which has this schema
            with self._db:
                self._db.execute(_SCHEMA)
                there = {row[1] for row in self._db.execute("PRAGMA table_info(file_change)")}
                for column in _COLUMNS_OF_2:
                    if column.partition(" ")[0] not in there:
                        self._db.execute(f"ALTER TABLE file_change ADD COLUMN {column}")
                self._db.pragma("user_version", _VERSION)

    def add(self, label: str, changes: tuple[FileChange, ...]) -> int:
        """Record a group before its files are written; return its id."""
        with self._db:
            self._db.execute("INSERT INTO edit_group(made_at, label) VALUES(?, ?)", (time.time(), label))
            group_id = int(self._db.last_insert_rowid())
            self._db.executemany(
                "INSERT INTO file_change VALUES(?, ?, ?, ?, ?, ?, ?)",
                [
                    (group_id, c.path, c.before, c.before_sha, c.after_sha, c.before_executable, c.new_folders)
                    for c in changes
                ],
            )
            self._db.execute("DELETE FROM edit_group WHERE id <= ?", (group_id - _MAX_GROUPS,))
        return group_id

    def last(self) -> EditGroup | None:
        for group_id, made_at, label in self._db.execute("SELECT * FROM edit_group ORDER BY id DESC LIMIT 1"):
            rows = self._db.execute(
                "SELECT path, before, before_sha, after_sha, before_executable, new_folders FROM file_change"
                " WHERE group_id=?",
                (group_id,),
            )
            changes = tuple(
                FileChange(
                    path=path,
                    before=before,
                    before_sha=before_sha,
                    after_sha=after_sha,
                    before_executable=None if executable is None else bool(executable),
                    new_folders=new_folders,
                )
                for path, before, before_sha, after_sha, executable, new_folders in rows
            )
            return EditGroup(group_id=group_id, made_at=made_at, label=label, changes=changes)
        return None

    def drop(self, group_id: int) -> None:
        """Delete a group: it was undone, or its files were never written."""
        self._db.execute("DELETE FROM edit_group WHERE id=?", (group_id,))

    def wrote(self, path: str, sha256: str) -> bool:
        """Return True if the current file content was written by an applied edit."""
        rows = self._db.execute(
            "SELECT after_sha FROM file_change WHERE path=? ORDER BY group_id DESC LIMIT 1", (path,)
        )
        return any(after == sha256 for (after,) in rows)

    def close(self) -> None:
        self._db.close()
