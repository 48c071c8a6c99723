"""What of a repository names programs, kept and put back where a sandbox cannot make it read-only."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NAMES: Final = frozenset({"config", "config.worktree", "commondir", "gitdir"})
# These hold data only, and are large.
_DATA: Final = frozenset({"objects", "refs", "logs", "lfs"})
_MOST_FILES: Final = 5_000
_MOST_BYTES: Final = 1 << 20


class TooMuch(OSError):
    """The repository has more of it than can be kept."""


Snapshot = dict[Path, tuple[int, bytes]]


def _kind(state: tuple[int, bytes] | None) -> int | None:
    return None if state is None else stat.S_IFMT(state[0])


def keep(path: Path) -> Snapshot:
    """Mode and content of each file that steers git. Raises: TooMuch."""
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


def put_back(root: Path, before: Snapshot, aside: str) -> list[str]:
    """Make it as it was `before`; what is new goes aside. Says what was done, a line for each."""
    notes = []
    was, now = _kind(before.get(root)), _kind(keep(root).get(root))
    if was is None:
        return []  # what was made again is looked through with all others
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
