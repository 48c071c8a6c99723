"""Where a file lies if the user names none: next to its source, unless that place is not for the user's files."""

import os

import pytest

from engine.core.paths import Paths
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.job_kinds.quantize.request import default_out

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def paths(tmp_path):
    return Paths(*(tmp_path / "home" / name for name in ("config", "models", "state", "cache", "logs")))


def out_for(source, paths):
    return default_out(source, QuantizeOptions(model=str(source), mix="Q4_K_M"), paths)


def test_next_to_the_source(tmp_path, paths):
    folder = tmp_path / "My Model"
    folder.mkdir()
    assert out_for(folder, paths) == tmp_path / "My Model-Q4_K_M.gguf"
    file = tmp_path / "chat-f16.gguf"
    file.write_text("")
    assert out_for(file, paths) == tmp_path / "chat-Q4_K_M.gguf"


def test_not_in_the_cache_of_the_hub_and_not_named_after_a_commit(tmp_path, paths):
    snapshot = tmp_path / "hub" / "models--acme--Tiny-Chat" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert out_for(snapshot, paths) == paths.models / "Tiny-Chat-Q4_K_M.gguf"
    file = snapshot / "tiny-BF16.gguf"
    file.write_text("")
    assert out_for(file, paths) == paths.models / "tiny-Q4_K_M.gguf"


def test_not_on_a_drive_that_is_read_only(tmp_path, paths, monkeypatch):
    file = tmp_path / "chat.gguf"
    file.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert out_for(file, paths) == paths.models / "chat-Q4_K_M.gguf"
