import os
import random
import shutil
import sys
import threading

import numpy as np
import pytest

from engine.runner.llama.cache import prefix_store
from engine.runner.llama.cache.prefix_store import PrefixStore, model_fingerprint

KEY = ()


def tokens(*values):
    return np.asarray(values, np.int32)


def state(size=1000, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def disk_store(folder, limit=10_000, fingerprint="f" * 64, ram=0):
    return PrefixStore(ram, limit, folder, fingerprint)


def test_the_longest_shared_prefix_is_found():
    store = PrefixStore(10_000, 0, None, "f")
    store.put(KEY, tokens(1, 2, 3), state())
    store.put(KEY, tokens(1, 2, 9, 9), state())
    entry, length = store.best(tokens(1, 2, 9, 4), KEY, whole_only=False)
    assert (list(entry.tokens), length) == ([1, 2, 9, 9], 3)
    entry, length = store.best(tokens(1, 2, 3, 4), KEY, whole_only=True)
    assert (list(entry.tokens), length) == ([1, 2, 3], 3)
    assert store.best(tokens(7), KEY, whole_only=False) == (None, 0)


def test_adapters_do_not_mix():
    store = PrefixStore(10_000, 0, None, "f")
    store.put((("lora", 1.0),), tokens(1, 2, 3), state())
    assert store.best(tokens(1, 2, 3), KEY, whole_only=False) == (None, 0)


def test_a_longer_prefix_replaces_a_shorter_one_of_the_same_text():
    store = PrefixStore(10_000, 0, None, "f")
    store.put(KEY, tokens(1, 2), state())
    store.put(KEY, tokens(1, 2, 3), state())
    assert store.ram_bytes == 1000
    store.put(KEY, tokens(1), state())
    assert store.ram_bytes == 1000


def test_an_entry_behind_others_is_replaced_and_forgotten():
    store = PrefixStore(10_000, 0, None, "f")
    store.put(KEY, tokens(*range(5, 50)), state())
    store.put(KEY, tokens(1, 2), state())
    store.put(KEY, tokens(1, 2, 3), state())
    assert store.ram_bytes == 2000
    store.forget(tokens(1, 2, 8), KEY)
    assert store.best(tokens(1, 2), KEY, whole_only=False) == (None, 0)
    assert store.best(tokens(5, 6), KEY, whole_only=False)[1] == 2


def test_memory_is_bounded_and_the_oldest_goes():
    store = PrefixStore(2500, 0, None, "f")
    for i in range(4):
        store.put(KEY, tokens(i, i), state())
    assert store.ram_bytes <= 2500
    assert store.best(tokens(0, 0), KEY, whole_only=False)[1] == 0
    assert store.best(tokens(3, 3), KEY, whole_only=False)[1] == 2


def test_a_state_larger_than_the_memory_for_all_goes_to_disk_and_leaves_the_others(tmp_path):
    store = disk_store(tmp_path, ram=2500)
    store.put(KEY, tokens(1, 2), state())
    store.put(KEY, tokens(7, 8, 9), state(5000, seed=3))
    assert (store.ram_bytes, store.disk_bytes) == (1000, 5000)
    assert store.holds(tokens(1, 2), KEY)
    entry, length = store.best(tokens(7, 8, 9, 1), KEY, whole_only=True)
    assert (length, entry.data) == (3, None)
    assert np.array_equal(store.load(entry), state(5000, seed=3))
    store.close()
    assert np.array_equal(store.load(entry), state(5000, seed=3))


def test_a_state_that_cannot_be_stored_replaces_nothing(tmp_path, slow_disk, monkeypatch):
    monkeypatch.setattr(prefix_store, "MAX_WAITING_BYTES", 6000)
    for store in (PrefixStore(2500, 0, None, "f"), disk_store(tmp_path, ram=2500)):
        store.put(KEY, tokens(1, 2), state())
        store.put(KEY, tokens(7, 8), state(5000))  # a slow disk writes it
        assert not store.takes(5000)
        store.put(KEY, tokens(1, 2, 3), state(5000))
        assert store.best(tokens(1, 2, 3), KEY, whole_only=False)[1] == 2
        assert store.takes(2500)
    slow_disk.set()
    store.close()
    assert store.takes(5000)
    assert not store.takes(10_001)


def test_what_is_on_disk_survives_a_restart(tmp_path):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state(seed=5))
    store.persist()
    store.close()
    again = disk_store(tmp_path)
    entry, length = again.best(tokens(1, 2, 3, 4), KEY, whole_only=True)
    assert length == 3
    assert np.array_equal(again.load(entry), state(seed=5))


