"""Files written atomically, changed by one program at a time, and swept after a crash; sizes of folders."""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# A change of a small file takes milliseconds; a process that holds the lock longer is stopped or hangs.
LOCK_S: Final = 20.0
_POLL_S: Final = 0.005
_LOCK: Final = ".lock"
# Prefixes, and unfinished files of earlier versions, have the process id in their names. Nothing else may match,
# because the folder may be the user's own: `a.7.part` could be a download.
_OF_A_PROCESS: Final = re.compile(
    r"[^/]*/\..+\.(\d+)(?:\.onnx)?\.partial|\.partial/import-(\d+)-.+|[^/]*/[0-9a-f]{32}\.(\d+)\.part"
)
# Files left by a process that was killed in `write_atomically`. A write takes seconds at most.
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_TEMPORARY_S: Final = 3600.0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other threads and processes that use this lock.

    Not reentrant. Raises: OSError: the folder cannot be written, or another process holds the lock for LOCK_S.
    """
    from filelock import FileLock, Timeout

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


def write_atomically(path: Path, raw: bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file atomically: readers see the old or the new one; `mode` less the umask, and less than before.

    If the path is a link (settings in a repository of dotfiles), its target is written. `durable`: also after a
    power cut, which takes 10 ms; without it some file systems may leave an empty file. A cache does not need it.
    Raises: OSError.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path  # also of links in a circle
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # never readable by more people than the file that it replaces
        mode &= path.stat().st_mode & 0o777
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
            if durable:
                file.flush()
                with contextlib.suppress(OSError):  # not all file systems support it
                    os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def make_private(path: Path) -> None:
    """Let only this user read a database; creates an empty file if there is none.

    SQLite gives its log the permissions of the database. Errors are left to the program that opens it.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if file.exists():
                file.chmod(file.stat().st_mode & 0o600)


@contextlib.contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A free path in the folder of `target` for a file or folder that is renamed to it when it is complete.

    Anything left there at the end is deleted; after a crash `sweep_unfinished` deletes it, because the lock is free
    then. Raises: OSError: the folder cannot be written.
    """
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    # Names have up to 255 bytes.
    name = os.fsdecode(os.fsencode(target.name)[:200])
    path = target.with_name(f".{name}.{os.urandom(4).hex()}.partial")
    lock = FileLock(str(path) + _LOCK)
    with contextlib.suppress(NotImplementedError):  # a file system without locks: nothing is swept there
        lock.acquire(timeout=LOCK_S, poll_interval=_POLL_S)  # a sweep may hold it for a moment
    try:
        yield path
    finally:
        _delete(path)
        lock.release()
        if not os.path.lexists(path):  # else a later sweep finds it: Windows does not delete files in use
            Path(lock.lock_file).unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str = "scratch") -> Iterator[Path]:
    """A new folder in `parent` for large temporary files, deleted at the end, or swept after a crash.

    The system's folder for temporary files is often small or in memory, and is not swept. Raises: OSError.
    """
    with unfinished(parent / name) as folder:
        folder.mkdir(mode=0o700)
        yield folder


def sweep_unfinished(folder: Path) -> list[Path]:
    """Delete unfinished files and folders, at any depth, whose process is gone; returns their paths.

    Safe while other processes write: they hold the locks of their own files, and finish a small file within
    _TEMPORARY_S.
    """
    deleted = []
    for parent, folders, files in os.walk(folder):
        locks = {name for name in files if name.startswith(".") and name.endswith(".partial" + _LOCK)}
        deleted += [path for name in locks if (path := _swept(Path(parent, name))) is not None]
        for name in (*folders, *files):
            match = _OF_A_PROCESS.fullmatch(f"{Path(parent).name}/{name}")
            ends = match is not None and not _runs(int(next(filter(None, match.groups()))))
            if (ends and name + _LOCK not in locks) or _is_old_temporary(Path(parent, name)):
                deleted.append(Path(parent, name))
                _delete(deleted[-1])
        folders[:] = [name for name in folders if not name.endswith(".partial") or name == ".partial"]
    return deleted


def folder_bytes(folder: Path) -> int:
    """Total size of a folder's files, while others may delete them; 0 if it does not exist. Follows no links."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # deleted meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def _swept(lock_file: Path) -> Path | None:
    """Delete the file or folder of a free lock; None if the lock is held."""
    from filelock import FileLock, Timeout

    lock = FileLock(str(lock_file))
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError, NotImplementedError):
        return None
    path = lock_file.with_name(lock_file.name.removesuffix(_LOCK))
    _delete(path)
    lock.release()
    if not os.path.lexists(path):
        lock_file.unlink(missing_ok=True)
    return path


def _is_old_temporary(path: Path) -> bool:
    if not _TEMPORARY.fullmatch(path.name):
        return False
    with contextlib.suppress(OSError):
        return path.is_file() and time.time() - path.lstat().st_mtime > _TEMPORARY_S
    return False


def _runs(pid: int) -> bool:
    import psutil

    return pid != os.getpid() and psutil.pid_exists(pid)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
