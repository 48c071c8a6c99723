"""A dry run that cannot be started."""

import errno
from pathlib import Path

import pytest

from engine.placement import dry_run
from engine.runner.protocol import LoadSettings


def test_a_moment_without_descriptors_is_told_like_any_failure(monkeypatch, tmp_path):
    def full(_self, _pattern):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(dry_run, "library_folder", lambda: tmp_path)
    monkeypatch.setattr(Path, "glob", full)
    with pytest.raises(dry_run.DryRunFailed, match="Too many open files"):
        dry_run.dry_run(LoadSettings(path=str(tmp_path / "m.gguf"), n_ctx=512))
