"""Reads unverified bytes with limits, from a file or any source that supports ranges."""

import os
import stat
import struct
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from quantize.errors import BadFile, CannotRead, IncompleteFile

if TYPE_CHECKING:
    import numpy as np

_CHUNK_BYTES = 64 * 1024
_MAX_CHUNK_BYTES = 2 * 1024 * 1024
# Larger than any array in a real header; a length near 2^63 is an attack, not a truncated file.
_MAX_SKIP_BYTES = 1 << 32
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteSource(Protocol):
    """Anything of known size that can be read at an offset; remote files use HTTP ranges."""

    @property
    def name(self) -> str:
        """Name for error messages: a path or URL."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end."""


class FileSource:
    """A regular file that is read and never memory-mapped, because a shrinking mapped file can kill the process.

    Raises: CannotRead: the system cannot open it. BadFile: it is a folder, a pipe or a device.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # Opening a pipe without a writer would block forever. Each flag exists on one system only.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(self.path, flags)
        except (OSError, ValueError) as error:
            raise CannotRead(str(path), getattr(error, "strerror", None) or str(error)) from error
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode):
            self.close()
            raise BadFile(str(path), "not a regular file")
        self._size = info.st_size

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """Length in bytes when the file was opened."""
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end. Raises: CannotRead."""
        try:
            if hasattr(os, "pread"):
                return os.pread(self._fd, length, offset)
            os.lseek(self._fd, offset, os.SEEK_SET)
            return os.read(self._fd, length)
        except OSError as error:
            raise CannotRead(self.name, error.strerror or str(error)) from error

    def close(self) -> None:
        """Close the descriptor; reading afterwards fails."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Window:
    """A cursor that holds one chunk of the source in memory; skipped bytes are never fetched.

    `max_fetched_bytes` limits the total that is read. Chunks double during sequential reading (64 KiB to 2 MiB: few
    network requests, flat memory) and start small again after a skip.
    """

    def __init__(self, source: ByteSource, max_fetched_bytes: int, first_chunk_bytes: int = _CHUNK_BYTES) -> None:
        self.source = source
        self.buffer = b""
        self.index = 0
        self._base = 0
        self._chunk = self._first_chunk = first_chunk_bytes
        self._allowance = max_fetched_bytes

    def tell(self) -> int:
        """Offset of the cursor in the source."""
        return self._base + self.index

    def need(self, count: int) -> None:
        """Load `count` bytes at the cursor into the buffer.

        Raises: IncompleteFile: the source ends earlier. BadFile: more was read than a header may take.
        """
        if self.index + count <= len(self.buffer):
            return
        here = self.tell()
        if here + count > self.source.size:
            raise IncompleteFile(self.source.name, self.source.size, here + count, known=False)
        buffered = self.buffer[self.index :]
        num_bytes = min(max(count - len(buffered), self._chunk), self.source.size - here - len(buffered))
        self._allowance -= num_bytes
        if self._allowance < 0:
            raise BadFile(self.source.name, "the header is larger than any real one", here)
        fresh = self.source.read_at(here + len(buffered), num_bytes)
        self.buffer = buffered + fresh
        self._base, self.index = here, 0
        self._chunk = min(self._chunk * 2, _MAX_CHUNK_BYTES)
        if len(self.buffer) < count:
            raise IncompleteFile(self.source.name, here + len(self.buffer), here + count, known=False)

    def skip(self, count: int) -> None:
        """Move the cursor without fetching.

        Raises: IncompleteFile: beyond the end. BadFile: larger than any real header skips.
        """
        if count > _MAX_SKIP_BYTES:
            raise BadFile(self.source.name, f"a length of {count} bytes is impossible here", self.tell())
        if self.tell() + count > self.source.size:
            raise IncompleteFile(self.source.name, self.source.size, self.tell() + count, known=False)
        self.index += count
        beyond = self.index - len(self.buffer)
        if beyond > 0:
            self._base, self.buffer, self.index = self._base + self.index, b"", 0
            if beyond > _CHUNK_BYTES:  # a jump, not a string that crosses the border of two chunks
                self._chunk = self._first_chunk

    def u32(self) -> int:
        """The next four bytes, little-endian."""
        self.need(4)
        (value,) = _U32.unpack_from(self.buffer, self.index)
        self.index += 4
        return int(value)

    def u64(self) -> int:
        """The next eight bytes, little-endian."""
        self.need(8)
        (value,) = _U64.unpack_from(self.buffer, self.index)
        self.index += 8
        return int(value)

    def take(self, count: int) -> bytes:
        """The next `count` bytes; the caller must limit `count`."""
        self.need(count)
        self.index += count
        return self.buffer[self.index - count : self.index]

    def skip_strings(self, count: int) -> None:
        """Skip `count` length-prefixed strings, reading only their lengths. About 0.1 µs per string."""
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            self.need(8)
            buffer, index, last = self.buffer, self.index, len(self.buffer) - 8
            while done < count and index <= last:
                index += 8 + unpack(buffer, index)[0]
                done += 1
            self.skip(index - self.index)


def mapped_bytes(path: str, offset: int, nbytes: int) -> "np.ndarray[Any, Any]":
    """Bytes of a file as a read-only memory map, shape (nbytes,) uint8.

    Only for child processes: if a mapped file shrinks, a process that reads it is killed.
    """
    import numpy as np

    return np.memmap(path, np.uint8, "r", offset, (nbytes,)) if nbytes else np.empty(0, np.uint8)
