"""The project's files before each step of an agent, so that a session can go back to any step.

A checkpoint lists every file and link that the ignore rules do not exclude. Contents are stored once, by their
hash, below the project's state folder. A file whose size, times and inode are unchanged is not read again.
"""

import contextlib
import difflib
import hashlib
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.code.errors import FileMissing, PathRefused
from app.code.index.walk import rules_of
from app.code.workspace import Workspace
from devices.atomic_file import folder_bytes, write_atomically

# A larger file is not stored. A tree of more files is a disk, not a project.
_MAX_BYTES: Final = 64 << 20
_MAX_FILES: Final = 200_000
_MAX_DEPTH: Final = 64
# A file that changed more recently than this may change again within the same tick of the file system's clock.
_TICK_NS: Final = 100_000_000
# Sessions whose files are stored; the oldest one is deleted when another begins.
_SESSIONS: Final = 5
_BINARY_PROBE: Final = 8192


@dataclass(frozen=True)
class Entry:
    """One file or link: the hash of its content or target, and its permissions."""

    sha256: str
    mode: int
    is_link: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """The files at one time. `tree` is the hash of all of them; `unsaved` are too large or cannot be read."""

    tree: str
    files: dict[str, Entry] = field(repr=False)
    folders: frozenset[str] = field(repr=False)
    unsaved: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Restored:
    """Changes made by going back. `left` are files that could not be restored, because they were never stored."""

    written: tuple[str, ...]
    deleted: tuple[str, ...]
    left: tuple[str, ...]


class Checkpoints:
    """Saves and restores the files of one session."""

    def __init__(self, workspace: Workspace, folder: Path, name: str = "") -> None:
        self._workspace = workspace
        self._folder = folder / (name or time.strftime("%Y%m%d-%H%M%S"))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the project's files: readable only by their owner
        self._entries: dict[str, tuple[tuple[int, ...], Entry]] = {}
        with contextlib.suppress(OSError):
            for old in sorted(path for path in folder.iterdir() if path.is_dir())[: 1 - _SESSIONS]:
                shutil.rmtree(old, ignore_errors=True)

    def save(self) -> Checkpoint:
        """Store what changed since the last checkpoint. Raises: OSError: the disk is full."""
        files: dict[str, Entry] = {}
        folders: set[str] = set()
        unsaved: set[str] = set()
        entries_by_path: dict[str, tuple[tuple[int, ...], Entry]] = {}
        now = time.time_ns()
        for path, status in _scan(self._workspace.root):
            if stat.S_ISDIR(status.st_mode):
                folders.add(path)
                continue
            facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)
            before = self._entries.get(path)
            is_fresh = now - max(status.st_mtime_ns, status.st_ctime_ns) < _TICK_NS
            entry = before[1] if before is not None and before[0] == facts and not is_fresh else None
            entry = entry or self._stored(path, status)
            if entry is None:
                unsaved.add(path)
                continue
            files[path] = entry
            entries_by_path[path] = (facts, entry)
        self._entries = entries_by_path
        return Checkpoint(_tree_hash(files, folders), files, frozenset(folders), frozenset(unsaved))

    def _stored(self, path: str, status: os.stat_result) -> Entry | None:
        """Store one file's content; None if it is too large, or cannot be read."""
        try:
            self._workspace.normalize(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode((self._workspace.root / path).readlink())
                return Entry(self._put(target), stat.S_IMODE(status.st_mode), is_link=True)
            if status.st_size > _MAX_BYTES:
                return None
            data, mode = self._workspace.read_bytes(path, _MAX_BYTES)
        except (PathRefused, FileMissing, PermissionError):
            return None
        return Entry(self._put(data), mode)

    def _put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        blob = self._blob(sha256)
        if not blob.exists():
            write_atomically(blob, zlib.compress(data, 1), durable=False)
        return sha256

    def _blob(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def content(self, entry: Entry) -> bytes:
        """The content of a stored file, or the target of a link."""
        return zlib.decompress(self._blob(entry.sha256).read_bytes())

    def restore(self, checkpoint: Checkpoint) -> Restored:
        """Restore the project's files from a checkpoint. Raises: OSError, PathRefused."""
        present = self.save()
        removed = sorted(present.files.keys() - checkpoint.files.keys())
        changed = sorted(path for path, entry in checkpoint.files.items() if present.files.get(path) != entry)
        for path in (*removed, *(path for path in changed if path in present.files)):
            self._workspace.remove(path)
        for path in sorted(present.folders - checkpoint.folders, key=len, reverse=True):
            self._workspace.remove_folders(f"{path}/x", 1)
        for path in sorted(checkpoint.folders - present.folders, key=len):
            self._workspace.make_folder(path)
        for path in changed:
            entry = checkpoint.files[path]
            self._workspace.put(path, self.content(entry), entry.mode, is_link=entry.is_link)
        not_restored = (present.unsaved | checkpoint.unsaved) - checkpoint.files.keys()
        return Restored(tuple(changed), tuple(removed), tuple(sorted(not_restored)))

    def diff(self, old: Checkpoint, new: Checkpoint) -> str:
        """Unified diff of two checkpoints; binary files are only named."""
        parts = []
        for path in sorted(old.files.keys() | new.files.keys()):
            before, after = old.files.get(path), new.files.get(path)
            if before == after:
                continue
            old_name, new_name = (path if entry is not None else "/dev/null" for entry in (before, after))
            if any(
                b"\0" in (self.content(entry)[:_BINARY_PROBE]) for entry in (before, after) if entry is not None
            ):
                parts.append(f"Binary files {old_name} and {new_name} differ\n")
                continue
            if before is not None and after is not None and before.mode != after.mode:
                parts.append(f"mode of {path}: {before.mode:o} to {after.mode:o}\n")
            lines = difflib.unified_diff(self._lines(before), self._lines(after), old_name, new_name)
            parts += [line if line.endswith("\n") else f"{line}\n" for line in lines]
        return "".join(parts)

    def _lines(self, entry: Entry | None) -> list[str]:
        return self.content(entry).decode("utf-8", "replace").splitlines(keepends=True) if entry is not None else []

    @property
    def disk_bytes(self) -> int:
        """Bytes that this session's checkpoints take on disk."""
        return folder_bytes(self._folder)


def _scan(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder, file and link that is not ignored, with its status; at most 200,000."""
    pending = [(root, "", rules_of(root), 0)]
    count = 0
    while pending and count < _MAX_FILES:
        folder, prefix, rules, depth = pending.pop()
        if depth:
            rules = rules.below(folder, prefix)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if rules.ignored(f"{path}/" if is_folder else path):
                    continue
                if is_folder and depth < _MAX_DEPTH and not (Path(entry.path) / "pyvenv.cfg").exists():
                    pending.append((Path(entry.path), f"{path}/", rules, depth + 1))
                    yield path, status
                elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    count += 1
                    yield path, status


def _tree_hash(files: dict[str, Entry], folders: set[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files.keys() | folders):
        entry = files.get(path)
        facts = f"{entry.mode:o} {entry.is_link} {entry.sha256}" if entry is not None else "folder"
        digest.update(f"{path}\0{facts}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
