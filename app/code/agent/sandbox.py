"""Sandbox for an agent's commands: bubblewrap on Linux, else Landlock. If there is none, the user is informed.

The project folder is writable and the system's programs are readable. The home folder, other users' files, desktop
sockets and the network are not available; tmpfs replaces the home folder and /tmp.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.code.agent.git_programs import (
    ASIDE,
    keep,
    keep_programs,
    new_programs,
    programs_in_project,
    put_aside,
    put_back,
    rebase_programs,
    repositories,
)
from devices import landlock, syscall_filter
from devices.child_command import child_command
from devices.landlock import SYSTEM_FOLDERS
from devices.programs import installed_program
from engine.message_catalog.reasons import Reason, because

# Files that name programs in a repository, or refer to another place for such names. Source: git,
# gitrepository-layout.
_STEERING: Final = ("config", "config.worktree", "commondir", "hooks", "modules", "worktrees")
_ITSELF: Final = b".\n"
_KERNEL_SETTINGS: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_MEMORY_DISK_BYTES: Final = 1 << 30
_TRY_LIMIT_S: Final = 10
# Variables that refer to services outside the sandbox: key agents, the desktop, its buses.
HIDDEN_VARIABLES: Final = frozenset(
    {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY"}
    | {"WAYLAND_DISPLAY", "XAUTHORITY", "DOCKER_HOST"}
)


@dataclass(frozen=True, kw_only=True)
class SandboxPermissions:
    """Permissions of a command beyond the project folder."""

    network: bool = False
    home: bool = False


@dataclass(frozen=True)
class Guard:
    """Programs that the user's git would run in a project folder; `notes` report a command's changes to them."""

    folder: Path
    repositories: Sequence[Path] = ()
    programs: Sequence[Path] = ()
    notes: list[str] = field(default_factory=list)


def missing() -> Reason | None:
    """Reason why this computer has no sandbox; None if it has one."""
    lacking = without_bubblewrap()
    return None if lacking is None or landlock.version() else lacking


def weakness() -> Reason | None:
    """Describe what this computer's sandbox lacks compared with bubblewrap; None if nothing."""
    if without_bubblewrap() is None or landlock.version() >= landlock.SCOPED_VERSION:
        return None
    return because("weak_sandbox")


