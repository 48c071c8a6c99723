"""Lists the current files of a collection's sources, and notices their changes."""

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pathspec import GitIgnoreSpec

from devices.disk_speed import drive_is_here
from engine.core.sendable import sendable
from engine.documents.file_types import SKIPPED_FOLDERS, is_copy, kind_on_disk
from engine.message_catalog.reasons import Reason, because

log = logging.getLogger(__name__)

# Far more files than users have documents; limits the damage of a mistaken "/".
MAX_FILES = 500_000
# Far deeper than users' folders; the walk recurses.
MAX_DEPTH: Final = 100
_MAX_RULES_BYTES = 1 << 20
_IGNORE_FILES: Final = (".gitignore", ".ignore", ".tesseraignore")
# Errors that are about the file and not temporary: it does not exist, or it cannot be accessed.
_MISSING = (FileNotFoundError, NotADirectoryError)
_GONE = (*_MISSING, PermissionError)
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP})


class _Level(NamedTuple):
    prefix: str
    spec: GitIgnoreSpec


class IgnoreRules:
    """The ignore files from a folder down to one of its subfolders; the deepest file with a matching rule decides.

    `strict`: an ignore file that exists and cannot be read now is an OSError; else it has no rules.
    """

    def __init__(self, levels: tuple[_Level, ...] = (), *, strict: bool = False) -> None:
        self._levels = levels
        self._strict = strict

    @classmethod
    def at_root(cls, root: Path, always: Iterable[str] = (), *, strict: bool = False) -> "IgnoreRules":
        """The patterns that always apply, then git's exclude file, then the root's ignore files."""
        patterns = (list(always), _patterns(root / ".git" / "info" / "exclude", strict=strict))
        levels = tuple(_Level("", GitIgnoreSpec.from_lines(lines)) for lines in patterns if lines)
        return cls(levels, strict=strict).below(root, "")

    def below(self, folder: Path, prefix: str) -> "IgnoreRules":
        """Add the ignore files in `folder`; `prefix` is its path with a trailing slash, or empty."""
        lines = [line for name in _IGNORE_FILES for line in _patterns(folder / name, strict=self._strict)]
        if not lines:
            return self
        level = _Level(prefix, GitIgnoreSpec.from_lines(lines))
        return IgnoreRules((*self._levels, level), strict=self._strict)

    def ignored(self, path: str) -> bool:
        """Return True if a path below the root is ignored; paths of folders end in a slash."""
        for level in reversed(self._levels):
            verdict = level.spec.check_file(path[len(level.prefix) :]).include
            if verdict is not None:
                return verdict
        return False

    def ignores(self, root: Path, path: str) -> bool:
        """Return True if a file, or a folder on the way to it, is ignored. These are the rules at the root."""
        rules, prefix = self, ""
        *folders, name = path.split("/")
        for folder in folders:
            prefix += folder + "/"
            if rules.ignored(prefix):
                return True
            rules = rules.below(root / prefix, prefix)
        return rules.ignored(prefix + name)


def _patterns(file: Path, *, strict: bool) -> list[str]:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # reading a pipe would block
            return []
        with file.open("rb") as opened:
            return opened.read(_MAX_RULES_BYTES).decode("utf-8", "replace").splitlines()
    except _GONE:
        return []
    except OSError:
        if strict:
            raise
        return []


class ScannedFile(msgspec.Struct, frozen=True):
    """A file and its kind. `skipped` is the reason if it, or everything in this folder, is not read."""

    path: str
    kind: str = ""
    size_bytes: int = 0
    mtime_ns: int = 0
    skipped: str = ""


