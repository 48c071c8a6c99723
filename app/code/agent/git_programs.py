"""Finds the parts of a project that the user's git would run, and protects them while a command runs."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.code.errors import GitFailed
from app.code.git import run_by_git

# Files of a repository that name programs. They are saved and restored if a sandbox cannot make them read-only.

_NAMES: Final = frozenset({"config", "config.worktree", "commondir", "gitdir"})
# These folders contain only data and are large.
_DATA: Final = frozenset({"objects", "refs", "logs", "lfs"})
_MOST_FILES: Final = 5_000
_MOST_BYTES: Final = 1 << 20


class TooMuch(OSError):
    """The repository has more such files than can be saved."""


Snapshot = dict[Path, tuple[int, bytes]]


def _kind(state: tuple[int, bytes] | None) -> int | None:
    return None if state is None else stat.S_IFMT(state[0])


def keep(path: Path) -> Snapshot:
    """Save mode and content of each file that can make git run programs. Raises: TooMuch."""
    if not path.is_dir() or path.is_symlink():
        return dict(_one(path))
    snapshot: Snapshot = {path: (stat.S_IFDIR, b"")}
    waiting = [(path, False)]
    while waiting:
        folder, hooks = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _DATA or hooks:
                        waiting.append((path, hooks or entry.name == "hooks"))
                elif hooks or entry.name in _NAMES or entry.is_symlink():
                    snapshot |= _one(path)
                    if len(snapshot) > _MOST_FILES:
                        raise TooMuch("the repository has too many files that name programs")
    return snapshot


def _one(path: Path) -> Iterator[tuple[Path, tuple[int, bytes]]]:
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            yield path, (mode, os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            if path.lstat().st_size > _MOST_BYTES:
                raise TooMuch(f"{path.name} of the repository is too large to be kept")
            yield path, (mode, path.read_bytes())


def keep_programs(path: Path) -> Snapshot:
    """Save a file, or the files in a folder of hooks; omits large files."""
    try:
        snapshot = dict(_one(path))
        if path.is_dir() and not path.is_symlink():
            snapshot[path] = (stat.S_IFDIR, b"")
    except TooMuch:
        return {}
    folders = [path, path / "_"] if path in snapshot else []  # husky's own programs are in `_`
    for folder in folders:
        for file in _inside(folder)[:_MOST_FILES] if not folder.is_symlink() else ():
            with contextlib.suppress(TooMuch):
                snapshot |= _one(file)
    return snapshot


def put_back(root: Path, before: Snapshot, aside: str, keep: Callable[[Path], Snapshot] = keep) -> list[str]:
    """Restore the state `before` and move new files aside; return one note per action."""
    notes = []
    was, now = _kind(before.get(root)), _kind(keep(root).get(root))
    if was is None:
        return []  # `put_aside` handles a repository that was created
    if now != was:
        if now is not None:
            root.rename(root.with_name(root.name + aside))
        if was == stat.S_IFDIR:
            return [f"{root.name} was moved away or replaced by the command: look at it before you run git."]
    present = keep(root)
    for path in sorted(present.keys() - before.keys()):
        path.rename(path.with_name(path.name + aside))
        notes.append(f"{path.name} of the repository was made by the command: it is {path.name}{aside} now.")
    for path, (mode, content) in sorted(before.items()):
        if present.get(path) == (mode, content):
            continue
        if os.path.lexists(path):
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(mode):
            path.symlink_to(os.fsdecode(content))
        else:
            path.write_bytes(content)
            path.chmod(stat.S_IMODE(mode))
        notes.append(f"{path.name} of the repository was changed by the command: it is as before.")
    return notes


# Repositories inside a project: the user's git enters what looks like a submodule and obeys its settings.
#
# Existing repositories are bind-mounted, so that a command cannot change the programs that they name. New ones are
# scanned after the command: every file that names programs is renamed and reported.

# Larger than any project; a larger folder is reported.
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
class FoundRepositories:
    """Repositories in a folder and below. `whole` is True if the scan was complete."""

    paths: frozenset[Path]
    whole: bool


def repositories(root: Path) -> FoundRepositories:
    """Find every `.git`, folder or file, and every folder that git would treat as a bare repository."""
    paths: set[Path] = set()
    entries_left, waiting = _MOST_ENTRIES, [root]
    while waiting:
        folder = waiting.pop()
        names: dict[str, bool] = {}
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = entry.is_dir(follow_symlinks=False)
        entries_left -= len(names)
        if entries_left < 0:
            return FoundRepositories(frozenset(paths), whole=False)
        if ".git" in names:
            paths.add(folder / ".git")
        if {"HEAD", "objects", "refs"} <= names.keys():
            paths.add(folder)
        waiting += [folder / name for name, is_folder in names.items() if is_folder and name != ".git"]
    return FoundRepositories(frozenset(paths), whole=True)


def put_aside(root: Path, before: frozenset[Path]) -> list[str]:
    """Disable repositories that did not exist `before`; return one note per renamed file."""
    repos = repositories(root)
    notes = []
    for path in sorted(repos.paths - before):
        for part in _steering(path):
            aside = part.with_name(part.name + ASIDE)
            with contextlib.suppress(OSError):
                part.rename(aside)
                notes.append(
                    f"{part.relative_to(root)} can make git run programs: it is {aside.relative_to(root)} now."
                )
    if not repos.whole:
        notes.append("The project has too many files to look for repositories that the command made.")
    return notes


def _steering(path: Path) -> Iterator[Path]:
    """Files of a new repository that can make git run programs or refer git to another place."""
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
    """Return True if a config file has only settings that start nothing; strict: False if in doubt."""
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


# Programs outside of `.git`: folders of hooks, included settings, unfinished rebases.


def programs_in_project(folder: Path, repositories_in: Iterable[Path]) -> set[Path]:
    """Programs in the project, outside of `.git`, that the user's git runs, and the files its settings include."""
    paths: set[Path] = set()
    for repository in repositories_in:
        top = repository.parent if repository.name == ".git" else repository
        paths.add(top / ".husky")  # contains the programs that the ones in `core.hooksPath` start
        with contextlib.suppress(GitFailed):
            paths |= run_by_git(top)
    # The project folder itself stays writable, whatever a setting names.
    return {path for path in paths if path.is_relative_to(folder) and path != folder and os.path.lexists(path)}


def rebase_programs(repositories_in: Iterable[Path]) -> set[tuple[Path, str]]:
    """Commands that an unfinished rebase will run, with the list that names them."""
    programs = set()
    for repository in repositories_in:
        for todo in (*repository.glob("rebase-merge/*todo*"), *repository.glob("worktrees/*/rebase-merge/*todo*")):
            with contextlib.suppress(OSError):
                lines = todo.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace").splitlines()
                programs |= {(todo, line.strip()) for line in lines if line.split()[:1] in (["exec"], ["x"])}
    return programs


def new_programs(
    folder: Path, before: Iterable[Path], programs: Mapping[Path, object], todo: set[tuple[Path, str]]
) -> list[str]:
    """Notes about programs that the user's git would now run and could not run before."""
    notes = [
        f"{path.relative_to(folder)} was made by the command, and your git runs programs in it: look at it first."
        for path in sorted(programs_in_project(folder, before) - programs.keys())
    ]
    for path, line in sorted(rebase_programs(before) - todo):
        notes.append(
            f"The unfinished rebase would now run: {line}. Look at {path.relative_to(folder)} before you go on."
        )
    return notes
