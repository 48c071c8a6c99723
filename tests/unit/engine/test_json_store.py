"""State files are complete, versioned, read again after a change, and never lost."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from devices import atomic_file
from devices.atomic_file import write_atomically
from engine.core.json_store import CorruptStateFile, JsonStore, NewerStateFile

ROOT = Path(__file__).resolve().parents[3]


class Row(msgspec.Struct, frozen=True):
    name: str
    size: int = 0


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "rows.json"


def store(file, **options):
    return JsonStore(file, list[Row], list, **options)


def test_a_value_is_kept_with_its_version_and_read_by_another(file):
    store(file).put([Row("a", 1)])
    assert json.loads(file.read_text()) == {"version": 1, "data": [{"name": "a", "size": 1}]}
    assert store(file).read() == [Row("a", 1)]
    assert [path.name for path in file.parent.iterdir()] == ["rows.json"]


def test_without_a_file_it_is_empty_and_without_a_path_in_memory(file):
    assert store(file).read() == []
    assert not file.parent.exists()
    memory = store(None)
    memory.put([Row("a")])
    assert memory.read() == [Row("a")]


def test_a_file_of_before_versions_is_read(file):
    write_atomically(file, b'[{"name": "old"}]')
    assert store(file).read() == [Row("old")]
    names = JsonStore(file, dict[str, str], dict)
    write_atomically(file, b'{"gpt-4o": "spark", "version": "spark"}')
    assert names.read() == {"gpt-4o": "spark", "version": "spark"}


def test_what_another_process_wrote_is_seen(file):
    mine, other = store(file), store(file)
    assert mine.read() == []
    other.put([Row("a")])
    assert mine.read() == [Row("a")]
    file.unlink()
    assert mine.read() == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'["\xe5"]',
        b"[" * 100_000,
        b'{"version": 1}',
        b'[{"size": 1}]',
    ],
)
def test_a_file_that_cannot_be_read_is_told_and_kept_aside(file, raw, caplog):
    write_atomically(file, raw)
    kept = store(file)
    with pytest.raises(CorruptStateFile, match=r"rows\.json cannot be read"):
        kept.read()
    assert kept.get() == kept.get() == []
    assert caplog.text.count("kept aside") <= 1
    assert file.read_bytes() == raw
    kept.put([Row("new")])
    (aside,) = file.parent.glob("rows.json.corrupt-*")
    assert aside.read_bytes() == raw
    assert store(file).read() == kept.read() == [Row("new")]


def test_a_file_of_a_newer_program_is_left_as_it_is(file, caplog):
    raw = b'{"version": 9, "data": [{"name": "a", "colour": "red"}]}'
    write_atomically(file, raw)
    kept = store(file)
    with pytest.raises(NewerStateFile, match="form 9; 1 is known here"):
        kept.read()
    assert kept.get() == []
    for write in (kept.put, lambda rows: kept.change(lambda _: rows)):
        with pytest.raises(OSError, match="newer Tessera"):
            write([Row("new")])
    assert file.read_bytes() == raw
    assert not list(file.parent.glob("*corrupt*"))
    assert "left as it is" in caplog.text
    file.unlink()
    kept.put([Row("new")])
    assert store(file).read() == [Row("new")]


def test_a_write_that_fails_leaves_the_old_file(file, monkeypatch):
    kept = store(file)
    kept.put([Row("a")])
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        kept.put([Row("b")])
    monkeypatch.undo()
    assert store(file).read() == [Row("a")]
    assert [path.name for path in file.parent.iterdir()] == ["rows.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_private_file_is_for_this_user_only(file):
    before = os.umask(0o022)
    try:
        store(file, private=True).put([])
        store(file.with_name("open.json")).put([])
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.with_name("open.json").stat().st_mode) == 0o644


def test_another_file_of_the_same_size_and_time_is_read(file):
    """Another process may replace it within one tick of the file system's clock."""
    mine, other = store(file), store(file.with_name("other.json"))
    mine.put([Row("a")])
    known = file.stat()
    other.put([Row("b")])
    os.utime(other.path, ns=(known.st_atime_ns, known.st_mtime_ns))
    other.path.replace(file)
    assert mine.read() == [Row("b")]


def test_readers_never_see_half_a_file(file):
    writer, stop, seen = store(file), threading.Event(), []

    def read():
        while not (stop.is_set() and seen):
            seen.append(len(store(file).read()))

    writer.put([Row("x")] * 500)
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        writer.put([Row(str(number))] * 500)
    stop.set()
    reader.join()
    assert set(seen) == {500}


def test_a_moment_without_descriptors_is_no_damage(file, monkeypatch, caplog):
    """The list of collections once became empty because the server had no free descriptor when it read the file."""
    store(file).put([Row("kept")])
    before = file.read_bytes()
    late = store(file)

    def none_left(path):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", none_left)
        with pytest.raises(CorruptStateFile, match="Too many open files"):
            late.read()
        assert late.get() == []
    assert "left as it is" in caplog.text
    with pytest.raises(OSError, match="Too many open files"):
        late.put([Row("made from nothing")])
    assert file.read_bytes() == before
    assert late.get() == [Row("kept")]
    late.put([Row("kept"), Row("more")])
    assert store(file).read() == [Row("kept"), Row("more")]
    assert not list(file.parent.glob("*corrupt*"))


ADDS = """
import sys
from pathlib import Path
from engine.core.json_store import JsonStore
name, count = sys.argv[2], int(sys.argv[3])
store = JsonStore(Path(sys.argv[1]), list[str], list)
sys.stdin.readline()
for number in range(count):
    store.change(lambda rows: [*rows, f"{name} {number}"])
"""


@pytest.mark.process
def test_what_processes_change_at_once_is_all_there(file):
    command = [sys.executable, "-c", ADDS, str(file)]
    workers = [
        subprocess.Popen([*command, name, "30"], cwd=ROOT, stdin=subprocess.PIPE, text=True) for name in "abc"
    ]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    for worker in workers:
        worker.stdin.close()
    rows = JsonStore(file, list[str], list).read()
    assert sorted(rows) == sorted(f"{name} {number}" for name in "abc" for number in range(30))
    assert [row for row in rows if row[0] == "a"] == [f"a {number}" for number in range(30)]


def test_a_change_that_fails_changes_nothing_and_frees_the_file(file):
    rows = store(file)
    rows.put([Row("a")])
    with pytest.raises(ZeroDivisionError):
        rows.change(lambda _: 1 / 0)
    with rows.locked():
        rows.change(lambda old: [*old, Row("b")])  # within the lock of this thread
    assert store(file).change(lambda old: [*old, Row("c")]) == [Row("a"), Row("b"), Row("c")]
    rows.remove()
    assert not file.exists()
    assert rows.read() == []


def test_one_who_hangs_with_the_file_stops_nobody_for_good(file, monkeypatch):
    monkeypatch.setattr(atomic_file, "LOCK_S", 0.05)
    rows = store(file)
    rows.put([Row("a")])
    with store(file).locked():
        failed = []
        thread = threading.Thread(target=lambda: failed.append(errno_of(rows)))
        thread.start()
        thread.join(60)
        assert rows.read() == [Row("a")]  # a reader waits for no one
    assert failed == [errno.EBUSY]
    rows.change(lambda old: [*old, Row("b")])
    assert rows.read() == [Row("a"), Row("b")]


def errno_of(rows):
    try:
        rows.change(lambda old: [*old, Row("b")])
    except OSError as error:
        return error.errno
    return None
