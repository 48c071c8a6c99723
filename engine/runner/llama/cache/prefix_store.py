"""Computed prefixes outside the KV cache, in memory and on disk; nothing here calls llama.cpp."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.runner.llama.cache.cached_sequence import steady_length
from engine.runner.llama.cache.prefix_files import PrefixFiles, prune
from engine.runner.llama.cache.prefix_index import Key, PrefixIndex, StoredPrefix
from engine.runner.llama.cache.state_buffer import copied


class _Tier:
    """Entries of one place in the order of their use, and their bytes."""

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
        """It is the newest from now on, if it is here."""
        if entry in self._entries:
            self._entries[entry] = self._entries.pop(entry)

    def surplus(self, spare: StoredPrefix | None = None) -> StoredPrefix | None:
        """What has to give way: the oldest but `spare`, which goes last; None where all fits."""
        if self.num_bytes <= self.limit:
            return None
        return next((e for e in self._entries if e is not spare), spare)


class PrefixStore:
    """Least recently used prefixes give way: from memory to disk, from disk for good. One thread calls it."""

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
        """There is room for anything at all."""
        return self._ram.limit > 0 or self._disk.limit > 0

    @property
    def ram_bytes(self) -> int:
        """Bytes of state in memory."""
        return self._ram.num_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of state in files."""
        return self._disk.num_bytes

    def best(self, tokens: Any, key: Key, *, whole_only: bool) -> tuple[StoredPrefix | None, int]:
        """The stored prefix that shares most with `tokens` (n,) int32; `whole_only` where states cannot be cut."""
        return self._index.best(tokens, key, whole_only=whole_only)

    def best_steady(self, tokens: Any, key: Key) -> tuple[StoredPrefix | None, int]:
        """The stored prefix that shares most steady tokens with `tokens` (n,) int32, in whole steps."""
        best, best_length = None, 0
        for entry, shared in self._index.sharing(tokens, key):
            if shared <= best_length:
                break
            length = steady_length(tokens, min(shared, entry.num_steady))
            if length > best_length:
                best, best_length = entry, length
        return best, best_length

    def covers(self, tokens: Any, key: Key, *, whole_only: bool, num_steady: int = 0) -> bool:
        """A stored prefix can bring back all of `tokens`, of which so many are steady."""
        for entry, shared in self._index.sharing(tokens, key):
            if shared < len(tokens):
                break
            if entry.usable(shared, whole_only=whole_only) == shared and entry.num_steady >= num_steady:
                return True
        return False

    def holds(self, tokens: Any, key: Key, *, whole_only: bool = False, num_steady: int = 0) -> bool:
        """A prefix in memory can bring back all of `tokens`, of which so many are steady: that is a copy."""
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
        """Keep the state `data` (bytes as uint8) of `tokens`; shorter prefixes of the same text are replaced.

        `marks` are (length, bytes as uint8) of checkpoints before the end, of a state that is `whole_only`.
        """
        if not self.enabled or self.covers(tokens, key, whole_only=whole_only, num_steady=num_steady):
            return
        sizes = tuple((length, len(copy)) for length, copy in marks)
        if marks:
            data = copied(data, *(copy for _, copy in marks))
        for old in list(self._index.beginnings(tokens, key)):
            if old.num_steady <= num_steady:
                self._remove(old)
        entry = StoredPrefix(key, tokens, len(data), data, marks=sizes, num_steady=num_steady)
        self._index.add(entry)
        self._ram.add(entry)
        if self._ram.limit < entry.size:
            self._write(entry)
        self._shrink_ram(keep=entry)

    def forget(self, tokens: Any, key: Key) -> None:
        """Remove every prefix that `best` could find for `tokens`."""
        for entry in [entry for entry, _ in self._index.sharing(tokens, key)]:
            self._remove(entry)

    def load(self, entry: StoredPrefix) -> Any:
        """The state as uint8 (size,), or None when its file is gone or damaged (it is forgotten then)."""
        self._ram.use(entry)
        self._disk.use(entry)
        if entry.data is not None:
            return entry.data
        data = self._files.read(entry) if self._files is not None else None
        if data is None:
            self._remove(entry)
        return data

    def persist(self) -> None:
        """Begin to write what is only in memory to disk."""
        for entry in self._ram:
            if not entry.on_disk:
                self._write(entry)

    def close(self) -> None:
        """Wait until everything that was to be written is written."""
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
    """Names a model's content and everything its states depend on. The ends of the file stand for the whole."""
    digest = hashlib.sha256(repr(parts).encode())
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read(1 << 20))
    return digest.hexdigest()
