"""Computed prefixes outside the KV cache: in memory, and on disk so that they survive a restart.

A file holds the tokens it stands for and a checksum; it belongs to one model, cache type and llama.cpp build (the
`fingerprint`) and is never used for another. Nothing here calls llama.cpp.
"""

import hashlib
import logging
import os
import queue
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

log = logging.getLogger(__name__)

_MAGIC: Final = b"TSKV1\n"
_HEADER: Final = struct.Struct(">I")
_MAX_HEADER: Final = 64 << 20
Key = tuple[tuple[str, float], ...]


class _FileHeader(msgspec.Struct):
    fingerprint: str
    key: Key
    tokens: bytes
    size: int
    checksum: int
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(eq=False)  # two of them are the same only if they are one
class StoredPrefix:
    """One computed prefix. `tokens` (n,) int32; `data` its state while it is in memory, `path` its file if any.

    Behind the state follow the checkpoints of a model that cannot be cut: `marks` are their (length, bytes).
    """

    key: Key
    tokens: Any
    size: int
    data: Any = None
    path: Path | None = None
    last_used: float = 0.0
    marks: tuple[tuple[int, int], ...] = ()

    def usable(self, shared: int, *, whole_only: bool) -> int:
        """How many of `shared` equal tokens the state can be brought to."""
        if not whole_only or shared == len(self.tokens):
            return shared
        return max((length for length, _ in self.marks if length <= shared), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state itself."""
        return self.size - sum(size for _, size in self.marks)

    def mark(self, data: Any, length: int) -> Any:
        """The checkpoint of that length in the loaded `data`; None if there is none."""
        start = self.state_bytes
        for marked, size in self.marks:
            if marked == length:
                return data[start : start + size]
            start += size
        return None


class PrefixStore:
    """Least recently used prefixes give way: from memory to disk, from disk for good. One thread calls it."""

    def __init__(self, ram_bytes: int, disk_bytes: int, folder: Path | None, fingerprint: str) -> None:
        self._ram_limit = ram_bytes
        self._disk_limit = disk_bytes if folder is not None else 0
        self._folder = folder / fingerprint[:24] if folder is not None else None
        self._fingerprint = fingerprint
        self._entries: list[StoredPrefix] = []
        self._jobs: queue.SimpleQueue[tuple[StoredPrefix, Any] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        if folder is not None and self._disk_limit:
            self._scan()
            _prune(folder, self._disk_limit, keep=self._folder)

    @property
    def enabled(self) -> bool:
        """There is room for anything at all."""
        return self._ram_limit > 0 or self._disk_limit > 0

    @property
    def ram_bytes(self) -> int:
        """Bytes of state in memory."""
        return sum(e.size for e in self._entries if e.data is not None)

    @property
    def disk_bytes(self) -> int:
        """Bytes of state in files."""
        return sum(e.size for e in self._entries if e.path is not None)

    def best(self, tokens: Any, key: Key, *, whole_only: bool) -> tuple[StoredPrefix | None, int]:
        """The stored prefix that shares most with `tokens` (n,) int32; `whole_only` where states cannot be cut."""
        best, best_length = None, 0
        for entry in self._entries:
            if entry.key != key:
                continue
            usable = entry.usable(shared_length(entry.tokens, tokens), whole_only=whole_only)
            if usable > best_length:
                best, best_length = entry, usable
        return best, best_length

    def covers(self, tokens: Any, key: Key, *, whole_only: bool) -> bool:
        """A stored prefix can bring back all of `tokens`."""
        return self.best(tokens, key, whole_only=whole_only)[1] == len(tokens)

    def holds(self, tokens: Any, key: Key, *, whole_only: bool = False) -> bool:
        """A prefix in memory can bring back all of `tokens`: that is a copy."""
        return any(
            e.data is not None
            and e.key == key
            and e.usable(shared_length(e.tokens, tokens), whole_only=whole_only) == len(tokens)
            for e in self._entries
        )

    def put(
        self,
        key: Key,
        tokens: Any,
        data: Any,
        marks: Sequence[tuple[int, Any]] = (),
        *,
        whole_only: bool = False,
    ) -> None:
        """Keep the state `data` (bytes as uint8) of `tokens`; shorter prefixes of the same text are replaced.

        `marks` are (length, bytes as uint8) of checkpoints before the end, of a state that is `whole_only`.
        """
        if not self.enabled or self.covers(tokens, key, whole_only=whole_only):
            return
        sizes = tuple((length, len(copy)) for length, copy in marks)
        if marks:
            data = np.concatenate([data, *(copy for _, copy in marks)])
        for old in [e for e in self._entries if e.key == key and shared_length(e.tokens, tokens) == len(e.tokens)]:
            self._remove(old)
        entry = StoredPrefix(key, tokens, len(data), data, None, time.monotonic(), sizes)
        self._entries.append(entry)
        if self._ram_limit < entry.size:
            self._write(entry)
        self._shrink_ram(keep=entry)

    def forget(self, tokens: Any, key: Key) -> None:
        """Remove every prefix that `best` could find for `tokens`."""
        for entry in [e for e in self._entries if e.key == key and shared_length(e.tokens, tokens)]:
            self._remove(entry)

    def load(self, entry: StoredPrefix) -> Any:
        """The state as uint8 (size,), or None when its file is gone or damaged (it is forgotten then)."""
        entry.last_used = time.monotonic()
        if entry.data is not None:
            return entry.data
        data = self._read(entry)
        if data is None:
            self._remove(entry)
        return data

    def persist(self) -> None:
        """Begin to write what is only in memory to disk."""
        for entry in list(self._entries):
            if entry.data is not None and entry.path is None:
                self._write(entry)

    def close(self) -> None:
        """Wait until everything that was to be written is written."""
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()

    # ------------------------------------------------------------------ memory

    def _shrink_ram(self, keep: StoredPrefix) -> None:
        while self.ram_bytes > self._ram_limit:
            held = [e for e in self._entries if e.data is not None and e is not keep]
            victim = min(held, key=lambda e: e.last_used, default=keep)
            if victim.path is None:
                self._write(victim)
            victim.data = None
            if victim.path is None:
                self._entries.remove(victim)
            if victim is keep:
                return

    def _remove(self, entry: StoredPrefix) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
        if entry.path is not None:
            entry.path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ disk

    def _write(self, entry: StoredPrefix) -> None:
        if self._folder is None or entry.size > self._disk_limit:
            return
        name = hashlib.sha256(entry.tokens.tobytes() + repr(entry.key).encode()).hexdigest()[:32]
        entry.path = self._folder / f"{name}.kv"
        while self.disk_bytes > self._disk_limit:
            stored = [e for e in self._entries if e.path is not None and e is not entry]
            if not stored:
                break
            oldest = min(stored, key=lambda e: e.last_used)
            if oldest.path is not None:
                oldest.path.unlink(missing_ok=True)
            oldest.path = None
            if oldest.data is None:
                self._entries.remove(oldest)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="prefix-writer", daemon=True)
            self._writer.start()
        self._jobs.put((entry, entry.data))

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            entry, data = job
            path = entry.path
            if path is None:
                continue
            try:
                self._write_file(entry, data, path)
            except OSError as error:
                log.warning("prefix not stored path=%s error=%s", path, error)

    def _write_file(self, entry: StoredPrefix, data: Any, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.part")
        header = msgspec.msgpack.encode(
            _FileHeader(
                self._fingerprint,
                entry.key,
                entry.tokens.tobytes(),
                entry.size,
                zlib.crc32(memoryview(data)),
                entry.marks,
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

    def _header(self, path: Path) -> tuple[_FileHeader, int] | None:
        """Header of a file of ours and where its data begins; None for anything else."""
        try:
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    return None
                (length,) = _HEADER.unpack(file.read(_HEADER.size))
                if length > _MAX_HEADER:
                    return None
                header = msgspec.msgpack.decode(file.read(length), type=_FileHeader)
                return header, file.tell()
        except (OSError, struct.error, msgspec.DecodeError):
            return None

    def _read(self, entry: StoredPrefix) -> Any:
        assert entry.path is not None
        found = self._header(entry.path)
        if found is None:
            return None
        header, start = found
        try:
            data: Any = np.fromfile(entry.path, np.uint8, offset=start)
        except OSError:
            return None
        sound = len(data) == header.size == entry.size and zlib.crc32(memoryview(data)) == header.checksum
        return data if sound and header.fingerprint == self._fingerprint else None

    def _scan(self) -> None:
        assert self._folder is not None
        if not self._folder.is_dir():
            return
        for path in self._folder.glob("*.kv"):
            found = self._header(path)
            if found is None or found[0].fingerprint != self._fingerprint or len(found[0].tokens) % 4:
                path.unlink(missing_ok=True)
                continue
            header = found[0]
            tokens = np.frombuffer(header.tokens, np.int32)
            age = time.time() - path.stat().st_mtime
            used = time.monotonic() - age
            self._entries.append(StoredPrefix(header.key, tokens, header.size, None, path, used, header.marks))


def _prune(folder: Path, limit: int, keep: Path | None) -> None:
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


def shared_length(a: Any, b: Any) -> int:
    """Number of equal leading tokens of two int32 arrays."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def model_fingerprint(path: Path, *parts: object) -> str:
    """Names a model's content and everything its states depend on. The ends of the file stand for the whole."""
    digest = hashlib.sha256(repr(parts).encode())
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read(1 << 20))
    return digest.hexdigest()
