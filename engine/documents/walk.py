"""Lists the current files of a collection's sources."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from pathspec import GitIgnoreSpec

from devices.disk_speed import drive_is_here
from engine.core.sendable import sendable
from engine.documents.file_types import SKIPPED_FOLDERS, kind_of

# Far more files than users have documents; limits the damage of a mistaken "/".
MAX_FILES = 500_000
_MAX_RULES_BYTES = 1 << 20
# Errors that are about the file and not temporary.
_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)


class ScannedFile(msgspec.Struct, frozen=True):
    """A readable file, and its kind."""

    path: str
    kind: str
    size_bytes: int
    mtime_ns: int


class Walk:
    """One walk over the files of the sources.

    `offline`: sources whose drive is not connected. `unseen`: files and folders that could not be accessed now, for
    example because of a lack of descriptors or a failing disk. They may be unchanged.
    """

    def __init__(self, sources: Sequence[str], *, images: bool = False) -> None:
        self._sources = sources
        self._images = images
        self.offline: list[str] = []
        self.unseen: list[str] = []

    def files(self) -> Iterator[ScannedFile]:
        """Every readable file, once. Deleted or forbidden files yield nothing; links are not followed.

        Hidden files and folders and those in .gitignore are skipped, unless they are sources themselves.
        """
        seen: set[str] = set()
        for source in self._sources:
            path = Path(source)
            if not path.exists() and not drive_is_here(path):
                self.offline.append(source)
                continue
            scanned = self._file(path) if path.is_file() else None
            every = iter((scanned,)) if scanned else self._below(path, ())
            for file in every:
                if file.path not in seen:
                    seen.add(file.path)
                    yield file
                    if len(seen) >= MAX_FILES:
                        return

    def hid(self, path: str) -> bool:
        """Return whether the path is in an offline source or could not be accessed."""
        return any(is_below(path, place) for place in (*self.offline, *self.unseen))

    def _file(self, path: Path) -> ScannedFile | None:
        kind = kind_of(path.name, images=self._images)
        if kind and not self._is_text(path):
            return None
        try:
            state = path.stat()
        except OSError as error:
            self._note(path, error)
            return None
        return ScannedFile(str(path), kind, state.st_size, state.st_mtime_ns) if kind else None

    def _below(self, folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[ScannedFile]:
        if not self._is_text(folder):
            return
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
            rules = _with_rules(folder, rules)
        except OSError as error:
            self._note(folder, error)
            return
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if _ignored(entry.path, rules, is_folder=is_folder):
                continue
            if is_folder:
                if entry.name.lower() not in SKIPPED_FOLDERS:
                    yield from self._below(Path(entry.path), rules)
            elif entry.is_file(follow_symlinks=False):
                scanned = self._file(Path(entry.path))
                if scanned:
                    yield scanned

    def _is_text(self, path: Path) -> bool:
        """Return whether the path is UTF-8. Other paths can be neither stored nor sent, and count as `unseen`."""
        name = sendable(str(path))
        if name != str(path):
            self.unseen.append(name)
        return name == str(path)

    def _note(self, path: Path, error: OSError) -> None:
        if not isinstance(error, _GONE):
            self.unseen.append(str(path))


def is_below(path: str, source: str) -> bool:
    """Return whether `path` is the source or is in it."""
    return path == source or path.startswith(source.rstrip(os.sep) + os.sep)


def is_wanted(path: str, source: str) -> bool:
    """Return whether `Walk.files` would yield this file of a source: not hidden, not excluded by a rule."""
    if path == source:
        return True
    rules: tuple[tuple[Path, GitIgnoreSpec], ...] = ()
    folder = Path(source)
    parts = Path(path).relative_to(folder).parts
    for number, part in enumerate(parts):
        is_folder = number < len(parts) - 1
        rules = _with_rules(folder, rules)
        folder /= part
        if part.startswith(".") or folder.is_symlink() or (is_folder and part.lower() in SKIPPED_FOLDERS):
            return False
        if _ignored(str(folder), rules, is_folder=is_folder):
            return False
    return True


def _with_rules(
    folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...]
) -> tuple[tuple[Path, GitIgnoreSpec], ...]:
    """The rules including those of a folder. Raises: OSError: its .gitignore exists and cannot be read now."""
    path = folder / ".gitignore"
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_RULES_BYTES:  # reading a pipe would block
            return rules
        return (*rules, (folder, GitIgnoreSpec.from_lines(path.read_text("utf-8", "replace").splitlines())))
    except (*_GONE, IsADirectoryError, ValueError):
        return rules


def _ignored(path: str, rules: Sequence[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    for folder, spec in rules:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        if spec.match_file(relative + ("/" if is_folder else "")):
            return True
    return False
