"""Repositories inside a project: the person's own git enters what it takes for submodules and obeys their settings.

Those that are there are bound, so that a command cannot change what they name. What a command makes is looked
through when it has ended: whatever names programs is put aside under another name, and said.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# More than any project holds; where there are more, that is said.
_MOST_ENTRIES: Final = 500_000
_MOST_SETTINGS_BYTES: Final = 1 << 16
ASIDE: Final = ".made-by-a-command"
# Settings that start and open nothing, by section and name. Source: git-config.
_HARMLESS: Final = {
    "core": {"repositoryformatversion", "filemode", "bare", "logallrefupdates", "symlinks", "ignorecase"}
    | {"precomposeunicode", "autocrlf", "eol"},
    "user": {"name", "email"},
    "init": {"defaultbranch"},
    "remote": {"url", "fetch"},
    "branch": {"remote", "merge", "rebase"},
    "extensions": {"objectformat", "refstorage"},
}
_HARMLESS_ADDRESSES: Final = ("https://", "http://", "ssh://", "git://", "git@", "/", "./", "../")


@dataclass(frozen=True)
class Found:
    """Repositories of a folder and below. `whole`: all of it was looked through."""

    paths: frozenset[Path]
    whole: bool


def repositories(root: Path) -> Found:
    """Every `.git`, folder or file, and every folder that git would take for a bare repository."""
    paths: set[Path] = set()
    left, waiting = _MOST_ENTRIES, [root]
    while waiting:
        folder = waiting.pop()
        names: dict[str, bool] = {}
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = entry.is_dir(follow_symlinks=False)
        left -= len(names)
        if left < 0:
            return Found(frozenset(paths), whole=False)
        if ".git" in names:
            paths.add(folder / ".git")
        if {"HEAD", "objects", "refs"} <= names.keys():
            paths.add(folder)
        waiting += [folder / name for name, is_folder in names.items() if is_folder and name != ".git"]
    return Found(frozenset(paths), whole=True)


def put_aside(root: Path, before: frozenset[Path]) -> list[str]:
    """Take the force out of repositories that were not there `before`; says what was done, a line for each."""
    found = repositories(root)
    notes = []
    for path in sorted(found.paths - before):
        for part in _steering(path):
            aside = part.with_name(part.name + ASIDE)
            with contextlib.suppress(OSError):
                part.rename(aside)
                notes.append(
                    f"{part.relative_to(root)} can make git run programs: it is {aside.relative_to(root)} now."
                )
    if not found.whole:
        notes.append("The project has too many files to look for repositories that the command made.")
    return notes


def _steering(path: Path) -> Iterator[Path]:
    """What of a new repository makes git run something, or leads it elsewhere."""
    if not path.is_dir() or path.is_symlink():
        yield path
        return
    if not _is_harmless(path / "config"):
        yield path / "config"
    for name in ("config.worktree", "commondir"):
        if os.path.lexists(path / name):
            yield path / name
    hooks = path / "hooks"
    if hooks.is_symlink() or any(not hook.name.endswith(".sample") for hook in _inside(hooks)):
        yield hooks


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_harmless(config: Path) -> bool:
    """A plain file of settings that all are known to start nothing; read strictly, in doubt it is not."""
    if not os.path.lexists(config):
        return True
    if config.is_symlink() or not config.is_file() or config.stat().st_size > _MOST_SETTINGS_BYTES:
        return False
    section = ""
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    for line in map(str.strip, lines):
        if line.startswith("[") and line.endswith("]") and "]" not in line[1:-1]:
            section = line[1:-1].partition(" ")[0].lower()
        elif line and line[0] not in "#;" and not _starts_nothing(section, line):
            return False
    return True


def _starts_nothing(section: str, line: str) -> bool:
    name, mark, value = (part.strip() for part in line.partition("="))
    if not mark or "\\" in value or name.lower() not in _HARMLESS.get(section, ()):
        return False
    return name.lower() != "url" or value.startswith(_HARMLESS_ADDRESSES)
