"""The only access to a project's files: only text, nothing outside its folder, never through links.

Every path from a model, a tool call, a response or a file is checked here. On POSIX each component is opened
relative to its parent with O_NOFOLLOW, so a link created in the meantime is refused as well.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.code.errors import FileMissing, NotText, PathRefused

# A larger source file is generated or data; reading it would only fill the context.
MAX_FILE_BYTES = 4 << 20
_MAX_PATH_CHARS = 1024
# Version control folders contain hooks and configuration that run commands.
_REPOSITORY_FOLDERS = frozenset({".git", ".hg", ".svn", ".jj", "git~1"})
_WINDOWS_NAMES = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{kind}{number}" for kind in ("com", "lpt") for number in range(1, 10)}
)
_POSIX = os.name == "posix"


@dataclass(frozen=True)
class TextFile:
    """A file's text and hash; undecodable bytes become surrogates, so that writing restores them."""

    path: str
    text: str
    sha256: str


class Workspace:
    """A project folder. `root` itself may be a link, but no path below it may be one."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)
        self._prefixes = tuple(dict.fromkeys(f"{path.as_posix()}/" for path in (self.root, root.absolute())))
        if not self.root.is_dir():
            raise PathRefused(str(root), "it is not a folder")

    def normalize(self, path: str) -> str:
        """Normalize to a path relative to the root, with forward slashes; refuse all other names.

        An absolute path inside the project is accepted, because agents write such paths.

        Raises: PathRefused.
        """
        if not path or len(path) > _MAX_PATH_CHARS:
            raise PathRefused(path[:80], "it is empty" if not path else "it is too long")
        for char in path:
            if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
                raise PathRefused(path, "it contains an invisible or control character")
        if "\\" in path:
            raise PathRefused(path, "it contains a backslash")
        inside = next((prefix for prefix in self._prefixes if path.startswith(prefix)), None)
        if inside is not None:
            path = path.removeprefix(inside).lstrip("/") or "."
        if path.startswith(("/", "~")) or (len(path) > 1 and path[1] == ":"):
            raise PathRefused(path, "it is not relative to the project folder")
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if not parts:
            raise PathRefused(path, "it names the project folder itself")
        for part in parts:
            self._check_part(path, part)
        return "/".join(parts)

    @staticmethod
    def _check_part(path: str, part: str) -> None:
        folded = part.casefold().rstrip(". ")
        if part == "..":
            raise PathRefused(path, "it leads out of the project folder")
        if folded in _REPOSITORY_FOLDERS:
            raise PathRefused(path, "files of the version control are not touched")
        if sys.platform == "win32" and (
            ":" in part or part != part.rstrip(". ") or folded.split(".")[0] in _WINDOWS_NAMES
        ):
            raise PathRefused(path, "Windows gives this name another meaning")

    def read(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> TextFile:
        """Read the text of a regular file.

        Raises: PathRefused, FileMissing, NotText.
        """
        name = self.normalize(path)
        with self._opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit_bytes:
                raise NotText(name, f"it is larger than {limit_bytes} bytes", size)
            data = bytearray()
            while len(data) <= limit_bytes and (chunk := os.read(descriptor, 1 << 20)):
                data += chunk
        if len(data) > limit_bytes:
            raise NotText(name, f"it grew beyond {limit_bytes} bytes while it was read", len(data))
        if b"\0" in data:
            raise NotText(name, "it is binary", len(data))
        return TextFile(name, data.decode("utf-8", "surrogateescape"), hashlib.sha256(data).hexdigest())

    def read_bytes(self, path: str, limit_bytes: int) -> tuple[bytes, int]:
        """The bytes of a regular file and its permissions. Raises: PathRefused (also: too large), FileMissing."""
        name = self.normalize(path)
        with self._opened(name) as descriptor:
            data = bytearray()
            while len(data) <= limit_bytes and (chunk := os.read(descriptor, 1 << 20)):
                data += chunk
            if len(data) > limit_bytes:
                raise PathRefused(name, f"it is larger than {limit_bytes} bytes")
            return bytes(data), stat.S_IMODE(os.fstat(descriptor).st_mode)

    def put(self, path: str, data: bytes, mode: int, *, is_link: bool = False) -> None:
        """Write a file with these permissions, or a link to `data`, at a path that does not exist yet.

        Raises: PathRefused; OSError of the disk.
        """
        name = self.normalize(path)
        parent, leaf = _split(name)
        with self._folder(name, parent, create=True) as folder:
            if is_link:
                folder.link(leaf, data)
            else:
                folder.replace(leaf, data, mode)

    def remove(self, path: str) -> None:
        """Remove a file or a link itself. Raises: PathRefused, FileMissing."""
        name = self.normalize(path)
        parent, leaf = _split(name)
        with self._folder(name, parent, create=False) as folder, contextlib.suppress(FileNotFoundError):
            folder.unlink(leaf)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it. Raises: PathRefused."""
        name = self.normalize(path)
        with self._folder(name, tuple(name.split("/")), create=True):
            pass

    def exists(self, path: str) -> bool:
        """Return True if there is a regular file at this path. Raises: PathRefused."""
        try:
            with self._opened(self.normalize(path)):
                return True
        except FileMissing:
            return False

    def write(self, path: str, text: str, *, executable: bool | None = None) -> str:
        """Replace or create a file atomically and keep its permissions; return the new sha256.

        `executable` sets or clears the execute permission (None: it stays, and a new file has none).

        Raises: PathRefused; OSError of the disk.
        """
        name = self.normalize(path)
        data = text.encode("utf-8", "surrogateescape")
        parent, leaf = _split(name)
        with self._folder(name, parent, create=True) as folder:
            mode = 0o644
            with contextlib.suppress(FileNotFoundError):
                status = folder.lstat(leaf)
                if not stat.S_ISREG(status.st_mode):
                    raise PathRefused(name, "it is a link or a special file")
                mode = stat.S_IMODE(status.st_mode)
            if executable is not None:
                mode = mode | (mode & 0o444) >> 2 if executable else mode & ~0o111
            folder.replace(leaf, data, mode)
        return hashlib.sha256(data).hexdigest()

    def delete(self, path: str) -> None:
        """Remove a regular file.

        Raises: PathRefused, FileMissing.
        """
        name = self.normalize(path)
        parent, leaf = _split(name)
        with self._folder(name, parent, create=False) as folder:
            try:
                status = folder.lstat(leaf)
            except FileNotFoundError:
                raise FileMissing(name) from None
            if not stat.S_ISREG(status.st_mode):
                raise PathRefused(name, "it is a link or a special file")
            folder.unlink(leaf)

    def is_executable(self, path: str) -> bool:
        """Return True if the owner may execute this regular file. Raises: PathRefused, FileMissing."""
        with self._opened(self.normalize(path)) as descriptor:
            return bool(os.fstat(descriptor).st_mode & stat.S_IXUSR)

    def num_missing_folders(self, path: str) -> int:
        """Number of folders that `write` would create for this path. Raises: PathRefused."""
        parts, _ = _split(self.normalize(path))
        for count in range(len(parts)):
            with contextlib.suppress(FileMissing), self._folder(path, parts[: len(parts) - count], create=False):
                return count
        return len(parts)

    def remove_folders(self, path: str, count: int) -> None:
        """Remove up to `count` folders above a deleted file, the innermost first, while they are empty."""
        parts, _ = _split(self.normalize(path))
        for depth in range(len(parts), max(len(parts) - count, 0), -1):
            try:
                with self._folder(path, parts[: depth - 1], create=False) as folder:
                    folder.rmdir(parts[depth - 1])
            except (OSError, FileMissing, PathRefused):
                return

    def list_folder(self, path: str = "") -> list[tuple[str, bool]]:
        """(name, is_folder) of each regular entry, sorted; links and special files are omitted."""
        name = self.normalize(path) if path not in {"", "."} else ""
        with self._folder(name or ".", tuple(name.split("/")) if name else (), create=False) as folder:
            entries = []
            for leaf in folder.names():
                with contextlib.suppress(PathRefused, OSError):
                    self.normalize(f"{name}/{leaf}" if name else leaf)
                    mode = folder.lstat(leaf).st_mode
                    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                        entries.append((leaf, stat.S_ISDIR(mode)))
            return sorted(entries)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        parent, leaf = _split(name)
        with self._folder(name, parent, create=False) as folder:
            try:
                descriptor = folder.open(leaf)
            except (FileNotFoundError, IsADirectoryError):
                raise FileMissing(name) from None
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:
                    raise PathRefused(name, "it is a link or a special file") from None
                raise
            try:
                mode = os.fstat(descriptor).st_mode
                if stat.S_ISDIR(mode):
                    raise FileMissing(name)
                if not stat.S_ISREG(mode):
                    raise PathRefused(name, "it is a link or a special file")
                yield descriptor
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _folder(self, name: str, parts: tuple[str, ...], *, create: bool) -> Iterator["_Folder"]:
        folder = _Folder(self.root)
        try:
            for part in parts:
                try:
                    folder.enter(part, create=create)
                except FileNotFoundError:
                    raise FileMissing(name) from None
                except NotADirectoryError:
                    raise PathRefused(name, "a part of it is a link or not a folder") from None
                except OSError as error:
                    if error.errno in {errno.ELOOP, errno.EMLINK}:
                        raise PathRefused(name, "a part of it is a link or not a folder") from None
                    raise
            yield folder
        finally:
            folder.close()


