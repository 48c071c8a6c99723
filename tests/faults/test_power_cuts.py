"""The databases after a power cut at any write: they open, and contain every acknowledged write.

SQLite's writes and syncs are recorded below it and replayed up to every step. What was not synced may have
reached the disk wholly, not at all, or in part.
"""

import contextlib
import random

import apsw
import pytest

from app.code.edits.journal import FileChange, Journal
from app.code.index.database import IndexDatabase
from app.code.index.walk import FoundFile
from app.code.index.worker import Chunk as CodeChunk
from app.code.index.worker import ParsedFile
from app.db import conversations, messages
from app.db.store import open_store
from engine.documents.search import by_words
from engine.documents.store import READING, Store
from engine.documents.types import Chunk, PageRead
from engine.library.catalogue import Store as LibraryStore

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
        """Every step: the files at that moment, in three variants, and the writes acknowledged before."""
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
    """A file system implemented in Python has no shared memory; a log works without it if one process uses it."""
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
    store = LibraryStore(path)
    for number in range(8):
        store.watch(str(number), "app")
        say(str(number))
    store.close()


def stored_library(path):
    store = LibraryStore(path)
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
        # The interrupted one may exist or not, but none after a missing one.
        assert found in (list(told), [*told, str(len(told))]), (number, told, found)


def words_of(number):
    return f"number{number} " + " ".join(f"word{number}x{k}" for k in range(300 * (number % 3) + 5))


def index(path, say):
    """A collection: files are read in two steps, get vectors, and some are read again or removed."""
    store = Store(path)
    store.use_model("m")
    for number in range(8):
        ticket = store.begin(f"{number}.txt", "text", 1, number, str(number))
        for page in (1, 2):
            chunk = Chunk(heading="", kind="text", text=words_of(number))
            store.add_pages(ticket, [PageRead(page, "", (chunk,))], done=page == 2)
        rows = store.connection.execute(
            "SELECT chunk.id FROM chunk LEFT JOIN vector ON chunk_id=chunk.id WHERE vector IS NULL"
        )
        store.add_vectors("m", [(chunk_id, bytes([number])) for (chunk_id,) in rows.fetchall()])
        if number == 5:
            store.remove(["2.txt"])
        say(str(number))
    store.close()


def test_an_index_of_code_is_whole_after_a_power_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, lambda db: db.wal_autocheckpoint(4)])
    path = tmp_path / "first" / "index.db"
    path.parent.mkdir()
    with recording(monkeypatch) as disk:
        database = IndexDatabase(path)
        for number in range(8):
            chunks = [CodeChunk(1, 2, "", words_of(number), "")]
            database.store([(FoundFile(str(number), 1, number), ParsedFile(str(number), chunks=chunks))])
    chosen = set(random.Random(9).sample(range(3 * len(disk.steps)), MOST // 2))
    for number, (files, _) in enumerate(disk.cuts(random.Random(7))):
        if number in chosen:
            again = tmp_path / str(number)
            again.mkdir()
            for file, content in files.items():
                (again / file.rpartition("/")[2]).write_bytes(content)
            database = IndexDatabase(again / "index.db")
            assert database.connection.execute("PRAGMA integrity_check").get == "ok"
            assert database.paths() == [str(n) for n in range(len(database.paths()))]


@pytest.mark.parametrize("checkpoint", [1000, 4], ids=["seldom", "often"])
def test_an_index_is_whole_after_a_power_cut(tmp_path, monkeypatch, checkpoint):
    """It may lose its last steps, which are repeated, but all its pages have their words and vectors."""
    monkeypatch.setattr(
        apsw, "connection_hooks", [*apsw.connection_hooks, lambda db: db.wal_autocheckpoint(checkpoint)]
    )
    path = tmp_path / "first" / "index.db"
    path.parent.mkdir()
    with recording(monkeypatch) as disk:
        index(path, disk.acknowledged)
    assert len(disk.steps) > MOST
    chosen = set(random.Random(9).sample(range(3 * len(disk.steps)), MOST))
    num_lost = 0
    for number, (files, _) in enumerate(disk.cuts(random.Random(7))):
        if number not in chosen:
            continue
        again = tmp_path / str(number)
        again.mkdir()
        for file, content in files.items():
            (again / file.rpartition("/")[2]).write_bytes(content)
        store = Store(again / "index.db")
        assert store.connection.execute("PRAGMA integrity_check").get == "ok"
        # Each passage is found by its words, and each hit is a passage.
        found = [number for number in range(8) if by_words(store, f"number{number}")]
        listed = [int(document.path[0]) for document in store.documents() if document.pages]
        assert found == listed, (number, found, listed)
        num_lost += listed != [n for n in range(8) if n != 2]
        for document in store.documents():
            row = store.document(document.path)
            assert len(store.chunks_of(row.id)) == row.pages == max(row.next_page - 1, 0)
            assert row.chars == sum(len(passage.text) for passage in store.chunks_of(row.id))
        orphans = "SELECT count(*) FROM vector WHERE chunk_id NOT IN (SELECT id FROM chunk)"
        assert store.connection.execute(orphans).get == 0
        # Reading continues where it ended.
        for document in store.documents():
            if document.state == READING:
                ticket = store.resume(document.path)
                page = PageRead(ticket.first, "", (Chunk(heading="", kind="text", text="again"),))
                assert store.add_pages(ticket, [page], done=True)
        store.close()
    assert num_lost