@functools.cache
def without_bubblewrap() -> Reason | None:
    """Reason why bubblewrap does not work on this computer; None if it works. Tested once."""
    if sys.platform != "linux":
        return because("no_sandbox_for_system")
    program = installed_program("bwrap")
    if program is None:
        return because("no_bubblewrap")
    try:
        with tempfile.TemporaryDirectory(prefix="tessera-sandbox-") as scratch:
            tried = subprocess.run(
                _bubblewrapped(("true",), Guard(Path("/usr/bin")), SandboxPermissions(), Path(scratch), program),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRY_LIMIT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return because("bubblewrap_not_started", why=str(error))
    lines = tried.stderr.decode("utf-8", "replace").strip().splitlines()
    if not tried.returncode:
        return None
    return because("bubblewrap_fails", why=lines[-1] if lines else str(tried.returncode))


def sandboxed(argv: Sequence[str], guard: Guard, openings: SandboxPermissions, scratch: Path) -> list[str]:
    """Command that runs `argv` in the sandbox; requires `missing()` to be None. Temporary files go to `scratch`."""
    if without_bubblewrap() is None:
        return _bubblewrapped(argv, guard, openings, scratch, installed_program("bwrap") or "bwrap")
    folder = guard.folder
    home = Path.home()
    variables = {"TMPDIR": str(scratch)}
    if not openings.home:
        variables |= {"HOME": str(scratch)} | {name: str(path) for name, path in tool_chains(home).items()}
    rules = {
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
    return list(child_command("devices.landlock", json.dumps(rules)))


def _bubblewrapped(
    argv: Sequence[str], guard: Guard, openings: SandboxPermissions, scratch: Path, program: str
) -> list[str]:
    home, folder = Path.home(), guard.folder
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if openings.network:
        options += ["--share-net"]
    for system in landlock.SYSTEM_FOLDERS:
        options += ["--ro-bind-try", system, system]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for settings in _KERNEL_SETTINGS:  # root can write to them even without capabilities
        options += ["--ro-bind-try", settings, settings]
    for memory in ("/tmp", "/var/tmp", "/run"):  # noqa: S108 - tmpfs inside the sandbox
        options += ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", memory]
    if openings.network:  # for DNS resolution
        options += ["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]
    options += _home(argv[0], home, openings)
    options += ["--bind", str(folder), str(folder)]
    for repository in guard.repositories:
        options += _repository(repository)
    for program_file in map(str, guard.programs):
        options += ["--ro-bind-try", program_file, program_file]
    options += ["--chdir", str(folder)]
    for name in sorted(HIDDEN_VARIABLES):
        options += ["--unsetenv", name]
    for name, chain in tool_chains(home).items():
        options += ["--setenv", name, str(chain)]
    return [*_filtered(program, openings, scratch), *options, "--", *argv]


def _home(name: str, home: Path, openings: SandboxPermissions) -> list[str]:
    """The home folder, or an empty one with the programs in it."""
    options = ["--bind", str(home), str(home)]
    if not openings.home:
        options = ["--size", str(_MEMORY_DISK_BYTES), "--tmpfs", str(home)]
    for path in program_paths(name, home, chains=not openings.home):
        # An open home folder contains the single programs, and bwrap cannot bind a link to a hidden target.
        if not openings.home or Path(path).is_dir():
            options += ["--ro-bind-try", path, path]
    return options


def _filtered(program: str, openings: SandboxPermissions, scratch: Path) -> list[str]:
    """Bubblewrap with a filter of system calls, which it reads from a descriptor."""
    rules = syscall_filter.program(syscall_filter.OPEN if openings.network else syscall_filter.CLOSED)
    if not rules:
        return [program]
    (scratch / "filter").write_bytes(rules)
    return ["/bin/sh", "-c", 'exec 9< "$0" && exec "$@"', str(scratch / "filter"), program, "--seccomp", "9"]


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
def guarded(folder: Path) -> Iterator[Guard]:
    """Create paths that a command must not create in a repository, so that they can be bind-mounted during it.

    After the block, the notes describe what the command created that could make the user's git run programs.
    """
    before = repositories(folder).paths
    mine = sorted({folder / ".git", *before})
    programs = {path: keep_programs(path) for path in sorted(programs_in_project(folder, before))}
    todo = rebase_programs(before)
    guard = Guard(folder, mine, tuple(programs))
    notes = guard.notes
    with contextlib.ExitStack() as stack:
        snapshots = {}
        if without_bubblewrap() is None:
            for repository in mine:
                stack.enter_context(_with_fixed_files(repository))
        else:
            snapshots = {repository: keep(repository) for repository in mine}
        try:
            yield guard
        finally:
            for repository, state in snapshots.items():
                notes += put_back(repository, state, ASIDE)
            for path, state in programs.items():
                notes += put_back(path, state, ASIDE, keep_programs)
            notes += put_aside(folder, before)
            notes += new_programs(folder, before, programs, todo)


@contextlib.contextmanager
def _with_fixed_files(repository: Path) -> Iterator[None]:
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


# Programs outside the system folders that are visible in a sandbox, without the data next to them.
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
_VERSIONS: Final = ("bin", "libexec", "plugins", "shims", "versions", "version")
# Tool-chain managers: the variable and default path of their folder, and its parts without tokens and account
# settings. Their programs in PATH are only shims, which find the tool chain through the variable.
_TOOL_CHAINS: Final = (
    ("RUSTUP_HOME", ".rustup", ("toolchains", "settings.toml")),
    ("PYENV_ROOT", ".pyenv", _VERSIONS),
    ("RBENV_ROOT", ".rbenv", _VERSIONS),
    ("NVM_DIR", ".nvm", ("alias", "nvm-exec", "nvm.sh", "versions")),
    ("VOLTA_HOME", ".volta", ("bin", "tools")),
    ("FNM_DIR", ".local/share/fnm", ("aliases", "node-versions")),
    ("ASDF_DATA_DIR", ".asdf", ("installs", "plugins", "shims")),
    ("MISE_DATA_DIR", ".local/share/mise", ("installs", "plugins", "shims")),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", ("",)),
    ("SDKMAN_DIR", ".sdkman", ("candidates",)),
)
# Folders of a conda environment or installation. It is known by `conda-meta`.
_CONDA: Final = ("condabin", "conda-meta", "envs", "etc", "share", "ssl")


def program_paths(name: str, home: Path, *, chains: bool = True) -> list[str]:
    """Files and folders to show: from each folder on PATH, and the command's own if it is an absolute path.

    `chains`: also the tool chains of the home folder.
    """
    allowed = _Programs(home)
    if chains:
        allowed.add_tool_chains(tool_chains(home))
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if Path(entry).is_absolute():
            allowed.add_folder(_normal(entry))
    if Path(name).is_absolute():
        allowed.add_program(_normal(name))
    shown = [path for path in allowed.paths if not any(str(above) in allowed.paths for above in Path(path).parents)]
    return shown[:_MAX_PATHS]


def tool_chains(home: Path) -> dict[str, Path]:
    """Existing tool-chain folders, by the environment variable that names them."""
    folders = {name: Path(os.environ.get(name) or home / default) for name, default, _ in _TOOL_CHAINS}
    return {name: folder for name, folder in folders.items() if folder.is_absolute() and folder.is_dir()}


def _normal(path: str) -> Path:
    """Normalize a path; `..` would hide its target."""
    return Path(os.path.normpath(path))


class _Programs:
    def __init__(self, home: Path) -> None:
        self.paths: dict[str, None] = {}
        data = [home / below for below in _DATA_FOLDERS.values()]
        data += [Path(os.environ[name]) for name in _DATA_FOLDERS if Path(os.environ.get(name, "")).is_absolute()]
        self._homes = {Path("/"), home, home.resolve()}
        self._private = self._homes | {*data, *(folder.resolve() for folder in data)}

    def add_tool_chains(self, folders: Mapping[str, Path]) -> None:
        """Show the tool chains in these folders, by their variable."""
        parts = {name: inside for name, _, inside in _TOOL_CHAINS}
        for name, folder in folders.items():
            self._add_parts(folder, parts[name])

    def add_folder(self, folder: Path, links: int = 0) -> None:
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
        self._add_parts(prefix, _BESIDE_PROGRAMS)
        if (prefix / "conda-meta").is_dir():
            self._add_parts(prefix, _CONDA)

    def _add_parts(self, prefix: Path, parts: Sequence[str]) -> None:
        """Show the parts of a folder that are really inside it."""
        for name in parts:
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
