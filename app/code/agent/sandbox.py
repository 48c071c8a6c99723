"""Sandbox for an agent's commands: bubblewrap on Linux, else Landlock. If there is none, the user is informed.

The project folder is writable and the system's programs are readable. The home folder, other users' files, desktop
sockets and the network are not available; tmpfs replaces the home folder and /tmp.
"""

import contextlib
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devices import landlock
from devices.child_command import child_command
from devices.landlock import SYSTEM_FOLDERS
from devices.programs import installed_program

# Files that name programs in a repository, or refer to another place for such names. Source: git,
# gitrepository-layout.
_STEERING: Final = ("config", "config.worktree", "commondir", "hooks", "modules", "worktrees")
_ITSELF: Final = b".\n"
_MEMORY_DISK_BYTES: Final = 1 << 30
_TRY_LIMIT_S: Final = 10
# Variables that refer to services outside the sandbox: key agents, the desktop, its buses.
HIDDEN_VARIABLES: Final = frozenset(
    {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY"}
    | {"WAYLAND_DISPLAY", "XAUTHORITY", "DOCKER_HOST"}
)


@dataclass(frozen=True, kw_only=True)
class Openings:
    """Permissions of a command beyond the project folder."""

    network: bool = False
    home: bool = False


def missing() -> str | None:
    """Reason why this computer has no sandbox; None if it has one."""
    lacking = without_bubblewrap()
    return None if lacking is None or landlock.version() else lacking


def weakness() -> str | None:
    """Describe what this computer's sandbox lacks compared with bubblewrap; None if nothing."""
    if without_bubblewrap() is None or landlock.version() >= landlock.SCOPED_VERSION:
        return None
    return "Landlock of this kernel keeps files and network from it, but it can end other programs of yours."


@functools.cache
def without_bubblewrap() -> str | None:
    """Reason why bubblewrap does not work on this computer; None if it works. Tested once."""
    if sys.platform != "linux":
        return "there is none for this system"
    program = installed_program("bwrap")
    if program is None:
        return "bubblewrap is not installed (package bubblewrap)"
    folder = Path("/usr/bin")  # it has no subfolders: a project folder is scanned for repositories
    try:
        tried = subprocess.run(
            [*_bubblewrapped(("true",), folder, Openings(), program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRY_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    lines = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    return (
        f"bubblewrap does not work here: {lines[-1] if lines else tried.returncode}" if tried.returncode else None
    )


def sandboxed(argv: Sequence[str], folder: Path, openings: Openings, scratch: Path) -> list[str]:
    """Command that runs `argv` in the sandbox; requires `missing()` to be None. Temporary files go to `scratch`."""
    if without_bubblewrap() is None:
        return _bubblewrapped(argv, folder, openings, installed_program("bwrap") or "bwrap")
    home = Path.home()
    variables = {"TMPDIR": str(scratch)}
    if not openings.home:
        variables["HOME"] = str(scratch)
    wanted = {
        "argv": list(argv),
        "folder": str(folder),
        "readable": [
            *landlock.SYSTEM_FOLDERS,
            *landlock.PROC,
            "/run/systemd/resolve",
            *program_paths(argv[0], home),
        ],
        "writable": [str(folder), str(scratch), *([str(home)] if openings.home else [])],
        "network": openings.network,
        "hidden": sorted(HIDDEN_VARIABLES),
        "variables": variables,
    }
    return list(child_command("devices.landlock", json.dumps(wanted)))


def _bubblewrapped(argv: Sequence[str], folder: Path, openings: Openings, program: str) -> list[str]:
    home = Path.home()
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if openings.network:
        options += ["--share-net"]
    for system in landlock.SYSTEM_FOLDERS:
        options += ["--ro-bind-try", system, system]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for scratch in ("/tmp", "/var/tmp", "/run"):  # noqa: S108 - tmpfs inside the sandbox
        options += ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", scratch]
    if openings.network:  # for DNS resolution
        options += ["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]
    home_mount = ["--bind", str(home), str(home)]
    if not openings.home:
        home_mount = ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", str(home)]
    options += home_mount
    for path in program_paths(argv[0], home):
        # An open home folder contains the single programs, and bwrap cannot bind a link to a hidden target.
        if not openings.home or Path(path).is_dir():
            options += ["--ro-bind-try", path, path]
    options += ["--bind", str(folder), str(folder)]
    for repository in sorted({folder / ".git", *repositories(folder).paths}):
        options += _repository(repository)
    options += ["--chdir", str(folder)]
    for name in sorted(HIDDEN_VARIABLES):
        options += ["--unsetenv", name]
    return [program, *options, "--", *argv]


def _repository(repository: Path) -> list[str]:
    """Options that make a repository writable, except the files that can make the user's git run programs."""
    if repository.is_symlink():
        return []
    # A bind mount onto itself prevents moving it away and replacing it with a repository of other settings.
    if not repository.is_dir():
        return ["--ro-bind-try", str(repository), str(repository)]
    options = ["--bind", str(repository), str(repository)]
    for name in _STEERING:
        options += ["--ro-bind-try", str(repository / name), str(repository / name)]
    return options


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[list[str]]:
    """Create what a command must not create in a repository, so that it can be bind-mounted during the command.

    After the block, the list describes what the command created that could make the user's git run programs.
    """
    before = repositories(folder).paths
    mine = sorted({folder / ".git", *before})
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        snapshots = {}
        if without_bubblewrap() is None:
            for repository in mine:
                stack.enter_context(_held(repository))
        else:
            snapshots = {repository: keep(repository) for repository in mine}
        try:
            yield notes
        finally:
            for repository, state in snapshots.items():
                notes += put_back(repository, state, ASIDE)
            notes += put_aside(folder, before)


@contextlib.contextmanager
def _held(repository: Path) -> Iterator[None]:
    """Ensure during the block that `hooks` exists, and a `commondir` with git's default content."""
    if repository.is_symlink() or not repository.is_dir():
        yield
        return
    hooks, common = repository / "hooks", repository / "commondir"
    leads_to = hooks.readlink() if hooks.is_symlink() else None
    made_hooks = leads_to is None and not hooks.exists()
    made_common = not common.exists()
    if made_hooks:
        hooks.mkdir()
    if made_common:
        common.write_bytes(_ITSELF)
    try:
        yield
    finally:
        if made_common and common.is_file() and common.read_bytes() == _ITSELF:
            common.unlink()
        if made_hooks:
            with contextlib.suppress(OSError):  # another process put a file there meanwhile
                hooks.rmdir()
        if leads_to is not None and not (hooks.is_symlink() and hooks.readlink() == leads_to):
            _put_back(hooks, leads_to)


def _put_back(hooks: Path, leads_to: Path) -> None:
    """Restore the link: a bind-mounted link can itself be replaced."""
    if hooks.is_dir() and not hooks.is_symlink():
        shutil.rmtree(hooks)
    else:
        hooks.unlink(missing_ok=True)
    hooks.symlink_to(leads_to)


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


def put_back(root: Path, before: Snapshot, aside: str) -> list[str]:
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
class Found:
    """Repositories in a folder and below. `whole` is True if the scan was complete."""

    paths: frozenset[Path]
    whole: bool


def repositories(root: Path) -> Found:
    """Find every `.git`, folder or file, and every folder that git would treat as a bare repository."""
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
    """Disable repositories that did not exist `before`; return one note per renamed file."""
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
    """Files of a new repository that can make git run programs or refer it to another place."""
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


# Programs outside the system's folders that a sandbox shows, without the data next to them.
#
# `~/.local/bin` is on PATH nearly everywhere, and `~/.local/share` contains tokens, keyrings, histories and chats.

# Folder names that mean programs only; of other folders on PATH only the programs are shown.
_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin", "shims", "scripts"})
# Folders and files in PREFIX that programs in PREFIX/bin need. Not `share`: in a home folder it contains data of
# many programs.
_BESIDE_PROGRAMS: Final = ("lib", "lib64", "libexec", "include", "pyvenv.cfg")
# Folders of user data, by variable and with the default below the home folder.
_DATA_FOLDERS: Final = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "TESSERA_HOME": ".local/share/tessera",
}
# A link in ~/.local/bin leads to a tool's environment, whose Python links to an installed Python.
_MAX_LINKS: Final = 3
_MAX_STEPS: Final = 8
_MAX_PATHS: Final = 500


def program_paths(name: str, home: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Files and folders to show: from each folder on PATH, and the command's own if it is an absolute path."""
    found = _Programs(home, environment)
    for entry in environment.get("PATH", "").split(os.pathsep):
        if Path(entry).is_absolute():
            found.add_folder(_normal(entry))
    if Path(name).is_absolute():
        found.add_program(_normal(name))
    shown = [path for path in found.paths if not any(str(above) in found.paths for above in Path(path).parents)]
    return shown[:_MAX_PATHS]


def _normal(path: str) -> Path:
    """Normalize a path; `..` would hide its target."""
    return Path(os.path.normpath(path))


class _Programs:
    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.paths: dict[str, None] = {}
        data = [home / below for below in _DATA_FOLDERS.values()]
        data += [Path(environment[name]) for name in _DATA_FOLDERS if Path(environment.get(name, "")).is_absolute()]
        self._homes = {Path("/"), home, home.resolve()}
        self._private = self._homes | {*data, *(folder.resolve() for folder in data)}

    def add_folder(self, folder: Path, links: int = 0) -> None:
        """Show a folder of programs."""
        real = folder.resolve()
        if _is_shown_anyway(folder) or str(folder) in self.paths or not self._may_show(folder, real):
            return
        if not _is_named_for_programs(folder, real):
            for program in _executables(folder):
                self._add_file(program, links)
            return
        self.paths[str(folder)] = None
        for prefix in dict.fromkeys((folder.parent, real.parent)):
            self._add_prefix(prefix)
        for program in _executables(folder):
            self._add_targets(program, links)

    def add_program(self, program: Path) -> None:
        """Show one program, and its folder if that contains only programs."""
        if _is_named_for_programs(program.parent, program.parent.resolve()):
            self.add_folder(program.parent)
        if program.is_file() and os.access(program, os.X_OK):
            self._add_file(program, 0)

    def _add_file(self, program: Path, links: int) -> None:
        self.paths[str(program)] = None
        self._add_targets(program, links)

    def _add_targets(self, program: Path, links: int) -> None:
        """Show the target of a link and each link on the way; system folders are shown anyway."""
        if links >= _MAX_LINKS or not program.is_symlink():
            return
        steps, step = [program.resolve()], program
        while step.is_symlink() and len(steps) <= _MAX_STEPS:
            step = _normal(str(step.parent / step.readlink()))
            steps.append(step)
        for target in dict.fromkeys(steps):
            if _is_named_for_programs(target.parent, target.parent.resolve()):
                self.add_folder(target.parent, links + 1)
            if not _is_shown_anyway(target):
                self.paths[str(target)] = None

    def _add_prefix(self, prefix: Path) -> None:
        if any(home.is_relative_to(path) for home in self._homes for path in (prefix, prefix.resolve())):
            return
        for name in _BESIDE_PROGRAMS:
            path, real = prefix / name, (prefix / name).resolve()
            if path.exists() and real.is_relative_to(prefix.resolve()) and self._may_show(path, real):
                self.paths[str(path)] = None

    def _may_show(self, folder: Path, real: Path) -> bool:
        """Return False for the home folder, data folders, and all their parents."""
        return not any(root.is_relative_to(path) for root in self._private for path in (folder, real))


def _is_shown_anyway(path: Path) -> bool:
    return any(path.is_relative_to(system) for system in SYSTEM_FOLDERS)


def _is_named_for_programs(folder: Path, real: Path) -> bool:
    return {folder.name.lower(), real.name.lower()} <= _PROGRAM_FOLDERS


def _executables(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file() and os.access(entry, os.X_OK):
            yield entry
