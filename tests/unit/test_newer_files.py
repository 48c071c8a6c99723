"""Files of a newer version are refused or skipped, and never overwritten."""

import apsw
import pytest

from app.code.edits.journal import FileChange, Journal
from app.code.errors import JournalFromNewerVersion
from engine.library.catalogue import Store

CHANGE = FileChange(path="a", before=b"1", before_sha="x", after_sha="y")


def made_newer(path, version):
    database = apsw.Connection(str(path))
    database.pragma("user_version", version)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path.read_bytes()


def test_a_journal_of_edits(tmp_path):
    path = tmp_path / "edits.db"
    journal = Journal(path)
    journal.add("first", (CHANGE,))
    journal.close()
    before = made_newer(path, 3)
    with pytest.raises(JournalFromNewerVersion, match="form 3"):
        Journal(path)
    assert path.read_bytes() == before
    made_newer(path, 0)  # as written before versions existed
    journal = Journal(path)
    assert journal.last().label == "first"
    journal.close()


def test_a_catalogue_of_models(tmp_path, caplog):
    path = tmp_path / "library.db"
    first = Store(path)
    first.watch(str(tmp_path), None)
    first.close()
    before = made_newer(path, 99)
    store = Store(path)
    assert store.folders() == {}
    store.watch(str(tmp_path / "other"), None)
    store.close()
    assert path.read_bytes() == before
    assert "newer program" in caplog.text
    assert not list(tmp_path.glob("*corrupt*"))
