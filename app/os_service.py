"""Run the server as a user service: starts at log-in, restarts after a crash, needs no administrator.

Uses systemd's user manager on Linux, launchd on macOS and the task scheduler on Windows. Only systemd was tested.
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

from app.server_process import END_S
from devices.atomic_file import write_atomically
from devices.environment import absolute_folders, sounds_secret
from devices.programs import installed_program

NAME: Final = "tessera"
LABEL: Final = "io.github.tessera.Tessera"
# A service manager kills a server that has not ended after this many seconds, which the server may need to store
# prefixes.
_STOP_S: Final = round(END_S)
# Service managers answer within one second, but systemd waits for a server that is being stopped.
TIMEOUT_S: Final = _STOP_S + 30.0
# Variables of the installing shell that the service manager does not have, as names or prefixes: paths of folders
# and programs, settings, and the use of network and devices.
_PASSED: Final = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
    | {"NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "RYZENAI_EP_PATH"}
    | {"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"}
)
_PASSED_BEGINNINGS: Final = ("TESSERA_", "HF_", "GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "VK_", "ZE_", "OMP_")
# These select the terminal's server and a server's own log. They are not settings of a service.
_NOT_PASSED: Final = frozenset({"TESSERA_SERVER", "TESSERA_KEY", "TESSERA_OWN_LOG"})
# Windows sets it for every program of the user.
_WINDOWS_OWN: Final = frozenset({"PATH"})


class ServiceFailed(Exception):
    """The service manager is missing or failed; the message contains its output and what to do."""


@dataclass(frozen=True, slots=True)
class Manager:
    """A system's service manager: the file that describes the service, and the commands that control it."""

    name: str
    path: Path
    text: str
    install: tuple[tuple[str, ...], ...]
    remove: tuple[tuple[str, ...], ...]
    running: tuple[str, ...]
    restart: tuple[tuple[str, ...], ...] = ()
    running_words: str = ""
    tried: bool = False
    notes: tuple[str, ...] = field(default=())
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """State of the service; `path` is its description file."""

    manager: str
    path: Path
    installed: bool
    running: bool


def manager(command: Sequence[str], system: str = sys.platform, env: Mapping[str, str] = os.environ) -> Manager:
    """The service manager of this system, for a server started by `command`.

    Raises: ServiceFailed: no service manager is known for this system.
    """
    if system == "win32":
        return _windows(command, env)
    if system == "darwin":
        return _launchd(command, env)
    if system.startswith("linux"):
        return _systemd(command, env)
    raise ServiceFailed(f"no service manager is known for {system}; run `tessera serve` from your own")


