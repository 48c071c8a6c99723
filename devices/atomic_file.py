"""Small files that are written atomically and changed by one program at a time."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# A change of a small file takes milliseconds; a process that holds the lock longer is stopped or hangs.
LOCK_S: Final = 20.0
_POLL_S: Final = 0.005


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other threads and processes that use this lock.

    Not reentrant. Raises: OSError: the folder cannot be written, or another process holds the lock for LOCK_S.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - every program reads state files, few change one

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(path.with_name(f".{path.name}.lock")))
    try:
        lock.acquire(timeout=LOCK_S, poll_interval=_POLL_S)
    except Timeout:
        raise OSError(errno.EBUSY, f"another program has been changing it for {LOCK_S:.0f} s", str(path)) from None
    except NotImplementedError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, raw: bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: readers see the old or the new one; `mode` less the umask. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
