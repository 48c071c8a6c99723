"""Checkpoints of a project's files: complete, stored once, and restored byte for byte."""

import os

import pytest

from app.code.agent.checkpoints import Checkpoints
from app.code.workspace import Workspace


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "project"
    (root / "src" / "empty").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    (root / "run.sh").write_text("echo\n")
    (root / "run.sh").chmod(0o755)
    (root / "data.bin").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("src/a.py")
    (root / ".gitignore").write_text("build/\n")
    (root / "build").mkdir()
    (root / "build" / "out").write_text("made\n")
    return root


def state(root):
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path.relative_to(root).as_posix()] = (status.st_mode, content)
    return found


def test_any_change_is_undone(root, tmp_path):
    saved = Checkpoints(Workspace(root), tmp_path / "saved")
    first, before = saved.save(), state(root)
    assert saved.save().tree == first.tree
    (root / "src" / "a.py").write_bytes(b"a = 2\n")
    (root / "run.sh").chmod(0o644)
    (root / "data.bin").unlink()
    (root / "data.bin").mkdir()
    (root / "data.bin" / "inside").write_text("x")
    (root / "link").unlink()
    (root / "link").write_text("no link")
    (root / "src" / "empty").rmdir()
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "file").write_text("x")
    second, after = saved.save(), state(root)
    assert second.tree != first.tree
    restored = saved.restore(first)
    assert state(root) == before
    assert saved.save().tree == first.tree
    assert (set(restored.deleted), restored.left) == ({"data.bin/inside", "new/deep/file"}, ())
    saved.restore(second)
    assert state(root) == after
    assert saved.restore(second).written == ()


def test_contents_are_stored_once_and_old_sessions_deleted(root, tmp_path):
    for number in range(7):
        saved = Checkpoints(Workspace(root), tmp_path / "saved", f"session-{number}")
        saved.save()
    assert len(list((tmp_path / "saved").iterdir())) == 5
    assert (tmp_path / "saved").stat().st_mode & 0o077 == 0, "they are copies of the project's files"
    (root / "big").write_bytes(os.urandom(100_000))
    saved.save()
    used = saved.disk_bytes
    assert used > 100_000
    for _ in range(5):
        (root / "copy").write_bytes((root / "big").read_bytes())
        saved.save()
    assert saved.disk_bytes == used


def test_a_change_of_the_same_size_at_the_same_time_is_seen(root, tmp_path):
    saved = Checkpoints(Workspace(root), tmp_path / "saved")
    trees = set()
    for number in range(20):
        (root / "same").write_text(f"{number:04}")
        os.utime(root / "same", ns=(1, 1))
        trees.add(saved.save().tree)
    assert len(trees) == 20


def test_a_difference_names_files_and_modes(root, tmp_path):
    saved = Checkpoints(Workspace(root), tmp_path / "saved")
    first = saved.save()
    (root / "src" / "b.py").write_text("new = 1")
    (root / "run.sh").chmod(0o644)
    (root / "data.bin").write_bytes(b"\0other")
    shown = saved.diff(first, saved.save())
    assert "--- /dev/null\n+++ src/b.py\n@@ -0,0 +1 @@\n+new = 1\n" in shown
    assert "mode of run.sh: 755 to 644" in shown
    assert "Binary files data.bin and data.bin differ" in shown
    assert "a.py" not in shown
