"""Measures large random reads from a disk without the system's cache: the speed of streamed weights."""

import contextlib
import mmap
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

# Long enough for a result within a tenth, and short compared with the work that needs it.
MEASURED_S: Final = 0.4
# Streamed experts are read like this: several at once, each matrix in one chunk.
READERS: Final = 8
CHUNK_BYTES: Final = 512 << 10
SMALLEST_BYTES: Final = 64 << 20


def disk_of(path: Path) -> str | None:
    """An id of the disk of this file, or of the first existing folder above it."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return str(folder.stat().st_dev)
    return None


def read_gbs(path: Path, seconds: float = MEASURED_S) -> float | None:
    """Read speed in GB/s of the disk of this file; for a folder, measured with a temporary file.

    None if the cache cannot be bypassed (only Linux supports it), the file is small, or reading it fails.
    """
    if sys.platform != "linux":
        return None
    try:
        if path.is_file():
            return _read(path, seconds) if path.stat().st_size >= SMALLEST_BYTES else None
        if not path.is_dir():
            return None
        with tempfile.NamedTemporaryFile(dir=path, prefix=".disk-speed-") as file:
            chunk = os.urandom(CHUNK_BYTES)
            for _ in range(SMALLEST_BYTES // CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            return _read(Path(file.name), seconds)
    except OSError:
        return None


def _read(path: Path, seconds: float) -> float | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    num_chunks = path.stat().st_size // CHUNK_BYTES
    done: list[int] = []
    started = time.monotonic()

    def work(number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - positions to read, not a secret
        with mmap.mmap(-1, CHUNK_BYTES) as buffer, contextlib.suppress(OSError):
            while time.monotonic() - started < seconds:
                done.append(os.preadv(descriptor, [buffer], rng.randrange(num_chunks) * CHUNK_BYTES))

    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(READERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - started
    finally:
        os.close(descriptor)
    return sum(done) / elapsed / 1e9 if done else None


# Where systems mount removable drives. Source: udisks2, the Filesystem Hierarchy Standard, macOS.
_DRIVES: Final = tuple(map(Path, ("/media", "/run/media", "/mnt", "/Volumes")))


def drive_is_here(path: Path) -> bool:
    """Whether the drive that holds, or held, this file can be read now."""
    if not Path(path.anchor).exists():  # a Windows drive letter without its drive
        return False
    roots = {root for root in _DRIVES if path.is_relative_to(root)}
    if not roots:
        return True
    # Only folders below a root: /run, which holds /run/media, is always a mount.
    return any(roots.intersection(parent.parents) and os.path.ismount(parent) for parent in path.parents)
