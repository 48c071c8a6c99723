"""The path of a quantized file: the library's folder is created when a file is to be written, by any caller."""

import os
import threading

import pytest

from engine.core.paths import Paths
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.job_kinds.quantize.request import in_library, make_room
from engine.library.errors import CannotWrite


@pytest.fixture
def paths(tmp_path):
    return Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))


def asked(paths):
    return in_library("spark", QuantizeOptions(model="spark", budget_bytes=5_000_000), paths)


def target(paths):
    out = asked(paths)
    make_room(out, paths)
    return out


def test_asking_for_the_place_makes_nothing(paths):
    assert asked(paths).parent == paths.models / "local"
    assert not paths.models.exists()


def test_a_folder_of_somebody_else_is_not_made(paths, tmp_path):
    make_room(tmp_path / "typo" / "out.gguf", paths)
    assert not (tmp_path / "typo").exists()


def test_jobs_at_once_make_the_folder_together(paths):
    found, begun = [], threading.Barrier(8)

    def ask():
        begun.wait()
        found.append(target(paths))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert (paths.models / "local").is_dir()


def test_a_folder_that_is_there_a_moment_later_will_do(paths, monkeypatch):
    made, refused = os.mkdir, []

    def mkdir(path, mode=0o777):
        if str(path).endswith("local") and not refused:
            refused.append(path)
            raise FileExistsError(17, "File exists", path)
        made(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert target(paths).parent.is_dir()
    assert refused


def test_a_file_in_its_place_is_told(paths):
    paths.models.mkdir()
    (paths.models / "local").write_text("")
    with pytest.raises(CannotWrite, match="File exists"):
        target(paths)
