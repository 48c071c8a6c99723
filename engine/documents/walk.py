"""The files of a collection's sources, as they are on disk now."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from pathspec import GitIgnoreSpec

from engine.documents.kinds import SKIPPED_FOLDERS, kind_of

# Far more files than a person has documents; a mistaken "/" must end somewhere.
MAX_FILES = 500_000


class Found(msgspec.Struct, frozen=True):
    """A file that is read, and as what."""

    path: str
    kind: str
    size_bytes: int
    mtime_ns: int


def files_of(sources: Sequence[str], *, pictures: bool = False) -> Iterator[Found]:
    """Every readable file of the sources, once. A source that is gone yields nothing; links are not followed.

    Hidden files and folders, and what .gitignore leaves out, are left out, unless they are sources themselves.
    """
    seen: set[str] = set()
    for source in sources:
        path = Path(source)
        found = _file(path, pictures=pictures) if path.is_file() else None
        every = iter((found,)) if found else _below(path, (), pictures=pictures)
        for file in every:
            if file.path not in seen:
                seen.add(file.path)
                yield file
                if len(seen) >= MAX_FILES:
                    return


def is_below(path: str, source: str) -> bool:
    """`path` is the source or lies in it."""
    return path == source or path.startswith(source.rstrip(os.sep) + os.sep)


def is_wanted(path: str, source: str) -> bool:
    """A file below a source is one that `files_of` would give: not hidden, not left out by a rule."""
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


def _file(path: Path, *, pictures: bool) -> Found | None:
    kind = kind_of(path.name, pictures=pictures)
    try:
        state = path.stat()
    except OSError:
        return None
    return Found(str(path), kind, state.st_size, state.st_mtime_ns) if kind else None


def _below(folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...], *, pictures: bool) -> Iterator[Found]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    rules = _with_rules(folder, rules)
    for entry in entries:
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if _ignored(entry.path, rules, is_folder=is_folder):
            continue
        if is_folder:
            if entry.name.lower() not in SKIPPED_FOLDERS:
                yield from _below(Path(entry.path), rules, pictures=pictures)
        elif entry.is_file(follow_symlinks=False):
            found = _file(Path(entry.path), pictures=pictures)
            if found:
                yield found


def _with_rules(
    folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...]
) -> tuple[tuple[Path, GitIgnoreSpec], ...]:
    try:
        lines = (folder / ".gitignore").read_text("utf-8", "replace").splitlines()
        return (*rules, (folder, GitIgnoreSpec.from_lines(lines)))
    except (OSError, ValueError):
        return rules


def _ignored(path: str, rules: Sequence[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    for folder, spec in rules:
        relative = os.path.relpath(path, folder).replace(os.sep, "/")
        if spec.match_file(relative + ("/" if is_folder else "")):
            return True
    return False
