"""Memory for copies of states that goes back to the system whole."""

import ctypes
import errno
import mmap
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

# Below this the rest of a page would be a noticeable part of it.
OWN_PAGES_FROM: Final = 64 << 10
HUGE_PAGE: Final = 2 << 20
# What a disk keeps free whatever is stored for a moment.
SPARE_DISK_BYTES: Final = 1 << 30


def state_buffer(size: int) -> Any:
    """Room for a state, (size,) uint8, in pages of its own.

    In the C library's heap the small objects that outlive states (tokens, indexes) would hold what lies between:
    17 to 30 KB for each state ever stored. Measured: docs/log.md, engine.
    """
    if size < OWN_PAGES_FROM:
        return np.empty(size, np.uint8)
    pages = mmap.mmap(-1, size)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def file_buffer(size: int, folder: Path) -> Any:
    """The same in a file without a name: the system may write its pages to disk instead of keeping them.

    Raises: OSError: the disk has no room for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_DISK_BYTES:
        raise OSError(errno.ENOSPC, f"{free} bytes are free in {folder}, {size} are needed")
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)


def pointer(data: Any) -> Any:
    """The buffer as llama.cpp takes it."""
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def copied(*parts: Any) -> Any:
    """One such buffer with a copy of `parts`, each (n,) uint8, one behind the other."""
    return np.concatenate(parts, out=state_buffer(sum(len(part) for part in parts)))
