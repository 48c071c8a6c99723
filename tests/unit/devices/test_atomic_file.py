"""After a power cut either the old or the new file exists: the recorded operations are replayed in order."""

import os
from pathlib import Path

import pytest

from devices.atomic_file import folder_bytes, write_atomically
from engine.core.keys import KeyStore


class Disk:
    """Records what reaches the disk, in order: a file's content counts from its fsync on."""

    def __init__(self, monkeypatch):
        self.steps = []
        fsync, replace = os.fsync, Path.replace

        def synced(descriptor):
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            self.steps.append(("content", path, Path(path).read_bytes()))
            fsync(descriptor)

        def renamed(path, target):
            self.steps.append(("rename", str(path), str(target)))
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", renamed)

    def states(self, before):
        """Files after a power cut, by the number of completed steps. A file without fsync is empty."""
        files = dict(before)
        yield dict(files)
        for kind, path, value in self.steps:
            if kind == "content":
                files[path] = value
            else:
                files[value] = files.pop(path, b"")
            yield dict(files)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_power_cut_leaves_the_old_or_the_new_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    disk = Disk(monkeypatch)
    write_atomically(path, b"new")
    assert [state[str(path)] for state in disk.states({str(path): b"old"})] == [b"old", b"old", b"new"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_power_cut_loses_the_keys(tmp_path, monkeypatch):
    path = tmp_path / "api-keys.json"
    keys = KeyStore(path)
    keys.add("first", ("chat",))
    before = {str(path): path.read_bytes()}
    disk = Disk(monkeypatch)
    keys.add("second", ("chat",))
    keys.remove("first")
    names = []
    for number, state in enumerate(disk.states(before)):
        cut = tmp_path / f"{number}.json"
        cut.write_bytes(state[str(path)])
        names.append(tuple(key.name for key in KeyStore(cut).all()))
    assert list(dict.fromkeys(names)) == [("first",), ("first", "second"), ("second",)]


def test_a_link_stays_and_its_target_is_written(tmp_path):
    """Many keep their settings in a repository and link them from there."""
    target, link = tmp_path / "dotfiles" / "settings.toml", tmp_path / "settings.toml"
    target.parent.mkdir()
    target.write_text("old")
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("this account may not make links")
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_to_itself_is_replaced(tmp_path):
    link = tmp_path / "settings.toml"
    try:
        link.symlink_to(link)
    except OSError:
        pytest.skip("this account may not make links")
    write_atomically(link, b"new")
    assert link.read_text() == "new"


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
def test_a_private_file_stays_private(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    write_atomically(path, b"newer", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_cache_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a cache needs no fsync"))
    write_atomically(tmp_path / "cache", b"x", durable=False)
    assert (tmp_path / "cache").read_bytes() == b"x"


def test_the_size_of_a_folder_counts_what_is_still_there(tmp_path, monkeypatch):
    """Files that vanish between listing and measuring, links and missing folders do not fail."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "stays").write_bytes(b"x" * 10)
    (tmp_path / "a" / "gone").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    walk = os.walk

    def then_deleted(folder):
        rows = list(walk(folder))
        (tmp_path / "a" / "gone").unlink()
        return rows

    monkeypatch.setattr(os, "walk", then_deleted)
    assert folder_bytes(tmp_path / "a") == 10
    monkeypatch.undo()
    assert folder_bytes(tmp_path / "missing") == 0
    assert folder_bytes(tmp_path) == 10
