import pytest

from engine.core.index_database import open_index

SCHEMA = "CREATE TABLE row(value TEXT)"


def rows(db):
    return [value for (value,) in db.execute("SELECT value FROM row")]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "below" / "index.db"
    db = open_index(path, SCHEMA, 1)
    db.execute("INSERT INTO row VALUES('kept')")
    db.close()
    return path


@pytest.mark.parametrize(("version", "kept"), [(1, ["kept"]), (2, [])])
def test_an_index_of_another_version_is_emptied(path, version, kept):
    db = open_index(path, SCHEMA, version)
    assert rows(db) == kept
    db.close()


def test_a_damaged_index_is_emptied(path):
    path.write_bytes(b"no database" * 1000)
    db = open_index(path, SCHEMA, 1)
    assert rows(db) == []
    db.close()
