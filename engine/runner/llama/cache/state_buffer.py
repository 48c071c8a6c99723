"""Buffers for copies of states whose memory is returned to the system completely."""

import ctypes
import errno
import mmap
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

# Below this size, the unused rest of the last page would be significant.
OWN_PAGES_FROM: Final = 64 << 10
HUGE_PAGE: Final = 2 << 20
# Space that stays free on the disk while a temporary file exists.
SPARE_DISK_BYTES: Final = 1 << 30


def state_buffer(size: int) -> Any:
    """Return a buffer for a state, (size,) uint8, in separate pages.

    In the C library's heap, small objects that outlive states (tokens, indexes) would keep the memory between them
    allocated: 17 to 30 KB per state ever stored. Measured: log-archive.md, engine.
    """
    if size < OWN_PAGES_FROM:
        return np.empty(size, np.uint8)
    pages = mmap.mmap(-1, size)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def file_buffer(size: int, folder: Path) -> Any:
    """Return such a buffer in an unnamed file: the system may write its pages to disk.

    Raises: OSError: the disk has no space for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_DISK_BYTES:
        raise OSError(errno.ENOSPC, f"{free} bytes are free in {folder}, {size} are needed")
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)


def pointer(data: Any) -> Any:
    """Return the buffer as a pointer for llama.cpp."""
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def copied(*parts: Any) -> Any:
    """Return one such buffer with a copy of `parts`, each (n,) uint8, one after the other."""
    return np.concatenate(parts, out=state_buffer(sum(len(part) for part in parts)))