def test_only_what_is_in_memory_is_held(tmp_path):
    store = disk_store(tmp_path, ram=10_000)
    store.put(KEY, tokens(1, 2, 3), state())
    assert store.holds(tokens(1, 2), KEY)
    assert not store.holds(tokens(1, 2, 3, 4), KEY)
    store.persist()
    store.close()
    assert not disk_store(tmp_path).holds(tokens(1, 2), KEY)


def test_files_are_for_this_user_only(tmp_path):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.persist()
    store.close()
    (file,) = tmp_path.glob("*/*.kv")
    assert file.stat().st_mode & 0o077 == 0


def test_another_model_never_sees_it(tmp_path):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.persist()
    store.close()
    other = disk_store(tmp_path, fingerprint="e" * 64)
    assert other.best(tokens(1, 2, 3), KEY, whole_only=False) == (None, 0)


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "noise", "gone"])
def test_a_damaged_file_is_forgotten_not_used(tmp_path, harm):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.persist()
    store.close()
    (file,) = tmp_path.glob("*/*.kv")
    again = disk_store(tmp_path)
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[-10] ^= 1
        file.write_bytes(data)
    elif harm == "cut":
        file.write_bytes(data[:-100])
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "noise":
        file.write_bytes(random.Random(5).randbytes(2000))
    else:
        file.unlink()
    entry, _ = again.best(tokens(1, 2, 3), KEY, whole_only=False)
    assert again.load(entry) is None
    assert again.best(tokens(1, 2, 3), KEY, whole_only=False) == (None, 0)
    assert disk_store(tmp_path).best(tokens(1, 2, 3), KEY, whole_only=False) == (None, 0)


def test_disk_is_bounded_over_all_models(tmp_path):
    for i in range(4):
        store = disk_store(tmp_path, limit=2500, fingerprint=str(i) * 64)
        store.put(KEY, tokens(i, 2, 3), state())
        store.persist()
        store.close()
    disk_store(tmp_path, limit=2500, fingerprint="9" * 64)
    assert sum(p.stat().st_size for p in tmp_path.glob("*/*.kv")) <= 2500


def test_a_disk_that_cannot_be_written_harms_nothing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store = disk_store(blocked, ram=10_000)
    store.put(KEY, tokens(1, 2, 3), state())
    store.persist()
    store.close()
    entry, _ = store.best(tokens(1, 2, 3), KEY, whole_only=False)
    assert np.array_equal(store.load(entry), state())


