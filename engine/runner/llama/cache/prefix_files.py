"""Computed prefixes in files, so that they survive a restart; written by a thread of its own.

A file holds the tokens it stands for and a checksum; it belongs to one model, cache type and llama.cpp build (the
`fingerprint`) and is never used for another.
"""

import contextlib
import errno
import hashlib
import os
import queue
import shutil
import struct
import sys
import threading
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from engine.runner.llama.cache.prefix_index import Key, StoredPrefix
from engine.runner.llama.cache.state_buffer import state_buffer

_MAGIC: Final = b"TSKV1\n"
_HEADER: Final = struct.Struct(">I")
_MAX_HEADER: Final = 64 << 20
# States that wait for a slow disk stand in memory beside all others.
MAX_WAITING_BYTES: Final = 256 << 20
# A cache must not take the space that chats and downloads need: it leaves a tenth of the disk free, 2 GiB at most.
MIN_FREE_FRAC: Final = 0.1
MAX_FREE_BYTES: Final = 2 << 30


class _FileHeader(msgspec.Struct):
    fingerprint: str
    key: Key
    tokens: bytes
    size: int
    checksum: int
    marks: tuple[tuple[int, int], ...] = ()
    num_steady: int = 0


class PrefixFiles:
    """The files of one model, in `folder`. One thread calls it."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder / fingerprint[:24]
        self._fingerprint = fingerprint
        self._waiting: dict[StoredPrefix, Any] = {}
        self._jobs: queue.SimpleQueue[StoredPrefix | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def scan(self) -> list[StoredPrefix]:
        """What earlier processes left, the least recently used first; files that cannot be used are deleted."""
        found = []
        for path in self.folder.glob("*.kv"):
            header = None
            with contextlib.suppress(OSError), path.open("rb") as file:
                header = self._header(file)
            if header is None or len(header.tokens) % 4:
                path.unlink(missing_ok=True)
                continue
            tokens = np.frombuffer(header.tokens, np.int32)
            entry = StoredPrefix(
                header.key,
                tokens,
                header.size,
                on_disk=True,
                marks=header.marks,
                num_steady=header.num_steady,
            )
            if path == self._path(entry):
                found.append((path.stat().st_mtime, entry))
            else:
                path.unlink(missing_ok=True)
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]

    def write(self, entry: StoredPrefix) -> bool:
        """Begin to write an entry that is in memory; False where too much waits already."""
        waiting = sum(w.size for w in list(self._waiting))
        if waiting and waiting + entry.size > MAX_WAITING_BYTES:
            return False
        self._waiting[entry] = entry.data
        self._jobs.put(entry)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="prefix-writer", daemon=True)
            self._writer.start()
        return True

    def read(self, entry: StoredPrefix) -> Any:
        """The data of an entry as uint8 (size,); None when its file is gone, damaged or another's."""
        waiting = self._waiting.get(entry)
        if waiting is not None:
            return waiting
        try:
            with self._path(entry).open("rb") as file:
                header = self._header(file)
                if header is None or header.size != entry.size:
                    return None
                if os.fstat(file.fileno()).st_size != file.tell() + entry.size:
                    return None
                data = state_buffer(entry.size)
                whole = file.readinto(data) == entry.size
        except OSError:
            return None
        return data if whole and zlib.crc32(data) == header.checksum else None

    def remove(self, entry: StoredPrefix) -> None:
        """Delete an entry's file, or do not write it."""
        self._waiting.pop(entry, None)
        self._path(entry).unlink(missing_ok=True)

    def close(self) -> None:
        """Wait until everything that was to be written is written."""
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()

    def _path(self, entry: StoredPrefix) -> Path:
        name = hashlib.sha256(entry.tokens.tobytes() + repr(entry.key).encode()).hexdigest()[:32]
        return self.folder / f"{name}.kv"

    def _write_all(self) -> None:
        while (entry := self._jobs.get()) is not None:
            data = self._waiting.get(entry)
            if data is None:  # removed meanwhile
                continue
            path = self._path(entry)
            try:
                self._write_file(entry, data, path)
            except OSError as error:
                sys.stderr.write(f"prefix not stored path={path} error={error}\n")
            if self._waiting.pop(entry, None) is None:  # removed while it was written
                path.unlink(missing_ok=True)

    def _write_file(self, entry: StoredPrefix, data: Any, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(path.parent)
        if disk.free - entry.size < min(MIN_FREE_FRAC * disk.total, MAX_FREE_BYTES):
            raise OSError(errno.ENOSPC, "the rest of the disk is for other things")
        temporary = path.with_suffix(f".{os.getpid()}.part")
        header = msgspec.msgpack.encode(
            _FileHeader(
                self._fingerprint,
                entry.key,
                entry.tokens.tobytes(),
                entry.size,
                zlib.crc32(memoryview(data)),
                entry.marks,
                entry.num_steady,
            )
        )
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _HEADER.pack(len(header)) + header)
                file.write(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _header(self, file: BinaryIO) -> _FileHeader | None:
        """Header of a file of this model, which is left where its data begins; None for anything else."""
        try:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            (length,) = _HEADER.unpack(file.read(_HEADER.size))
            if length > _MAX_HEADER:
                return None
            header = msgspec.msgpack.decode(file.read(length), type=learned(_FileHeader))
        except (struct.error, ValueError, RecursionError):
            return None
        return header if header.fingerprint == self._fingerprint else None


def prune(folder: Path, limit: int, keep: Path) -> None:
    """Delete the oldest files of other models until all together respect the limit."""
    files = sorted(
        ((p.stat().st_mtime, p.stat().st_size, p) for p in folder.glob("*/*.kv")), key=lambda found: found[0]
    )
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= limit:
            return
        if path.parent != keep:
            path.unlink(missing_ok=True)
            total -= size