def passed_variables(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables to pass to a service, and the names of those omitted because they look like secrets."""
    requested = {
        name: value
        for name, value in sorted(env.items())
        if (name.upper() in _PASSED or name.startswith(_PASSED_BEGINNINGS)) and name not in _NOT_PASSED
    }
    # The manager's tools show a service description to every user.
    passed = {
        name: value
        for name, value in (requested | absolute_folders(requested)).items()
        if value.isprintable() and not sounds_secret(name)
    }
    return passed, tuple(name for name in requested if name not in passed)


def install(service: Manager) -> None:
    """Write the description and start the service; a second call applies new options. Raises: ServiceFailed."""
    _check_present(service)
    is_new = not service.path.exists()
    service.path.parent.mkdir(parents=True, exist_ok=True)
    encoding = "utf-16" if service.name == "task scheduler" else "utf-8"  # schtasks reads XML only in UTF-16
    write_atomically(service.path, service.text.encode(encoding), mode=0o600)  # a proxy URL may contain a password
    try:
        for argv in service.install:
            _run_checked(argv)
    except ServiceFailed:
        if is_new:
            service.path.unlink(missing_ok=True)
        raise


def remove(service: Manager) -> bool:
    """Stop the service and delete its description; return False if there was none. Raises: ServiceFailed."""
    if not service.path.exists():
        return False
    _check_present(service)
    for argv in service.remove:
        _run_checked(argv)
    service.path.unlink(missing_ok=True)
    return True


def restart(service: Manager) -> None:
    """Restart the server, for example after settings have changed. Raises: ServiceFailed."""
    if not service.path.exists():
        raise ServiceFailed("it is not installed; `tessera service install` does that")
    _check_present(service)
    for argv in service.restart:
        _run_checked(argv)


def status(service: Manager) -> Status:
    """Query the manager for whether the service is installed and running; changes nothing."""
    installed = service.path.exists()
    running = False
    if installed and installed_program(service.running[0]):
        done = _run(service.running)
        running = done.returncode == 0 and service.running_words in done.stdout
    return Status(manager=service.name, path=service.path, installed=installed, running=running)


def _systemd(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    home = Path(env.get("HOME") or Path.home())
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    unit = f"{NAME}.service"
    user = ("systemctl", "--user")
    words = " ".join(_systemd_word(word) for word in command)
    variables, _ = passed_variables(env)
    lines = [f"Environment={_systemd_text(f'{name}={value}')}\n" for name, value in variables.items()]
    folder = _folder_of(command)
    if folder is not None:  # with the minus, systemd starts the server even if the folder no longer exists
        lines.append(f"WorkingDirectory=-{folder.replace('%', '%%')}\n")
    text = (
        "[Unit]\nDescription=Tessera, a server of local AI models\n\n"
        f"[Service]\n{''.join(lines)}ExecStart={words}\nRestart=on-failure\nRestartSec=5\n"
        f"TimeoutStopSec={_STOP_S}\nNoNewPrivileges=true\n\n"
        "[Install]\nWantedBy=default.target\n"
    )
    return Manager(
        name="systemd",
        path=config / "systemd" / "user" / unit,
        text=text,
        install=((*user, "daemon-reload"), (*user, "enable", unit), (*user, "restart", unit)),
        remove=((*user, "disable", "--now", unit),),
        running=(*user, "is-active", unit),
        restart=((*user, "restart", unit),),
        running_words="active",
        tried=True,
        variables=variables,
        notes=("It runs while you are logged in; `loginctl enable-linger` keeps it running after that.",),
    )


def _folder_of(command: Sequence[str]) -> str | None:
    """The working folder that relative paths in the options need; None if there are no relative paths."""
    arguments = [part for word in command[1:] for part in (word, word.partition("=")[2])]
    if any(word and not Path(word).is_absolute() and Path(word).exists() for word in arguments):
        return str(Path.cwd())
    return None


def _systemd_text(text: str) -> str:
    """Quote for systemd and escape what it would expand. Source: systemd.exec(5)."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _systemd_word(word: str) -> str:
    """Quote a word of ExecStart, in which systemd also expands variables. Source: systemd.service(5)."""
    return _systemd_text(word).replace("$", "$$")


def _launchd(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    home = Path(env.get("HOME") or Path.home())
    path = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    logs = home / "Library" / "Logs" / "tessera-service.log"
    variables, _ = passed_variables(env)
    folder = _folder_of(command)
    facts = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": variables,
        **({"WorkingDirectory": folder} if folder is not None else {}),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": _STOP_S,
        "StandardErrorPath": str(logs),
    }
    target = f"gui/{os.getuid() if hasattr(os, 'getuid') else 501}"
    return Manager(
        name="launchd",
        path=path,
        text=plistlib.dumps(facts).decode(),
        install=(("launchctl", "bootstrap", target, str(path)), ("launchctl", "kickstart", f"{target}/{LABEL}")),
        remove=(("launchctl", "bootout", f"{target}/{LABEL}"),),
        variables=variables,
        running=("launchctl", "print", f"{target}/{LABEL}"),
        restart=(("launchctl", "kickstart", "-k", f"{target}/{LABEL}"),),
        running_words="state = running",
    )


def _windows(command: Sequence[str], env: Mapping[str, str]) -> Manager:
    base = Path(env.get("LOCALAPPDATA") or Path.home())
    path = base / "tessera" / "service.xml"
    variables, _ = passed_variables(
        {name: value for name, value in env.items() if name.upper() not in _WINDOWS_OWN}
    )
    program, arguments = command[0], subprocess.list2cmdline(list(command[1:]))
    if variables:  # a scheduled task cannot set environment variables
        sets = "&&".join(f'set "{name}={value}"' for name, value in variables.items())
        program, arguments = "cmd.exe", f'/d /s /c "{sets}&&{subprocess.list2cmdline(list(command))}"'
    folder = _folder_of(command)
    place = f"<WorkingDirectory>{escape(folder)}</WorkingDirectory>" if folder is not None else ""
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
        f'<Actions Context="user"><Exec><Command>{escape(program)}</Command>'
        f"<Arguments>{escape(arguments)}</Arguments>{place}</Exec></Actions>\n</Task>\n"
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
        variables=variables,
        running=("schtasks", "/Query", "/TN", NAME, "/FO", "LIST"),
        restart=(("schtasks", "/End", "/TN", NAME), ("schtasks", "/Run", "/TN", NAME)),
        running_words="Running",
    )


def _check_present(service: Manager) -> None:
    program = service.running[0]
    if installed_program(program) is None:
        raise ServiceFailed(
            f"{program} is not here, so {service.name} cannot keep the service; run `tessera serve` from what "
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


def _run_checked(argv: Sequence[str]) -> None:
    done = _run(argv)
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or f"code {done.returncode}, no words"
        if "connect to" in output and "bus" in output:  # systemd has no manager for this user now
            output += ". Services need a login of this user: not by su or sudo, and not in a container"
        raise ServiceFailed(f"`{shlex.join(argv)}` failed: {output}")
