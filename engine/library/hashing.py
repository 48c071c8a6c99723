"""SHA-256 of large files with progress, and git's blob hash of small files."""

import hashlib
from pathlib import Path

from engine.jobs.jobs import JobContext

_CHUNK_BYTES = 4 * 1024 * 1024


def sha256_of(path: Path, control: JobContext, *, done: int = 0, total: int | None = None) -> str:
    """Hash a file; progress counts from `done` of `total` (default: this file alone).

    Raises: OSError; Cancelled and Paused from `control`, at most one chunk (4 MiB) late.
    """
    digest = hashlib.sha256()
    total = path.stat().st_size if total is None else total
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            control.check()
            digest.update(buffer[:count])
            done += count
            control.report("verifying", done, total)
    return digest.hexdigest()


def git_sha1_of(path: Path) -> str:
    """Git's blob id of a file's content; the hub publishes it as the expected hash of small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