class Walk:
    """One walk over the files of the sources.

    `offline`: sources whose drive is not connected. `unseen`: files and folders that could not be accessed now and
    why, for example a lack of descriptors or a failing disk. They may be unchanged.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self.offline: list[str] = []
        self.unseen: dict[str, str] = {}

    def files(self) -> Iterator[ScannedFile]:
        """Every file once, also those that are not read, with the reason; deleted files yield nothing.

        Links, hidden files and folders, and those of ignore files are skipped, unless they are sources themselves.
        """
        seen: set[str] = set()
        for source in self._sources:
            for file in self._source(Path(source)):
                if file.path in seen:
                    continue
                if len(seen) >= MAX_FILES:
                    yield ScannedFile(
                        source, skipped=f"it has more than {MAX_FILES:,} files; the others are not read"
                    )
                    return
                seen.add(file.path)
                yield file

    def hid(self, path: str) -> bool:
        """Return whether the path is in an offline source or could not be accessed."""
        return any(is_below(path, place) for place in (*self.offline, *self.unseen))

    def _source(self, path: Path) -> Iterator[ScannedFile]:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            if drive_is_here(path):
                yield from self._lost(path, error)
            else:
                self.offline.append(str(path))
            return
        yield from self._below(path, "", IgnoreRules()) if is_folder else self._file(path)

    def _file(self, path: Path) -> Iterator[ScannedFile]:
        if not _is_text(path):
            yield _skipped(path, _BAD_NAME)
            return
        try:
            state = path.stat()
        except OSError as error:
            yield from self._lost(path, error)
            return
        if stat.S_ISREG(state.st_mode):
            yield ScannedFile(str(path), kind_on_disk(path.name), state.st_size, state.st_mtime_ns)
        else:
            yield _skipped(path, "it is a pipe, a socket or a device")

    def _below(self, folder: Path, prefix: str, rules: IgnoreRules) -> Iterator[ScannedFile]:
        if not _is_text(folder):
            yield _skipped(folder, _BAD_NAME)
            return
        if prefix.count("/") > MAX_DEPTH:
            yield _skipped(folder, f"it is more than {MAX_DEPTH} folders deep")
            return
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
            rules = rules.below(folder, prefix) if prefix else IgnoreRules.at_root(folder, strict=True)
        except OSError as error:
            yield from self._lost(folder, error)
            return
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            path = f"{prefix}{entry.name}/" if is_folder else prefix + entry.name
            reason = _why_skipped(entry, is_folder=is_folder) or (_IGNORED if rules.ignored(path) else "")
            if reason:
                yield _skipped(Path(entry.path), reason)
            elif is_folder:
                yield from self._below(Path(entry.path), path, rules)
            else:
                yield from self._file(Path(entry.path))

    def _lost(self, path: Path, error: OSError) -> Iterator[ScannedFile]:
        """What cannot be accessed: nothing if it was deleted."""
        if error.errno in _REFUSED:
            yield _skipped(path, error.strerror or str(error))
        elif not isinstance(error, _MISSING):
            self.unseen[str(path)] = error.strerror or str(error)


_BAD_NAME: Final = "its name is not UTF-8; rename it"
_IGNORED: Final = f"an ignore file ({', '.join(_IGNORE_FILES)}) excludes it"


def _skipped(path: Path, reason: str) -> ScannedFile:
    return ScannedFile(sendable(str(path)), skipped=reason)


def _why_skipped(entry: "os.DirEntry[str]", *, is_folder: bool) -> str:
    if entry.is_symlink():
        return "links are not followed"
    if entry.name.startswith("."):
        return "hidden files and folders are skipped unless they are added themselves"
    if is_folder:
        is_output = entry.name.lower() in SKIPPED_FOLDERS
        return "folders of this name are skipped unless they are added themselves" if is_output else ""
    return "backups, unfinished files and lock files are skipped" if is_copy(entry.name) else ""


def _is_text(path: Path) -> bool:
    """Return whether the path is UTF-8. Other paths can be neither stored nor sent."""
    return sendable(str(path)) == str(path)


def is_below(path: str, source: str) -> bool:
    """Return whether `path` is the source or is in it."""
    return path == source or path.startswith(source.rstrip(os.sep) + os.sep)


def is_there(path: str) -> bool:
    """Return whether the path exists and can be accessed. `Path.exists` raises some errors."""
    return os.path.exists(path)  # noqa: PTH110


def is_ignore_file(path: str) -> bool:
    """Return whether a change of this file may change which other files are read."""
    return Path(path).name in _IGNORE_FILES


def is_wanted(path: str, source: str) -> bool:
    """Return whether `Walk.files` would yield this file of a source: not hidden, not excluded by a rule.

    Raises: OSError: an ignore file exists and cannot be read now.
    """
    if path == source:
        return True
    folder = Path(source)
    relative = Path(path).relative_to(folder)
    for name in relative.parts:
        folder /= name
        if name.startswith(".") or folder.is_symlink():
            return False
    if is_copy(relative.name) or any(name.lower() in SKIPPED_FOLDERS for name in relative.parts[:-1]):
        return False
    return not IgnoreRules.at_root(Path(source), strict=True).ignores(Path(source), relative.as_posix())


# Changes that arrive together are reported together: a program that saves a file writes several times.
_GATHER_MS: Final = 300
_STEP_MS: Final = 50
_WAKE_MS: Final = 1000


class Follower:
    """Watches the sources in a thread; calls `changed` with changed paths. `problem` says why it cannot watch.

    It calls `began` once it watches: earlier changes are not reported, and a large tree takes seconds.
    """

    def __init__(self, changed: Callable[[set[str]], None], began: Callable[[], None]) -> None:
        self._changed = changed
        self._began = began
        self.is_watching = False
        self._sources: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = threading.RLock()  # `stop` may come while `follow` starts the thread
        self.problem: Reason | None = None

    def follow(self, sources: Sequence[str]) -> None:
        """Watch these sources from now on. Missing sources are ignored until the next call."""
        existing = tuple(sorted({source for source in sources if is_there(source)}))
        with self._turn:
            if existing == self._sources:
                return
            self.stop()
            self._sources = existing
            if existing:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(existing, self._stop), name="documents-follow", daemon=True
                )
                self._thread.start()

    def _run(self, sources: tuple[str, ...], stop: threading.Event) -> None:
        from watchfiles import watch

        self.problem = None
        try:
            for changes in watch(
                *sources,
                watch_filter=None,
                debounce=_GATHER_MS,
                step=_STEP_MS,
                rust_timeout=_WAKE_MS,
                stop_event=stop,
                ignore_permission_denied=True,
                raise_interrupt=False,
                yield_on_timeout=True,
            ):
                if not self.is_watching:
                    self._began()
                    self.is_watching = True
                if changes:
                    self._changed({path for _, path in changes})
        except (OSError, RuntimeError) as error:  # the system's limit of watches, or a deleted source
            self.problem = because("looked_for_every_minute", why=str(error))
            log.warning("documents are not followed: %s", error)
            self._sources = ()

    def stop(self) -> None:
        with self._turn:
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
            self._thread, self._sources, self.is_watching = None, (), False
