"""Runs a command confined by the kernel: Landlock for files, a filter of system calls for everything else.

Runs as a child: it starts the restricted command, answers the calls that the filter passes on, and in the end kills
everything that the command left running. Rules can only add permissions; the caller checks afterwards that
protected files in a writable folder are unchanged.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from devices import syscall_filter

# Source: linux/landlock.h; the numbers of its calls are the same on all CPUs.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_SCOPES = 3  # signals and abstract sockets of processes outside
# Truncating is only refused from version 3 on (Linux 6.2), signals to other programs from version 6 on (6.12).
_LEAST_VERSION: Final = 3
SCOPED_VERSION: Final = 6
_HANDLED: Final = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
# Source: prctl.h, capability.h.
_NO_NEW_PRIVS, _DEATH_SIGNAL, _SUBREAPER, _DROP, _IS_KNOWN = 38, 1, 36, 24, 23
_CAPABILITIES_V3, _SET = 0x20080522, {"x86_64": 126, "aarch64": 91}
# Capabilities that root needs for files of a project that belong to other users, as in containers: CHOWN,
# DAC_OVERRIDE, FOWNER, SETGID, SETUID. With the others it could make devices, set the clock, or load kernel
# modules.
_FILE_RIGHTS: Final = (0, 1, 3, 6, 7)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Files of installed programs, on any distribution.
SYSTEM_FOLDERS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
)
# Without a PID namespace, the rest of /proc would show other programs' arguments, which may contain keys.
PROC: Final = tuple(
    f"/proc/{name}"
    for name in ("self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")
)
_NOT_STARTED = 127


def version() -> int:
    """Landlock's version here; 0 if it cannot be used."""
    if sys.platform != "linux" or platform.machine() not in syscall_filter.ARCHITECTURES:
        return 0
    abi = _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    return abi if abi >= _LEAST_VERSION else 0


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict(readable: Sequence[str], writable: Sequence[str], *, network: bool) -> int:
    """Restrict this process and its children to these paths, permanently; return the filter's descriptor.

    Sockets are refused; with network access, all except internet sockets: a socket of the desktop is a way out.
    Raises: OSError.
    """
    libc, abi = _libc(), version()
    if not abi:
        raise OSError(errno.ENOSYS, "Landlock is not here")
    handled = _HANDLED[5 if abi >= 5 else 3]  # noqa: PLR2004 - the first version that handles ioctl
    facts = struct.pack("=QQQ", handled, 0, _SCOPES if abi >= SCOPED_VERSION else 0)
    size = {3: 8, 4: 16, 5: 16}.get(abi, 24)
    rules = _check(libc.syscall(_CREATE, facts, ctypes.c_size_t(size), ctypes.c_uint32(0)), "a set of rules")
    for paths, rights in ((readable, _READ), (_DEVICES, _READ_FILE | _WRITE_FILE), (writable, handled)):
        for path in paths:
            _add(libc, rules, path, rights & handled)
    _drop_capabilities(libc)
    _check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _check(libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)), "the rules")
    os.close(rules)
    return syscall_filter.install(syscall_filter.OPEN if network else ())


def _drop_capabilities(libc: Any) -> None:
    """Drop root's rights except those for files; other users have none."""
    number = 0
    while libc.prctl(_IS_KNOWN, number, 0, 0, 0) >= 0:
        if number not in _FILE_RIGHTS:
            libc.prctl(_DROP, number, 0, 0, 0)  # refused to other users
        number += 1
    call = _SET[platform.machine()]
    head, now = struct.pack("=Ii", _CAPABILITIES_V3, 0), ctypes.create_string_buffer(24)
    _check(libc.syscall(call - 1, head, now), "the capabilities")
    allowed = sum(1 << number for number in _FILE_RIGHTS)
    low = [value & allowed for value in struct.unpack("=6I", now.raw)[:3]]
    _check(libc.syscall(call, head, struct.pack("=6I", *low, 0, 0, 0)), "the capabilities")


def _add(libc: Any, rules: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    if not Path(path).is_dir():
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, opened)
    _check(libc.syscall(_ADD, rules, _PATH_BENEATH, rule, ctypes.c_uint32(0)), path)
    os.close(opened)


def main() -> None:
    """Start `argv` of the argument's JSON, restricted; exit with its code."""
    rules = json.loads(sys.argv[1])
    libc = _libc()
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        _become(rules, theirs)
    theirs.close()
    with ours:
        _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    for listener in listeners:  # empty if the command could not be restricted
        syscall_filter.supervise(listener, child, rules["writable"])
    _, status = os.waitpid(child, 0)
    _kill_orphans()
    sys.exit(os.waitstatus_to_exitcode(status) % 256)


def _become(rules: dict[str, Any], supervisor: socket.socket) -> None:
    try:
        _libc().prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for name in rules["hidden"]:
            os.environ.pop(name, None)
        os.environ |= rules["variables"]
        os.chdir(rules["folder"])
        listener = restrict(rules["readable"], rules["writable"], network=rules["network"])
        socket.send_fds(supervisor, [b"f"], [listener])
        os.close(listener)
        supervisor.close()
        os.execvp(rules["argv"][0], rules["argv"])  # noqa: S606 - the user saw and allowed it
    except OSError as error:
        sys.stderr.write(f"{rules['argv'][0]}: {error.strerror}\n")
    finally:
        os._exit(_NOT_STARTED)


def _kill_orphans() -> None:
    """Kill orphaned processes, which are now children of this process."""
    while True:
        listed = Path("/proc/thread-self/children").read_text(encoding="ascii").split()
        for pid in map(int, listed):
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
