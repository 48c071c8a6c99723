"""Which earlier measurements stay: the last used ones, and all while another job runs."""

import os
import subprocess
import sys

import pytest

from quantize.files.measurement_cache import bounded

SIZE = 1000


@pytest.fixture
def cache(tmp_path):
    """Four measurements, the first one least recently used, and another file next to them."""
    for at, name in enumerate("abcd"):
        folder = tmp_path / (name * 24)
        (folder / "moments").mkdir(parents=True)
        (folder / "moments" / "some.npy").write_bytes(bytes(SIZE))
        os.utime(folder, (at, at))
    (tmp_path / "hashes").mkdir()
    (tmp_path / "rates.json").write_text("{}")
    return tmp_path


def kept(cache):
    return "".join(sorted(p.name[0] for p in cache.iterdir() if len(p.name) == 24))


@pytest.mark.parametrize(
    ("most_bytes", "most", "left"),
    [(4 * SIZE, 50, "abcd"), (2 * SIZE, 50, "cd"), (0, 50, "d"), (10 * SIZE, 3, "bcd")],
)
def test_the_measurements_used_last_stay_within_the_bound(cache, most_bytes, most, left):
    with bounded(cache, most_bytes, most):
        assert kept(cache) == "abcd"
    assert kept(cache) == left
    assert (cache / "rates.json").exists()
    assert not list((cache / "jobs").iterdir())


def test_a_measurement_that_a_job_has_just_used_is_the_newest(cache):
    with bounded(cache, SIZE):
        os.utime(cache / ("a" * 24))
    assert kept(cache) == "a"


def test_a_job_that_failed_leaves_no_more_than_one_that_did_not(cache):
    with pytest.raises(ValueError, match="no"), bounded(cache, SIZE):
        raise ValueError("no")
    assert kept(cache) == "d"


@pytest.mark.process
def test_nothing_is_removed_while_another_process_is_at_work_there(cache):
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        (cache / "jobs").mkdir()
        (cache / "jobs" / str(other.pid)).touch()
        with bounded(cache, SIZE):
            pass
        assert kept(cache) == "abcd"
    finally:
        other.communicate()
    with bounded(cache, SIZE):
        pass
    assert kept(cache) == "d"


def test_old_hashes_go(cache):
    for at in range(1005):
        path = cache / "hashes" / str(at)
        path.touch()
        os.utime(path, (at, at))
    with bounded(cache):
        pass
    assert sorted(int(p.name) for p in (cache / "hashes").iterdir()) == list(range(5, 1005))


def test_old_texts_go_and_what_a_killed_process_left(cache):
    (cache / "tokens").mkdir()
    for at in range(25):
        path = cache / "tokens" / f"{at}.npz"
        path.touch()
        os.utime(path, (at, at))
    (cache / "tokens" / "25.npz.17.partial").touch()
    with bounded(cache):
        pass
    assert sorted(int(p.stem) for p in (cache / "tokens").iterdir()) == list(range(5, 25))
