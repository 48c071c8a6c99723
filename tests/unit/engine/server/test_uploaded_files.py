"""Uploaded files outlive a list that is damaged, newer or out of reach for a moment."""

import pytest

from engine.core.paths import Paths
from engine.server.openai.files import Files
from tests.support.starved import no_descriptors


@pytest.fixture
def files(tmp_path):
    return Files(Paths(*[tmp_path] * 5))


def contents(files):
    return {path.read_bytes() for path in files.folder.glob("*/*")}


def test_what_interrupted_uploads_left_is_swept(files):
    files.add("a.txt", "user_data", b"kept")
    left = files.folder / "file-of-nobody"
    left.mkdir()
    (left / "b.txt").write_bytes(b"left")
    files.sweep()
    assert contents(files) == {b"kept"}


@pytest.mark.parametrize("damage", [b"{", b"", b'{"version": 9, "data": {}}'], ids=["damaged", "empty", "newer"])
def test_no_file_is_swept_whose_list_cannot_be_read(files, tmp_path, damage):
    files.add("a.txt", "user_data", b"kept")
    (tmp_path / "files.json").write_bytes(damage)
    files.sweep()
    assert contents(files) == {b"kept"}


def test_no_file_of_a_list_that_was_set_aside_is_swept(files, tmp_path):
    files.add("a.txt", "user_data", b"kept")
    (tmp_path / "files.json").write_bytes(b"{")
    files.add("b.txt", "user_data", b"new")  # sets the damaged list aside
    files.sweep()
    assert contents(files) == {b"kept", b"new"}


def test_a_moment_without_descriptors_sweeps_nothing(tmp_path):
    paths = Paths(*[tmp_path] * 5)
    Files(paths).add("a.txt", "user_data", b"kept")
    later = Files(paths)
    with no_descriptors():
        later.sweep()
    assert contents(later) == {b"kept"}
