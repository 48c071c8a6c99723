"""A partially downloaded file, and a journal of the bytes that are on disk."""

import logging
import os
import threading
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned

_log = logging.getLogger(__name__)


class Journal(msgspec.Struct, kw_only=True):
    """`identity` (the expected hash) and size identify the content; `done` is the byte count of each segment."""

    identity: str
    size_bytes: int
    segment_bytes: int
    done: list[int]
    verified: bool = False


class PartialFile:
    """A sparse `.part` file of full length, and its journal. Scans do not see it until it is verified.

    The journal is written after its bytes are on disk, so after a crash it never claims bytes that are missing. If
    the journal is missing or belongs to other content, the download starts from zero.
    """

    def __init__(self, path: Path, identity: str, size_bytes: int, segment_bytes: int) -> None:
        self.path = path
        self.journal_path = path.with_suffix(".json")
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.journal = self._read(identity, size_bytes) or self._fresh(identity, size_bytes, segment_bytes)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(path, flags, 0o644)
        if os.fstat(self._fd).st_size != size_bytes:
            if any(self.journal.done):
                self.journal = self._fresh(identity, size_bytes, segment_bytes)
            os.ftruncate(self._fd, size_bytes)

    def _read(self, identity: str, size_bytes: int) -> Journal | None:
        try:
            journal = msgspec.json.decode(self.journal_path.read_bytes(), type=learned(Journal))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("unreadable journal path=%s error=%s", self.journal_path, error)
            return None
        same = (journal.identity, journal.size_bytes) == (identity, size_bytes)
        lengths = _segment_lengths(journal.size_bytes, journal.segment_bytes)
        whole = len(lengths) == len(journal.done) and all(
            0 <= d <= n for d, n in zip(journal.done, lengths, strict=True)
        )
        return journal if same and whole else None

    @staticmethod
    def _fresh(identity: str, size_bytes: int, segment_bytes: int) -> Journal:
        count = len(_segment_lengths(size_bytes, segment_bytes))
        return Journal(identity=identity, size_bytes=size_bytes, segment_bytes=segment_bytes, done=[0] * count)

    @property
    def done_bytes(self) -> int:
        """Number of bytes on disk."""
        return sum(self.journal.done)

    @property
    def complete(self) -> bool:
        """Whether all bytes are on disk (verified or not)."""
        return self.done_bytes == self.journal.size_bytes

    def missing(self) -> list[int]:
        """Indexes of the incomplete segments."""
        lengths = _segment_lengths(self.journal.size_bytes, self.journal.segment_bytes)
        return [i for i, (d, n) in enumerate(zip(self.journal.done, lengths, strict=True)) if d < n]

    def span(self, segment: int) -> tuple[int, int]:
        """Offset of a segment's first missing byte, and of its end."""
        start = segment * self.journal.segment_bytes
        return start + self.journal.done[segment], min(start + self.journal.segment_bytes, self.journal.size_bytes)

    def write(self, segment: int, data: bytes) -> None:
        """Append to a segment; each segment has one writer. Raises: OSError (the disk is full)."""
        offset = segment * self.journal.segment_bytes + self.journal.done[segment]
        view = memoryview(data)
        while view:
            with self._lock:
                if self._fd < 0:
                    return  # closed: another file may have reused the descriptor
                written = _pwrite(self._fd, view, offset)
            offset += written
            self.journal.done[segment] += written
            view = view[written:]

    def save(self) -> None:
        """Flush the bytes to disk, then write the journal. Raises: OSError."""
        with self._lock:
            raw = msgspec.json.encode(self.journal)  # later writes are claimed by the next save
            os.fsync(self._fd)
            fresh = self.journal_path.with_suffix(".new")
            fresh.write_bytes(raw)
            fresh.replace(self.journal_path)

    def restart(self) -> None:
        """Discard all bytes."""
        journal = self.journal
        self.journal = self._fresh(journal.identity, journal.size_bytes, journal.segment_bytes)
        self.save()

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _segment_lengths(size: int, segment: int) -> list[int]:
    return [min(segment, size - start) for start in range(0, size, segment)] if segment > 0 else []


def _pwrite(fd: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows has no pwrite; the caller holds the part's lock
    return os.write(fd, data)
