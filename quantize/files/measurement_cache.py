"""Limits the measurement cache: the most recently used folders stay, within a fraction of the disk."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from devices.atomic_file import folder_bytes

_FOLDER = re.compile(r"[0-9a-f]{24}")  # names given by `measurement_folder`
_MOST_FRAC = 0.1  # fraction of the disk; the most recently used folder always stays
_MOST_FOLDERS = 50
_MOST_HASHES = 1000  # about 70 bytes each
_MOST_TEXTS = 20  # eight bytes per token
TOKENS = "tokens"  # the folder of tokenized texts


@contextmanager
def bounded(
    cache_dir: Path, most_bytes: int | None = None, most: int = _MOST_FOLDERS, *, writes: bool = True
) -> Iterator[None]:
    """Remove the oldest measurements after a job, unless another job uses the cache.

    `most_bytes` None: a fraction of the disk. A read-only job (`writes=False`) removes nothing.

    Raises: OSError: the cache is not writable.
    """
    if not writes:
        yield
        return
    marks = cache_dir / "jobs"
    marks.mkdir(parents=True, exist_ok=True)
    mine = marks / str(os.getpid())
    mine.touch()
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)
        with suppress(OSError):  # if removing fails, the next job tries again
            if not _others(marks):
                _clear(cache_dir, most_bytes, most)


def _others(marks: Path) -> bool:
    """Whether another process uses the cache; removes marks of ended processes."""
    has_other = False
    for mark in marks.iterdir():
        if mark.name.isdecimal() and psutil.pid_exists(int(mark.name)):
            has_other = True
        else:
            mark.unlink(missing_ok=True)
    return has_other


def _clear(cache_dir: Path, most_bytes: int | None, most: int) -> None:
    limit = most_bytes if most_bytes is not None else int(_MOST_FRAC * shutil.disk_usage(cache_dir).total)
    folders = [p for p in cache_dir.iterdir() if _FOLDER.fullmatch(p.name) and p.is_dir()]
    total = 0
    for index, folder in enumerate(_newest_first(folders)):
        total += folder_bytes(folder)
        if index and (total > limit or index >= most):
            shutil.rmtree(folder, ignore_errors=True)
    for name, stay in (("hashes", _MOST_HASHES), (TOKENS, _MOST_TEXTS)):
        folder = cache_dir / name
        children = list(folder.iterdir()) if folder.is_dir() else []
        killed = [p for p in children if p.suffix == ".partial"]
        for old in (*killed, *_newest_first([p for p in children if p not in killed])[stay:]):
            old.unlink(missing_ok=True)


def _newest_first(paths: list[Path]) -> list[Path]:
    return sorted(paths, key=lambda p: p.stat().st_mtime_ns, reverse=True)
