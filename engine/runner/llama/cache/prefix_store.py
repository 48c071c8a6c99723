"""Stores computed prefixes outside the KV cache, in memory and on disk; makes no llama.cpp calls."""

import contextlib
import errno
import hashlib
import os
import queue
import shutil
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from devices.atomic_file import sweep_unfinished
from devices.msgspec_lock import learned
from engine.runner.llama.cache.cells import steady_length
from engine.runner.llama.cache.prefix_index import Key, PrefixIndex, StoredPrefix
from engine.runner.llama.cache.state_buffer import copied, state_buffer


class _Tier:
    """Entries of one storage level in the order of their use, and their bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._entries: dict[StoredPrefix, None] = {}

    def __iter__(self) -> Iterator[StoredPrefix]:
        return iter(self._entries)

    def add(self, entry: StoredPrefix) -> None:
        self._entries[entry] = None
        self.num_bytes += entry.size

    def discard(self, entry: StoredPrefix) -> None:
        if entry in self._entries:
            del self._entries[entry]
            self.num_bytes -= entry.size

    def use(self, entry: StoredPrefix) -> None:
        """Mark an entry as the most recently used, if it is here."""
        if entry in self._entries:
            self._entries[entry] = self._entries.pop(entry)

    def surplus(self, spare: StoredPrefix | None = None) -> StoredPrefix | None:
        """Return the entry to evict: the oldest except `spare`, which goes last; None if all fit."""
        if self.num_bytes <= self.limit:
            return None
        return next((e for e in self._entries if e is not spare), spare)


class PrefixStore:
    """Evicts least recently used prefixes: from memory to disk, from disk permanently. Called by one thread."""

    def __init__(self, ram_bytes: int, disk_bytes: int, folder: Path | None, fingerprint: str) -> None:
        self._ram = _Tier(ram_bytes)
        self._disk = _Tier(disk_bytes if folder is not None else 0)
        self._index = PrefixIndex()
        self._files: PrefixFiles | None = None
        if folder is not None and disk_bytes > 0:
            self._files = PrefixFiles(folder, fingerprint)
            for entry in self._files.scan():
                self._index.add(entry)
                self._disk.add(entry)
            self._shrink_disk()
            prune(folder, disk_bytes, keep=self._files.folder)

    @property
    def enabled(self) -> bool:
        """Whether the store has any capacity."""
        return self._ram.limit > 0 or self._disk.limit > 0

    @property
    def ram_bytes(self) -> int:
        """Bytes of state in memory."""
        return self._ram.num_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of state in files."""
        return self._disk.num_bytes

    @property
    def largest_file(self) -> int:
        """Bytes of the largest state that can be stored on disk."""
        return self._disk.limit

    def takes(self, num_bytes: int) -> bool:
        """Whether a state of this size could be stored now."""
        if num_bytes <= self._ram.limit:
            return True
        return self._files is not None and num_bytes <= self._disk.limit and self._files.takes(num_bytes)

    def best(self, tokens: Any, key: Key, *, whole_only: bool) -> tuple[StoredPrefix | None, int]:
        """Return the stored prefix that shares most with `tokens` (n,) int32, and the usable length.

        `whole_only`: states cannot be truncated.
        """
        return self._index.best(tokens, key, whole_only=whole_only)

    def best_steady(self, tokens: Any, key: Key) -> tuple[StoredPrefix | None, int]:
        """Return the stored prefix that shares most steady tokens with `tokens` (n,) int32, in whole steps."""
        best, best_length = None, 0
        for entry, shared in self._index.sharing(tokens, key):
            if shared <= best_length:
                break
            length = steady_length(tokens, min(shared, entry.num_steady))
            if length > best_length:
                best, best_length = entry, length
        return best, best_length

    def covers(self, tokens: Any, key: Key, *, whole_only: bool, num_steady: int = 0) -> bool:
        """Whether a stored prefix can restore all of `tokens`, with at least `num_steady` steady ones."""
        for entry, shared in self._index.sharing(tokens, key):
            if shared < len(tokens):
                break
            if entry.usable(shared, whole_only=whole_only) == shared and entry.num_steady >= num_steady:
                return True
        return False

    def holds(self, tokens: Any, key: Key, *, whole_only: bool = False, num_steady: int = 0) -> bool:
        """Like `covers`, but only for prefixes in memory, where restoring is only a copy."""
        for entry, shared in self._index.sharing(tokens, key):
            if shared < len(tokens):
                break
            if entry.data is None or entry.num_steady < num_steady:
                continue
            if entry.usable(shared, whole_only=whole_only) == shared:
                return True
        return False

    def put(
        self,
        key: Key,
        tokens: Any,
        data: Any,
        marks: Sequence[tuple[int, Any]] = (),
        *,
        whole_only: bool = False,
        num_steady: int = 0,
    ) -> None:
        """Store the state `data` (bytes as uint8) of `tokens`; it replaces shorter prefixes of the same text.

        If it is larger than the memory of all states, it is only written to disk, and the others stay in memory.
        `marks` are (length, bytes as uint8) of earlier checkpoints, for a state that is `whole_only`.
        """
        if not self.enabled or self.covers(tokens, key, whole_only=whole_only, num_steady=num_steady):
            return
        sizes = tuple((length, len(copy)) for length, copy in marks)
        if marks:
            data = copied(data, *(copy for _, copy in marks))
        if not self.takes(len(data)):
            return
        for old in list(self._index.beginnings(tokens, key)):
            if old.num_steady <= num_steady:
                self._remove(old)
        entry = StoredPrefix(key, tokens, len(data), data, marks=sizes, num_steady=num_steady)
        self._index.add(entry)
        if entry.size <= self._ram.limit:
            self._ram.add(entry)
            self._shrink_ram(keep=entry)
            return
        self._write(entry)
        entry.data = None  # until it is written, its file has them

    def forget(self, tokens: Any, key: Key) -> None:
        """Delete every prefix that `best` could find for `tokens`."""
        for entry in [entry for entry, _ in self._index.sharing(tokens, key)]:
            self._remove(entry)

    def load(self, entry: StoredPrefix) -> Any:
        """Return the state as uint8 (size,); None if its file is missing or corrupt (the entry is then removed)."""
        self._ram.use(entry)
        self._disk.use(entry)
        if entry.data is not None:
            return entry.data
        data = self._files.read(entry) if self._files is not None else None
        if data is None:
            self._remove(entry)
        return data

    def persist(self) -> None:
        """Start writing entries that are only in memory to disk."""
        for entry in self._ram:
            if not entry.on_disk:
                self._write(entry)

    def wait_for_disk(self, on_wait: "OnWait") -> None:
        """From now on, wait for a slow disk instead of dropping prefixes; `on_wait` is called meanwhile."""
        if self._files is not None:
            self._files.on_wait = on_wait

    def close(self) -> None:
        """Wait until all queued writes are done."""
        if self._files is not None:
            self._files.close()

    def _shrink_ram(self, keep: StoredPrefix) -> None:
        while (victim := self._ram.surplus(keep)) is not None:
            if not victim.on_disk:
                self._write(victim)
            victim.data = None
            self._ram.discard(victim)
            if not victim.on_disk:
                self._index.remove(victim)

    def _write(self, entry: StoredPrefix) -> None:
        if self._files is None or entry.size > self._disk.limit or not self._files.write(entry):
            return
        entry.on_disk = True
        self._disk.add(entry)
        self._shrink_disk(keep=entry)

    def _shrink_disk(self, keep: StoredPrefix | None = None) -> None:
        while (victim := self._disk.surplus(keep)) is not None:
            self._drop_file(victim)
            if victim.data is None:
                self._index.remove(victim)

    def _drop_file(self, entry: StoredPrefix) -> None:
        if self._files is not None and entry.on_disk:
            self._files.remove(entry)
            self._disk.discard(entry)
            entry.on_disk = False

    def _remove(self, entry: StoredPrefix) -> None:
        self._index.remove(entry)
        self._ram.discard(entry)
        self._drop_file(entry)
        entry.data = None


