"""The server as a service of this user: started at log-in, started again when it ends, no administrator needed.

systemd's user manager on Linux, launchd on macOS, the task scheduler on Windows. Only systemd was tried.
"""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from devices.programs import installed_program

NAME: Final = "tessera"
LABEL: Final = "io.github.tessera.Tessera"
# Managers answer within a second; systemd waits for a server that is being stopped.
TIMEOUT_S: Final = 60.0


class ServiceFailed(Exception):
    """The manager refused, or there is none; the message says what it said and what to do."""


@dataclass(frozen=True, slots=True)
class Manager:
    """How one system keeps a service: the file that describes it, and what its programs are asked."""

    name: str
    path: Path
    text: str
    install: tuple[tuple[str, ...], ...]
    remove: tuple[tuple[str, ...], ...]
    running: tuple[str, ...]
    running_words: str = ""
    tried: bool = False
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of the service; `path` is its description."""

    manager: str
    path: Path
    installed: bool
    running: bool


def manager(command: Sequence[str], system: str = sys.platform, env: Mapping[str, str] = os.environ) -> Manager:
    """The manager of this system for a server started by `command`.

    Raises: ServiceFailed: this system has none that is known.
    """
    if system == "win32":
        return _windows(command, env)
    if system == "darwin":
        return _launchd(command, env)
    if system.startswith("linux"):
        return _systemd(command, env)
    raise ServiceFailed(f"no service manager is known for {system}; run `tessera serve` from your own")


def install(found: Manager) -> None:
    """Write the description and start the service. Installing again takes new options. Raises: ServiceFailed."""
    _check_present(found)
    found.path.parent.mkdir(parents=True, exist_ok=True)
    encoding = "utf-16" if found.name == "task scheduler" else "utf-8"  # schtasks reads no other XML
    partial = found.path.with_name(f"{found.path.name}.{os.getpid()}.tmp")
    partial.write_text(found.text, encoding=encoding)
    partial.replace(found.path)
    for argv in found.install:
        _ask(argv)


def remove(found: Manager) -> bool:
    """Stop the service and take its description away; False where there was none. Raises: ServiceFailed."""
    if not found.path.exists():
        return False
    _check_present(found)
    for argv in found.remove:
        _ask(argv)
    found.path.unlink(missing_ok=True)
    return True


def status(found: Manager) -> Status:
    """Whether it is installed and runs; asks the manager, changes nothing."""
    installed = found.path.exists()
    running = False
    if installed and installed_program(found.running[0]):
        done = _run(found.running)
        running = done.returncode == 0 and found.running_words in done.stdout
    return Status(manager=found.name, path=found.path, installed=installed, running=running)


def _systemd(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    home = Path(env.get("HOME") or Path.home())
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    unit = f"{NAME}.service"
    user = ("systemctl", "--user")
    words = " ".join(_systemd_word(word) for word in command)
    text = (
        "[Unit]\nDescription=Tessera, a server of local AI models\n\n"
        f"[Service]\nExecStart={words}\nRestart=on-failure\nRestartSec=5\nNoNewPrivileges=true\n\n"
        "[Install]\nWantedBy=default.target\n"
    )
    return Manager(
        name="systemd",
        path=config / "systemd" / "user" / unit,
        text=text,
        install=((*user, "daemon-reload"), (*user, "enable", unit), (*user, "restart", unit)),
        remove=((*user, "disable", "--now", unit),),
        running=(*user, "is-active", unit),
        running_words="active",
        tried=True,
        notes=("It runs while you are logged in; `loginctl enable-linger` keeps it running after that.",),
    )


def _systemd_word(word: str) -> str:
    """A word of ExecStart: quoted, with what systemd would expand doubled. Source: systemd.service(5)."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _launchd(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    home = Path(env.get("HOME") or Path.home())
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    logs = home / "Library" / "Logs" / "tessera-service.log"
    facts = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "StandardErrorPath": str(logs),
    }
    target = f"gui/{os.getuid() if hasattr(os, 'getuid') else 501}"
    return Manager(
        name="launchd",
        path=path,
        text=plistlib.dumps(facts).decode(),
        install=(("launchctl", "bootstrap", target, str(path)), ("launchctl", "kickstart", f"{target}/{LABEL}")),
        remove=(("launchctl", "bootout", f"{target}/{LABEL}"),),
        running=("launchctl", "print", f"{target}/{LABEL}"),
        running_words="state = running",
    )


def _windows(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    base = Path(env.get("LOCALAPPDATA") or Path.home())
    path = base / "tessera" / "service.xml"
    user = escape(f"{env.get('USERDOMAIN', '')}\\{env.get('USERNAME', '')}".lstrip("\\"))
    text = (
        '<?xml version="1.0" encoding="UTF-16"?>\n'
        '<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">\n'
        f"<Triggers><LogonTrigger><UserId>{user}</UserId></LogonTrigger></Triggers>\n"
        f'<Principals><Principal id="user"><UserId>{user}</UserId><LogonType>InteractiveToken</LogonType>'
        "<RunLevel>LeastPrivilege</RunLevel></Principal></Principals>\n"
        "<Settings><MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>"
        "<DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>"
        "<StopIfGoingOnBatteries>false</StopIfGoingOnBatteries><ExecutionTimeLimit>PT0S</ExecutionTimeLimit>"
        "<RestartOnFailure><Interval>PT1M</Interval><Count>3</Count></RestartOnFailure></Settings>\n"
        f'<Actions Context="user"><Exec><Command>{escape(command[0])}</Command>'
        f"<Arguments>{escape(subprocess.list2cmdline(list(command[1:])))}</Arguments></Exec></Actions>\n</Task>\n"
    )
    return Manager(
        name="task scheduler",
        path=path,
        text=text,
        install=(
            ("schtasks", "/Create", "/TN", NAME, "/XML", str(path), "/F"),
            ("schtasks", "/Run", "/TN", NAME),
        ),
        remove=(("schtasks", "/End", "/TN", NAME), ("schtasks", "/Delete", "/TN", NAME, "/F")),
        running=("schtasks", "/Query", "/TN", NAME, "/FO", "LIST"),
        running_words="Running",
    )


def _check_present(found: Manager) -> None:
    program = found.running[0]
    if installed_program(program) is None:
        raise ServiceFailed(
            f"{program} is not here, so {found.name} cannot keep the service; run `tessera serve` from what "
            "starts programs on this system"
        )


def _run(argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    program = installed_program(argv[0])
    if program is None:
        raise ServiceFailed(f"{argv[0]} could not be started: it is not installed")
    try:
        return subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed(f"`{shlex.join(argv)}` gave no answer within {TIMEOUT_S:g} s") from error
    except OSError as error:
        raise ServiceFailed(f"{argv[0]} could not be started: {error.strerror or error}") from error


def _ask(argv: Sequence[str]) -> None:
    done = _run(argv)
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or f"code {done.returncode}, no words"
        raise ServiceFailed(f"`{shlex.join(argv)}` failed: {output}")
