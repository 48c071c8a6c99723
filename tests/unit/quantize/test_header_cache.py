"""Headers are read once while their file is unchanged, and again whenever it may have changed."""

import os
import struct
import time

import pytest

from devices.errors import TesseraError
from quantize.files import header_cache
from quantize.files.gguf_split import read_gguf_model
from quantize.files.header_cache import MAX_ENTRIES, cached_gguf_model

LONG_AGO = time.time() - 3600


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write(path, architecture, at=LONG_AGO):
    pair = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def reads(monkeypatch):
    """Paths that were actually read."""
    found = []

    def counted(path):
        found.append(str(path))
        return read_gguf_model(path)

    monkeypatch.setattr(header_cache, "read_gguf_model", counted)
    return found


def test_a_file_is_read_once(tmp_path, reads):
    path = write(tmp_path / "m.gguf", "llama")
    first = cached_gguf_model(path)
    assert first.architecture == "llama"
    assert cached_gguf_model(str(path)) is first
    assert len(reads) == 1


def test_another_file_of_the_same_size_and_time_is_read(tmp_path, reads):
    path = write(tmp_path / "m.gguf", "llama")
    assert cached_gguf_model(path).architecture == "llama"
    write(tmp_path / "other", "qwen3").replace(path)
    assert cached_gguf_model(path).architecture == "qwen3"
    write(path, "gemma")
    assert cached_gguf_model(path).architecture == "gemma"
    assert len(reads) == 3


def test_what_changed_a_moment_ago_is_not_believed(tmp_path, reads):
    path = write(tmp_path / "m.gguf", "llama", at=time.time())
    cached_gguf_model(path)
    write(path, "qwen3", at=time.time())
    assert cached_gguf_model(path).architecture == "qwen3"
    assert len(reads) == 2


def test_what_went_wrong_or_away_is_told_each_time(tmp_path, reads):
    path = write(tmp_path / "m.gguf", "llama")
    cached_gguf_model(path)
    path.unlink()
    for _ in range(2):
        with pytest.raises(TesseraError):
            cached_gguf_model(path)
    path.write_bytes(b"GGUF")
    os.utime(path, (LONG_AGO, LONG_AGO))
    for _ in range(2):
        with pytest.raises(TesseraError):
            cached_gguf_model(path)
    assert len(reads) == 5


def test_parts_are_always_read_and_few_are_kept(tmp_path, reads):
    part = write(tmp_path / "m-00001-of-00001.gguf", "llama")
    for _ in range(2):
        cached_gguf_model(part)
    assert len(reads) == 2
    for number in range(2 * MAX_ENTRIES):
        cached_gguf_model(write(tmp_path / f"{number}.gguf", "llama"))
    assert len(header_cache._cache) == MAX_ENTRIES
