"""Replaces pages of a mapped file by private copies in memory, and back.

The copy has the file's bytes at the file's address, so readers get the same data, from memory that the kernel does
not drop. A copy's pages are reused for the next one: allocating and clearing new ones takes four times as much CPU
time (log-archive.md, mixtures).
"""

import contextlib
import ctypes
import errno
import os
import threading
from typing import Any, Final

from engine.runner.expert_tensors import PAGE
from engine.runner.llama.experts.expert_layout import FileChanged, Parts, Span

# From asm-generic/mman-common.h, linux/mman.h and bits/mman.h.
_NONE, _READ, _WRITE = 0, 1, 2
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_MAYMOVE, _MOVE_FIXED, _DONTUNMAP = 1, 2, 4
_DONTNEED, _NOHUGEPAGE = 4, 15
# Copies whose first contiguous part is shorter than this fraction of the required size are freed instead of reused.
_WORTH: Final = 0.75
_Key = tuple[int, int, int]


class NoPages(Exception):
    """The kernel cannot move pages: it is older than Linux 5.7, or its limit of mappings is reached."""


class Pages:
    """Replaces spans of mapped files. Each reader has its own buffer of `largest` bytes."""

    def __init__(self, parts: Parts, largest: int, readers: int) -> None:
        """Allocate the readers' buffers. Raises: NoPages."""
        self._parts = parts
        self._libc = _libc()
        self._lock = threading.Lock()
        self._room_bytes = largest + -largest % PAGE + 2 * PAGE
        self._rooms = [self._anonymous(None, self._room_bytes) for _ in range(readers)]
        # Number of copies that use each shared page, by part and offset; and the size of each copy's first
        # contiguous part.
        self._shared: dict[tuple[int, int], int] = {}
        self._pieces: dict[_Key, int] = {}
        self._try()

    def fill(self, room: int, span: Span, victim: Span | None) -> None:
        """Put a copy of the file where `span` is mapped; `victim`'s copy becomes the file again. Blocks.

        Raises: FileChanged, OSError: reading failed. NoPages.
        """
        base = self._rooms[room]
        inner = base + span.inner_begin - span.begin
        size = span.inner_end - span.inner_begin
        moved = self._take(victim, inner, size) if victim is not None else 0
        if span.inner_begin > span.begin:
            self._anonymous(base, span.inner_begin - span.begin)
        remaining = span.end - span.inner_begin - moved
        if remaining:
            self._anonymous(inner + moved, remaining)
        self._read(span, base)
        with self._lock:
            try:
                self._put(span, base, moved)
            except NoPages:
                with contextlib.suppress(NoPages):
                    self._as_file(span)
                raise

    def give_back(self, span: Span) -> None:
        """Replace a copy by the file mapping again."""
        with self._lock:
            self._as_file(span)

    def drop(self, first: Span, last: Span) -> None:
        """Drop the kernel's cached pages of the file from one span to another; later accesses read them again."""
        size = last.end - first.begin
        self._libc.madvise(first.address, size, _DONTNEED)
        self._parts.forget(first.part, first.begin, size)

    def close(self) -> None:
        """Free the readers' buffers; copies stay until the model is unmapped."""
        for room in self._rooms:
            self._libc.munmap(room, self._room_bytes)
        self._rooms = []

    def _take(self, victim: Span, address: int, size: int) -> int:
        """Move at most `size` bytes of the victim's pages to `address`; return the number of bytes."""
        with self._lock:
            first = min(self._pieces.get(_key(victim), 0), size)
            if first and first >= _WORTH * size:
                self._move(victim.at(victim.inner_begin), address, first)
            else:
                first = 0
            self._as_file(victim)
        return first

    def _put(self, span: Span, base: int, moved: int) -> None:
        """Move the pages that were read to the file's address; the first `moved` bytes are contiguous."""
        inner, size = base + span.inner_begin - span.begin, span.inner_end - span.inner_begin
        first = moved or size
        self._pieces[_key(span)] = first
        for edge in span.edges:
            holders = self._shared.get((span.part, edge), 0)
            if not holders:
                self._move(base + edge - span.begin, span.at(edge), PAGE)
            self._shared[span.part, edge] = holders + 1
        if first:
            self._move(inner, span.at(span.inner_begin), first)
        if size > first:
            self._move(inner + first, span.at(span.inner_begin + first), size - first)

    def _as_file(self, span: Span) -> None:
        self._pieces.pop(_key(span), None)
        if span.inner_end > span.inner_begin:
            self._map(span, span.inner_begin, span.inner_end - span.inner_begin)
        for edge in span.edges:
            users_left = self._shared.get((span.part, edge), 1) - 1
            if users_left > 0:
                self._shared[span.part, edge] = users_left
            else:
                self._shared.pop((span.part, edge), None)
                self._map(span, edge, PAGE)

    def _read(self, span: Span, address: int) -> None:
        at, direct = span.begin, True
        while at < span.end:
            descriptor = self._parts.direct[span.part] if direct else self._parts.plain[span.part]
            got = self._libc.pread(descriptor, address + at - span.begin, span.end - at, at)
            if got < 0 and direct and ctypes.get_errno() == errno.EINVAL:  # a disk with blocks larger than pages
                direct = False
                continue
            if got < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            if got == 0:
                break
            at += got
            direct = direct and at % PAGE == 0
        if at < span.needed_end:
            raise FileChanged("the model's file is shorter than when it was loaded; load it again")
        if not (direct and self._parts.past_cache):
            self._parts.forget(span.part, span.begin, span.end - span.begin)

    def _anonymous(self, address: int | None, size: int) -> int:
        flags = _PRIVATE | _ANONYMOUS | _NORESERVE | (_FIXED if address is not None else 0)
        mapped = self._libc.mmap(address, size, _READ | _WRITE, flags, -1, 0)
        _checked(mapped)
        self._libc.madvise(mapped, size, _NOHUGEPAGE)  # huge pages would be split at the first move
        return int(mapped)

    def _map(self, span: Span, offset: int, size: int) -> None:
        descriptor = self._parts.plain[span.part]
        _checked(self._libc.mmap(span.at(offset), size, _READ, _SHARED | _FIXED, descriptor, offset))

    def _move(self, source: int, target: int, size: int) -> None:
        """Move pages from `source` to `target`; `source` stays mapped, so that nothing else is allocated there."""
        _checked(self._libc.mremap(source, size, size, _MAYMOVE | _MOVE_FIXED | _DONTUNMAP, target))

    def _try(self) -> None:
        if not self._rooms:
            return
        target = self._anonymous(None, PAGE)
        ctypes.memset(self._rooms[0], 7, 1)
        self._move(self._rooms[0], target, PAGE)
        moved = ctypes.string_at(target, 1)
        self._libc.munmap(target, PAGE)
        if moved != b"\7":
            raise NoPages("pages that were moved are not where they should be")


def _key(span: Span) -> _Key:
    return span.part, span.begin, span.end


def _checked(address: int | None) -> None:
    if address is None or address == ctypes.c_void_p(-1).value:
        raise NoPages(f"memory could not be exchanged: {os.strerror(ctypes.get_errno())}")


def _libc() -> Any:
    """Return the C library with separate prototypes: other modules declare these functions differently."""
    libc = ctypes.CDLL(None, use_errno=True)
    size, offset, pointer, number = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("mmap", pointer, [pointer, size, number, number, number, offset]),
        ("mremap", pointer, [pointer, size, size, number, pointer]),
        ("munmap", number, [pointer, size]),
        ("madvise", number, [pointer, size, number]),
        ("pread", ctypes.c_ssize_t, [number, pointer, size, offset]),
    ):
        function = getattr(libc, name)
        function.restype, function.argtypes = result, arguments
    return libc
