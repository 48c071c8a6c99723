"""The sandbox an agent's commands run in: bubblewrap on Linux, else Landlock. Where there is none, that is said.

Inside, the project folder can be written and the system's programs can be read. The home folder, other people's
files, sockets of the desktop and the network are not there; memory disks stand in for the home and for /tmp.
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

# What names programs in a repository, or another place to read such names from. Source: git, gitrepository-layout.
_STEERING: Final = ("config", "config.worktree", "commondir", "hooks", "modules", "worktrees")
_ITSELF: Final = b".\n"
_MEMORY_DISK_BYTES: Final = 1 << 30
_TRY_LIMIT_S: Final = 10
# Variables that lead to services outside: keys, the desktop, its buses.
HIDDEN_VARIABLES: Final = frozenset(
    {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY"}
    | {"WAYLAND_DISPLAY", "XAUTHORITY", "DOCKER_HOST"}
)


@dataclass(frozen=True, kw_only=True)
class Openings:
    """What one command is allowed beyond the project folder."""

    network: bool = False
    home: bool = False


def missing() -> str | None:
    """Why there is no sandbox on this computer; None when there is one."""
    lacking = without_bubblewrap()
    return None if lacking is None or landlock.version() else lacking


def weakness() -> str | None:
    """What the sandbox of this computer does not hold that bubblewrap would; None where it holds all."""
    if without_bubblewrap() is None or landlock.version() >= landlock.SCOPED_VERSION:
        return None
    return "Landlock of this kernel keeps files and network from it, but it can end other programs of yours."


@functools.cache
def without_bubblewrap() -> str | None:
    """Why bubblewrap does not work on this computer; None when it does. Tried once."""
    if sys.platform != "linux":
        return "there is none for this system"
    program = installed_program("bwrap")
    if program is None:
        return "bubblewrap is not installed (package bubblewrap)"
    folder = Path("/usr/bin")  # one with none below it: a project is looked through for repositories
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
    """The command that runs `argv` inside; `missing` must have said None. Its temporary files go to `scratch`."""
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
    for scratch in ("/tmp", "/var/tmp", "/run"):  # noqa: S108 - the sandbox's own, in memory
        options += ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", scratch]
    if openings.network:  # where names of hosts are looked up
        options += ["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]
    home_mount = ["--bind", str(home), str(home)]
    if not openings.home:
        home_mount = ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", str(home)]
    options += home_mount
    for path in program_paths(argv[0], home):
        # An open home has its single programs, and a link to what is not shown cannot be bound.
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
    """A repository can be written, but not what makes the person's own git run something afterwards."""
    if repository.is_symlink():
        return []
    # Bound onto itself it cannot be moved away and replaced by one with other settings.
    if not repository.is_dir():
        return ["--ro-bind-try", str(repository), str(repository)]
    options = ["--bind", str(repository), str(repository)]
    for name in _STEERING:
        options += ["--ro-bind-try", str(repository / name), str(repository / name)]
    return options


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[list[str]]:
    """While a command runs: what it must not make in a repository is there, so that it can be bound.

    Afterwards the list says what the command made that would have made the person's git run something.
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
    """A `commondir` that names the repository itself says what git assumes without one."""
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
            with contextlib.suppress(OSError):  # something was put there from outside meanwhile
                hooks.rmdir()
        if leads_to is not None and not (hooks.is_symlink() and hooks.readlink() == leads_to):
            _put_back(hooks, leads_to)


def _put_back(hooks: Path, leads_to: Path) -> None:
    """A link that was bound can itself be replaced: the link of before takes its place again."""
    if hooks.is_dir() and not hooks.is_symlink():
        shutil.rmtree(hooks)
    else:
        hooks.unlink(missing_ok=True)
    hooks.symlink_to(leads_to)


# What of a repository names programs, kept and put back where a sandbox cannot make it read-only.

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


# Repositories inside a project: the person's own git enters what it takes for submodules and obeys their settings.
#
# Those that are there are bound, so that a command cannot change what they name. What a command makes is looked
# through when it has ended: whatever names programs is put aside under another name, and said.

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


# What a sandbox shows of programs outside the system's folders: the programs, and never the data next to them.
#
# `~/.local/bin` is on PATH nearly everywhere, and `~/.local/share` holds tokens, keyrings, histories and chats.

# Folders that hold programs and nothing else by their name; of others on PATH only the programs are shown.
_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin", "shims", "scripts"})
# What programs in PREFIX/bin are made of. Not `share`: in a home folder it is everybody's data.
_BESIDE_PROGRAMS: Final = ("lib", "lib64", "libexec", "include", "pyvenv.cfg")
# Where programs keep what is the user's, by variable and by default below the home.
_DATA_FOLDERS: Final = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "TESSERA_HOME": ".local/share/tessera",
}
# A link in ~/.local/bin leads to a tool's environment, and that one's Python to an installed Python.
_MAX_LINKS: Final = 3
_MAX_STEPS: Final = 8
_MAX_PATHS: Final = 500


def program_paths(name: str, home: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Files and folders to show: of each folder on PATH, and of the command's where it is named in full."""
    found = _Programs(home, environment)
    for entry in environment.get("PATH", "").split(os.pathsep):
        if Path(entry).is_absolute():
            found.add_folder(_normal(entry))
    if Path(name).is_absolute():
        found.add_program(_normal(name))
    shown = [path for path in found.paths if not any(str(above) in found.paths for above in Path(path).parents)]
    return shown[:_MAX_PATHS]


def _normal(path: str) -> Path:
    """Without `..`, which would hide where a path leads."""
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
        """Show one program, with its folder where that holds nothing else."""
        if _is_named_for_programs(program.parent, program.parent.resolve()):
            self.add_folder(program.parent)
        if program.is_file() and os.access(program, os.X_OK):
            self._add_file(program, 0)

    def _add_file(self, program: Path, links: int) -> None:
        self.paths[str(program)] = None
        self._add_targets(program, links)

    def _add_targets(self, program: Path, links: int) -> None:
        """Show what a link leads to, each link on the way; what is in the system's folders is shown anyway."""
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
        """Neither the home, a folder of data, nor one above either."""
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
