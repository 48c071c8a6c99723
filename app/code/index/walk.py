"""Find the files of a project by git's ignore rules, without running git."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pathspec import GitIgnoreSpec

# Folders with generated content, anywhere in the tree. A project that commits one names it in .tesseraignore with a
# leading "!".
_MADE_FOLDERS = (
    ".git/ .hg/ .svn/ .jj/ node_modules/ __pycache__/ .mypy_cache/ .pytest_cache/ .ruff_cache/ .tox/ .nox/ "
    ".gradle/ .idea/ .vs/ .next/ .nuxt/ .svelte-kit/ bower_components/ .terraform/ .eggs/ *.egg-info/"
)
# Suffixes of files without hand-written text; they are not opened.
_BINARY_SUFFIXES = (
    ".7z .a .avi .avif .bin .bmp .bz2 .class .dat .db .dll .dmg .doc .docx .dylib .eot .exe .flac .gguf .gif .gz "
    ".ico .iso .jar .jpeg .jpg .lib .mkv .mo .mov .mp3 .mp4 .npy .npz .o .obj .ogg .onnx .otf .parquet .pdf .pkl "
    ".png .pt .pth .pyc .pyd .pyo .qm .rar .safetensors .so .sqlite .tar .tgz .tif .tiff .ttf .wasm .wav .webm "
    ".webp .whl .woff .woff2 .xls .xlsx .xz .zip .zst"
)
_BINARY = frozenset(_BINARY_SUFFIXES.split())
IGNORE_FILES = (".gitignore", ".ignore", ".tesseraignore")
# Larger text files are data and are not worth indexing.
MAX_INDEXED_BYTES = 1 << 20
# A larger folder tree is a disk, not a project.
MAX_FILES = 200_000
_MAX_DEPTH = 64
_MAX_IGNORE_BYTES = 1 << 18


@dataclass(frozen=True)
class FoundFile:
    """A candidate for the index; `path` is relative to the root, with forward slashes."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class _Level:
    prefix: str
    spec: GitIgnoreSpec


class IgnoreRules:
    """Ignore files from the root down to one folder; the deepest file with a matching rule decides."""

    def __init__(self, levels: tuple[_Level, ...]) -> None:
        self._levels = levels

    @classmethod
    def at_root(cls, root: Path) -> "IgnoreRules":
        """The built-in rules, then git's exclude file, then the root's ignore files."""
        rules = cls((_Level("", GitIgnoreSpec.from_lines(_MADE_FOLDERS.split())),))
        exclude = _patterns(root / ".git" / "info" / "exclude")
        if exclude:
            rules = cls((*rules._levels, _Level("", GitIgnoreSpec.from_lines(exclude))))
        return rules.below(root, "")

    def below(self, folder: Path, prefix: str) -> "IgnoreRules":
        """Add the ignore files in `folder` to these rules; `prefix` is its path with a trailing slash, or empty."""
        lines = [line for name in IGNORE_FILES for line in _patterns(folder / name)]
        if not lines:
            return self
        return IgnoreRules((*self._levels, _Level(prefix, GitIgnoreSpec.from_lines(lines))))

    def ignored(self, path: str) -> bool:
        """Return True if a path is ignored; paths of folders end in a slash."""
        for level in reversed(self._levels):
            verdict = level.spec.check_file(path[len(level.prefix) :]).include
            if verdict is not None:
                return verdict
        return False


def walk(root: Path) -> Iterator[FoundFile]:
    """Yield the text-like files below `root` that are not ignored, at most 200,000; never follows links."""
    return islice(_walk(root), MAX_FILES)


def _walk(root: Path) -> Iterator[FoundFile]:
    pending = [(root, "", IgnoreRules.at_root(root), 0)]
    while pending:
        folder, prefix, rules, depth = pending.pop()
        if depth:
            rules = rules.below(folder, prefix)
        for entry in _entries(folder):
            path = prefix + entry.name
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    inner = Path(entry.path)
                    if depth < _MAX_DEPTH and not rules.ignored(path + "/") and not _is_environment(inner):
                        pending.append((inner, path + "/", rules, depth + 1))
                elif entry.is_file(follow_symlinks=False) and not rules.ignored(path):
                    status = entry.stat(follow_symlinks=False)
                    if (
                        status.st_size <= MAX_INDEXED_BYTES
                        and not _is_binary_name(entry.name)
                        and path.isprintable()
                    ):
                        yield FoundFile(path, status.st_size, status.st_mtime_ns)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def is_ignored(root: Path, path: str) -> bool:
    """Return True if one file (relative path) is ignored by the same rules."""
    rules, folder, prefix = IgnoreRules.at_root(root), root, ""
    *folders, name = path.split("/")
    for part in folders:
        prefix += part + "/"
        folder = folder / part
        if rules.ignored(prefix) or _is_environment(folder):
            return True
        rules = rules.below(folder, prefix)
    return rules.ignored(prefix + name) or _is_binary_name(name)


def _is_environment(folder: Path) -> bool:
    """Return True for a Python environment of any name: its files are installed, not written."""
    return (folder / "pyvenv.cfg").exists()


def _is_binary_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _BINARY  # noqa: PTH122  # 20 times as fast


def _patterns(file: Path) -> list[str]:
    try:
        if file.is_symlink() or not file.is_file():
            return []
        with file.open("rb") as opened:
            return opened.read(_MAX_IGNORE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
