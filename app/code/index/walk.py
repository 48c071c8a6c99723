"""Find the files of a project by git's ignore rules, without running git."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

from engine.documents.walk import IgnoreRules

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
# Larger text files are data and are not worth indexing.
MAX_INDEXED_BYTES = 1 << 20
# A larger folder tree is a disk, not a project.
MAX_FILES = 200_000
_MAX_DEPTH = 64


@dataclass(frozen=True)
class FoundFile:
    """A candidate for the index; `path` is relative to the root, with forward slashes."""

    path: str
    size_bytes: int
    mtime_ns: int


def rules_of(root: Path) -> IgnoreRules:
    """The rules at the root of a project."""
    return IgnoreRules.at_root(root, _MADE_FOLDERS.split())


def walk(root: Path) -> Iterator[FoundFile]:
    """Yield the text-like files below `root` that are not ignored, at most 200,000; never follows links."""
    return islice(_walk(root), MAX_FILES)


def _walk(root: Path) -> Iterator[FoundFile]:
    pending = [(root, "", rules_of(root), 0)]
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
    folders = islice(accumulate(path.split("/")[:-1], lambda folder, name: folder / name, initial=root), 1, None)
    return _is_binary_name(path) or any(map(_is_environment, folders)) or rules_of(root).ignores(root, path)


def _is_environment(folder: Path) -> bool:
    """Return True for a Python environment of any name: its files are installed, not written."""
    return (folder / "pyvenv.cfg").exists()


def _is_binary_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _BINARY  # noqa: PTH122  # 20 times as fast
