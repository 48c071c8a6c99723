"""The sandbox an agent's commands run in: bubblewrap on Linux, else Landlock. Where there is none, that is said.

Inside, the project folder can be written and the system's programs can be read. The home folder, other people's
files, sockets of the desktop and the network are not there; memory disks stand in for the home and for /tmp.
"""

import contextlib
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.code.agent.nested_repos import ASIDE, put_aside, repositories
from app.code.agent.program_paths import program_paths
from app.code.agent.protected_files import keep, put_back
from devices import landlock
from devices.child_command import child_command
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
