"""The databases after a power cut at any write: they open, and whatever was acknowledged is there.

SQLite's writes and syncs are recorded below it and replayed up to every step. What was not synced may have
reached the disk wholly, not at all, or in part.
"""

import contextlib
import random

import apsw
import pytest

from app.code.edits.journal import FileChange, Journal
from app.db import conversations, messages
from app.db.store import open_store
from engine.library.catalogue import Store

SECTOR = 512
MOST = 100  # states that are opened of each store


class Disk(apsw.VFS):
    """Records the operations of all databases that are opened while it is the default."""

    def __init__(self, name):
        self.steps = []
        self.base = apsw.vfs_names()[0]
        super().__init__(name, self.base, makedefault=True)

    def open(self, name, flags):
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return Recorded(self, path, name, flags)

    def delete(self, name, sync):
        self.steps.append(("delete", name, sync))
        super().xDelete(name, sync)

    def acknowledged(self, what):
        self.steps.append(("acknowledged", what))

    def cuts(self, rng):
        """Every step: the files at that moment, in three variants, and what was acknowledged before."""
        synced, written, pending, told = {}, {}, {}, []
        for kind, *step in self.steps:
            if kind == "acknowledged":
                told.append(step[0])
            elif kind == "delete":
                for files in (synced, written, pending):
                    files.pop(step[0], None)
            elif kind == "sync":
                synced[step[0]] = bytes(written.get(step[0], b""))
                pending[step[0]] = []
            else:
                path, change = step
                written[path] = change(bytearray(written.get(path, b"")))
                pending.setdefault(path, []).append(change)
            yield dict(written), tuple(told)
            yield {path: synced.get(path, b"") for path in written}, tuple(told)
            yield (
                {path: self._partly(synced.get(path, b""), pending.get(path, ()), rng) for path in written},
                tuple(told),
            )

    @staticmethod
    def _partly(content, changes, rng):
        found = bytearray(content)
        for change in changes:
            if rng.random() < 0.5:
                found = change(found)
        return bytes(found)


class Recorded(apsw.VFSFile):
    def __init__(self, disk, path, name, flags):
        self._disk, self._path = disk, path
        super().__init__(disk.base, name, flags)

    def write(self, data, offset):
        super().xWrite(data, offset)
        for start in range(0, len(data), SECTOR):  # a sector reaches the disk as a whole
            self._disk.steps.append(
                ("write", self._path, _write(bytes(data[start : start + SECTOR]), offset + start))
            )

    def truncate(self, size):
        super().xTruncate(size)
        self._disk.steps.append(("truncate", self._path, lambda content: content[:size]))

    def sync(self, flags):
        super().xSync(flags)
        self._disk.steps.append(("sync", self._path))


for _kind, _calls in ((Disk, ("open", "delete")), (Recorded, ("write", "truncate", "sync"))):
    for _call in _calls:
        setattr(_kind, f"x{_call.title()}", getattr(_kind, _call))  # SQLite's names


def _write(data, offset):
    def change(content):
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
        return content

    return change


def _alone(connection):
    """A file system of Python's has no shared memory; a log works without it if one process uses it."""
    connection.execute("PRAGMA locking_mode = exclusive")
    return connection


@contextlib.contextmanager
def recording(monkeypatch):
    """The disk below all databases that are opened meanwhile."""
    with monkeypatch.context() as patch:
        patch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, _alone])
        disk = Disk("recorded")
        try:
            yield disk
        finally:
            disk.unregister()


def chats(path, say):
    opened = open_store(path)
    talk = conversations.create(opened.connection, title="0").id
    say("0")
    parent = None
    for number in range(1, 9):
        text = str(number) + "x" * (2000 * (number % 3))
        parent = messages.add(opened.connection, talk, parent, "user", text).id
        say(str(number))
    opened.connection.close()


def stored_chats(path):
    opened = open_store(path)
    try:
        if opened.quarantined is not None:
            return None
        return [
            text
            for talk in conversations.listing(opened.connection)
            for text in (
                "0",
                *(m.content.rstrip("x") for m in messages.of_conversation(opened.connection, talk.id)),
            )
        ]
    finally:
        opened.connection.close()


def undo(path, say):
    journal = Journal(path)
    for number in range(8):
        change = FileChange(path=str(number), before=b"before" * 500, before_sha="a", after_sha="b")
        journal.add(str(number), (change,))
        say(str(number))
    journal.close()


def stored_undo(path):
    journal, found = Journal(path), []
    while (group := journal.last()) is not None:
        found.insert(0, group.label)
        journal.drop(group.group_id)
    journal.close()
    return found


def library(path, say):
    store = Store(path)
    for number in range(8):
        store.watch(str(number), "app")
        say(str(number))
    store.close()


def stored_library(path):
    store = Store(path)
    found = list(store.folders())
    store.close()
    return found


STORES = {"chats": (chats, stored_chats), "undo": (undo, stored_undo), "library": (library, stored_library)}


@pytest.mark.parametrize("name", STORES)
def test_nothing_acknowledged_is_lost_at_any_step(tmp_path, monkeypatch, name):
    write, read = STORES[name]
    path = tmp_path / "first" / "state.db"
    path.parent.mkdir()
    with recording(monkeypatch) as disk:
        write(path, disk.acknowledged)
    cuts = list(disk.cuts(random.Random(7)))
    assert len({told for _, told in cuts}) > 8
    states = dict.fromkeys((told, *((path, bytes(files[path])) for path in sorted(files))) for files, told in cuts)
    assert len(states) > 30
    chosen = random.Random(8).sample(list(states), min(len(states), MOST))
    for number, (told, *files) in enumerate(chosen):
        again = tmp_path / str(number)
        again.mkdir()
        for file, content in files:
            (again / file.rpartition("/")[2]).write_bytes(content)
        found = read(again / "state.db")
        # The cut one may be there or not, but never one after a missing one.
        assert found in (list(told), [*told, str(len(told))]), (number, told, found)