def model_fingerprint(path: Path, *parts: object) -> str:
    """Return a hash of a model's content and of everything its states depend on.

    Only the beginning and the end of the file are read.
    """
    digest = hashlib.sha256(repr(parts).encode())
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read(1 << 20))
    return digest.hexdigest()


# Computed prefixes in files, so that they survive a restart; a separate thread writes them.
# A file contains its tokens and a checksum. It belongs to one model, cache type and llama.cpp build (the
# `fingerprint`) and is never used for another.

_MAGIC: Final = b"TSKV1\n"
_HEADER: Final = struct.Struct(">I")
_MAX_HEADER: Final = 64 << 20
# States that wait for a slow disk take memory in addition to the store's limit.
MAX_WAITING_BYTES: Final = 256 << 20
# A slow disk takes a part of this size at once, so that its progress is visible.
PART_BYTES: Final = 1 << 20
# Interval of reports while a disk writes.
REPORT_S: Final = 0.2
# Answers go before the writer: where all cores are busy, it gets about a tenth of one. Source: sched(7). Two
# threads wait for each other in each operation, so a writer on one of two cores halves the speed of an answer.
WRITER_NICE: Final = 10
# Called while writes are awaited, with the bytes written and left, and the last error.
OnWait = Callable[[int, int, str], None]
# Chats and downloads need space too, so the cache leaves a tenth of the disk free, at most 2 GiB.
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
    """The files of one model, in `folder`. Called by one thread."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder / fingerprint[:24]
        self._fingerprint = fingerprint
        self._waiting: dict[StoredPrefix, Any] = {}
        self._jobs: queue.SimpleQueue[StoredPrefix | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._num_written = 0
        self._problem = ""
        self.on_wait: OnWait | None = None

    def scan(self) -> list[StoredPrefix]:
        """Return the entries of earlier processes, least recently used first; deletes unusable files."""
        prefixes = []
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
                prefixes.append((path.stat().st_mtime, entry))
            else:
                path.unlink(missing_ok=True)
        return [entry for _, entry in sorted(prefixes, key=lambda pair: pair[0])]

    def write(self, entry: StoredPrefix) -> bool:
        """Start writing an entry that is in memory; False if too much is waiting already, unless it may wait."""
        if not self.takes(entry.size):
            return False
        while (waiting := self._num_waiting()) and waiting + entry.size > MAX_WAITING_BYTES:
            self._report()
            time.sleep(REPORT_S)
        self._waiting[entry] = entry.data
        self._jobs.put(entry)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="prefix-writer", daemon=True)
            self._writer.start()
        return True

    def takes(self, num_bytes: int) -> bool:
        """Whether a state of this size may be written now: not too much is waiting already, or it may wait."""
        waiting = self._num_waiting()
        return self.on_wait is not None or not waiting or waiting + num_bytes <= MAX_WAITING_BYTES

    def read(self, entry: StoredPrefix) -> Any:
        """Return an entry's data as uint8 (size,); None if its file is missing, corrupt or of another model."""
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
        """Delete an entry's file, or cancel its write."""
        self._waiting.pop(entry, None)
        self._path(entry).unlink(missing_ok=True)

    def close(self) -> None:
        """Wait until all queued writes are done."""
        if self._writer is not None:
            self._jobs.put(None)
            while self._writer.is_alive():
                self._report()
                self._writer.join(REPORT_S)
        self._report()

    def _num_waiting(self) -> int:
        return sum(entry.size for entry in list(self._waiting))

    def _report(self) -> None:
        if self.on_wait is not None:
            self.on_wait(self._num_written, self._num_waiting(), self._problem)

    def _path(self, entry: StoredPrefix) -> Path:
        name = hashlib.sha256(entry.tokens.tobytes() + repr(entry.key).encode()).hexdigest()[:32]
        return self.folder / f"{name}.kv"

    def _write_all(self) -> None:
        if sys.platform == "linux":  # other systems have no priority for a single thread in os
            thread = threading.get_native_id()
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(nice, WRITER_NICE))
        while (entry := self._jobs.get()) is not None:
            data = self._waiting.get(entry)
            if data is None:  # removed meanwhile
                continue
            path = self._path(entry)
            try:
                self._write_file(entry, data, path)
            except OSError as error:
                self._problem = str(error)
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
                view = memoryview(data)
                for start in range(0, len(view), PART_BYTES):
                    self._num_written += file.write(view[start : start + PART_BYTES])
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _header(self, file: BinaryIO) -> _FileHeader | None:
        """Read the header of this model's file, up to the start of the data; None for any other file."""
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
    """Delete unfinished files, and the oldest files of other models until the total respects the limit."""
    sweep_unfinished(folder)
    files = sorted(
        ((p.stat().st_mtime, p.stat().st_size, p) for p in folder.glob("*/*.kv")), key=lambda file: file[0]
    )
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= limit:
            return
        if path.parent != keep:
            path.unlink(missing_ok=True)
            total -= size