def test_the_fingerprint_follows_content_and_settings(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"x" * 5000)
    b.write_bytes(b"x" * 4999 + b"y")
    assert model_fingerprint(a, "f16") != model_fingerprint(b, "f16")
    assert model_fingerprint(a, "f16") != model_fingerprint(a, "q8_0")


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that starts to write on request."""
    go, write = threading.Event(), prefix_store.PrefixFiles._write_file

    def wait(files, entry, data, path):
        assert go.wait(60)
        write(files, entry, data, path)

    monkeypatch.setattr(prefix_store.PrefixFiles, "_write_file", wait)
    yield go
    go.set()


def test_what_waits_for_a_slow_disk_can_be_loaded(tmp_path, slow_disk):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state(seed=5))
    entry, _ = store.best(tokens(1, 2, 3), KEY, whole_only=False)
    assert entry.data is None
    assert np.array_equal(store.load(entry), state(seed=5))
    slow_disk.set()
    store.close()
    assert np.array_equal(store.load(entry), state(seed=5))


def test_what_is_forgotten_while_it_waits_or_is_written_leaves_no_file(tmp_path, slow_disk):
    store = disk_store(tmp_path)
    for i in range(3):
        store.put(KEY, tokens(i, 2, 3), state())
    for i in range(2):  # the first is being written
        store.forget(tokens(i, 2, 3), KEY)
    slow_disk.set()
    store.close()
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
    assert disk_store(tmp_path).best(tokens(2, 2, 3), KEY, whole_only=False)[1] == 3


def test_a_disk_that_does_not_follow_is_spared(tmp_path, slow_disk, monkeypatch):
    monkeypatch.setattr(prefix_store, "MAX_WAITING_BYTES", 2500)
    store = disk_store(tmp_path, limit=100_000)
    for i in range(10):
        store.put(KEY, tokens(i, 2, 3), state())
    assert store.disk_bytes == 2000
    assert store.best(tokens(9, 2, 3), KEY, whole_only=False) == (None, 0)
    slow_disk.set()
    store.close()
    assert len(list(tmp_path.glob("*/*.kv"))) == 2


def test_a_smaller_limit_after_a_restart_holds(tmp_path):
    store = disk_store(tmp_path)
    for i in range(8):
        store.put(KEY, tokens(i, 2, 3), state())
    store.close()
    again = disk_store(tmp_path, limit=3500)
    assert again.disk_bytes == 3000
    assert len(list(tmp_path.glob("*/*.kv"))) == 3


def test_a_file_under_anothers_name_is_deleted(tmp_path):
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.close()
    (file,) = tmp_path.glob("*/*.kv")
    file.rename(file.with_name("0" * 32 + ".kv"))
    assert disk_store(tmp_path).disk_bytes == 0
    assert not list(tmp_path.glob("*/*.kv"))


@pytest.mark.parametrize("bound", ["MIN_FREE_FRAC", "MAX_FREE_BYTES"])
def test_the_rest_of_the_disk_is_left_to_others(tmp_path, monkeypatch, bound, capsys):
    """Chats and downloads need the space more than prefixes, which are recomputed in seconds."""
    everything = {"MIN_FREE_FRAC": 1.0, "MAX_FREE_BYTES": 1 << 60}
    for name, value in everything.items():
        monkeypatch.setattr(prefix_store, name, value if name != bound else 0)
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.close()
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
    monkeypatch.setattr(prefix_store, bound, everything[bound])
    store = disk_store(tmp_path)
    store.put(KEY, tokens(4, 5, 6), state())
    store.close()
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
    assert "the rest of the disk is for other things" in capsys.readouterr().err
    assert disk_store(tmp_path).best(tokens(4, 5, 6), KEY, whole_only=False)[1] < 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priority for a single thread")
def test_answers_go_before_the_writer(tmp_path, monkeypatch):
    found = []

    def write_file(self, entry, data, path):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(prefix_store.PrefixFiles, "_write_file", write_file)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    store = disk_store(tmp_path)
    store.put(KEY, tokens(1, 2, 3), state())
    store.persist()
    store.close()
    assert found == [max(own, prefix_store.WRITER_NICE)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_at_the_end_nothing_is_given_up_because_the_disk_is_slow(tmp_path, slow_disk, monkeypatch):
    """More data wait for the disk than is allowed while the model serves; the calls wait and report it."""
    monkeypatch.setattr(prefix_store, "MAX_WAITING_BYTES", 1500)
    store = disk_store(tmp_path, ram=10_000)
    for i in range(4):
        store.put(KEY, tokens(i, 2, 3), state())
    reports = []

    def on_wait(written_bytes, left_bytes, problem):
        reports.append((written_bytes, left_bytes, problem))
        slow_disk.set()

    store.wait_for_disk(on_wait)
    store.persist()
    store.close()
    assert len(list(tmp_path.glob("*/*.kv"))) == 4
    assert reports[0][:2] == (0, 1000)
    assert reports[-1] == (4000, 0, "")


def test_why_a_prefix_was_not_stored_is_reported(tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(prefix_store.shutil, "disk_usage", lambda _: usage(10**12, 10**12, 0))
    store = disk_store(tmp_path, ram=10_000)
    store.put(KEY, tokens(1, 2, 3), state())
    reports = []
    store.wait_for_disk(lambda *report: reports.append(report))
    store.persist()
    store.close()
    assert "the rest of the disk is for other things" in reports[-1][2]