class _Folder:
    """An open folder; on Windows, where folders cannot be opened, a path with a check of each step."""

    def __init__(self, root: Path) -> None:
        self._path = root
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if _POSIX else None

    def enter(self, part: str, *, create: bool) -> None:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._at(part), 0o755, dir_fd=self._descriptor)
        if self._descriptor is None:
            status = (self._path / part).lstat()
            if stat.S_ISLNK(status.st_mode) or _is_reparse_point(status):
                raise NotADirectoryError(part)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(part)
        else:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=self._descriptor)
            os.close(self._descriptor)
            self._descriptor = inner
        self._path /= part

    def lstat(self, leaf: str) -> os.stat_result:
        status = os.stat(self._at(leaf), dir_fd=self._descriptor, follow_symlinks=False)
        if _is_reparse_point(status):
            raise PathRefused(leaf, "it is a link or a special file")
        return status

    def open(self, leaf: str) -> int:
        if self._descriptor is None:
            self.lstat(leaf)
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)
        return os.open(self._at(leaf), flags, dir_fd=self._descriptor)

    def replace(self, leaf: str, data: bytes, mode: int) -> None:
        temporary = f".{leaf[:80]}.{secrets.token_hex(6)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self._at(temporary), flags, mode, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if _POSIX:
                    os.fchmod(file.fileno(), mode)
            os.replace(
                self._at(temporary),
                self._at(leaf),
                src_dir_fd=self._descriptor,
                dst_dir_fd=self._descriptor,
            )
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise

    def unlink(self, leaf: str) -> None:
        os.unlink(self._at(leaf), dir_fd=self._descriptor)

    def link(self, leaf: str, target: bytes) -> None:
        os.symlink(os.fsdecode(target), self._at(leaf), dir_fd=self._descriptor)

    def rmdir(self, leaf: str) -> None:
        os.rmdir(self._at(leaf), dir_fd=self._descriptor)

    def names(self) -> list[str]:
        # pathlib cannot list a file descriptor.
        return os.listdir(self._path if self._descriptor is None else self._descriptor)  # noqa: PTH208

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _at(self, leaf: str) -> str:
        return leaf if self._descriptor is not None else str(self._path / leaf)


def _is_reparse_point(status: os.stat_result) -> bool:
    """Return True for Windows junctions and links of any kind."""
    return bool(getattr(status, "st_file_attributes", 0) & 0x400)


def _split(name: str) -> tuple[tuple[str, ...], str]:
    parts = PurePosixPath(name).parts
    return parts[:-1], parts[-1]
