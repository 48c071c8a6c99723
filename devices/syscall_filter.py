"""A filter of system calls for sandboxes, and the supervisor that answers the calls it cannot judge.

Landlock has no rights for modes, owners and times of files, and none for limits and priorities of processes. A
filter cannot read paths, so the kernel passes such calls to the supervisor. The supervisor does not let them
continue, because another thread could change the path after the check: it opens the file itself, checks where it
lies, and makes the change through its own descriptor.
"""

import ctypes
import errno
import fcntl
import functools
import os
import platform
import select
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Source: seccomp.h, prctl.h, audit.h, bpf_common.h.
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_ALLOW, _REFUSE, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_LOAD, _EQUAL, _ABOVE, _AND, _GIVE = 0x20, 0x15, 0x35, 0x54, 0x06
_X32: Final = 0x40000000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_AT_CWD, _AT_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_PATH_BYTES = 4096
UNIX, INTERNET, _NETLINK = 1, (2, 10), 16
# Families of sockets for a command with a separate network, and with the computer's. In the latter it could also
# reach abstract UNIX sockets of the desktop. Others, such as VSOCK, belong to no network namespace.
CLOSED: Final = (UNIX, *INTERNET, _NETLINK)
OPEN: Final = (*INTERNET, _NETLINK)

Calls = Mapping[str, tuple[int, int | None]]
# Numbers of system calls by architecture; None: it does not have this one. Source: unistd.h of both.
ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_SECCOMP: Final = (317, 277)
_SOCKET, _PAIR, _OPENAT2 = (41, 198), (53, 199), (437, 437)
_NEVER: Final = {
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),  # keys of the user's session, which belong to no namespace
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
}
# Calls that reach shared memory, messages and semaphores of the user's other programs. bubblewrap isolates these.
_SHARED: Final = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# Calls that can create a program that runs with its owner's rights, by the index of the mode. Opening also has
# flags, one index before, and needs the mode only if it creates a file.
_MODES: Final[dict[int, Calls]] = {
    1: {"chmod": (90, None), "fchmod": (91, 52), "creat": (85, None), "mknod": (133, None)},
    2: {"fchmodat": (268, 53), "fchmodat2": (452, 452), "mknodat": (259, 33)},
}
_OPENS: Final[dict[int, Calls]] = {2: {"open": (2, None)}, 3: {"openat": (257, 56)}}
_CREATES, _RUN_AS_OWNER = 0o20000100, 0o4000
_STREAM, _PACKETS, _KIND_OF_SOCKET = 1, 5, 0xF
_ATTRIBUTES: Final = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
}
_FILES: Final = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "file_setattr": (469, 469),
}
# Calls whose path may be missing; they then act on the descriptor.
_BY_DESCRIPTOR: Final = ("fchmod", "fchown", "futimesat", "utimensat")
# The index of the argument that names a process; 0 is the caller itself, or its group.
_PROCESSES: Final = {
    "prlimit64": ((302, 261), 0),
    "setpriority": ((141, 140), 1),
    "ioprio_set": ((251, 30), 1),
    "sched_setparam": ((142, 118), 0),
    "sched_setscheduler": ((144, 119), 0),
    "sched_setaffinity": ((203, 122), 0),
    "sched_setattr": ((314, 274), 0),
}
# First arguments that mean a process or a group; the third kind, a user, has processes besides the command's.
_WHICH: Final = {"setpriority": (0, 1), "ioprio_set": (1, 2)}

Step = tuple[int, int, str, str]


def _numbers(calls: Calls) -> dict[int, str]:
    column = ARCHITECTURES[platform.machine()][1]
    return {number: name for name, row in calls.items() if (number := row[column]) is not None}


@functools.cache
def _file_call(number: int) -> str:
    return _numbers(_FILES).get(number, "")


def _arguments(index: int) -> int:
    """Offset of the low half of an argument in `struct seccomp_data`."""
    return 16 + 8 * index


def _tested(index: int, mask: int, absent: str, present: str) -> list[Step]:
    """Steps that test an argument for any of these bits."""
    return [(_LOAD, _arguments(index), "", ""), (_AND, mask, "", ""), (_EQUAL, 0, absent, present)]


def _plain(index: int) -> list[Step]:
    """Steps that refuse a mode that lets others run the file as its owner."""
    return _tested(index, _RUN_AS_OWNER, "allow", "refuse")


def program(families: Sequence[int], *, supervised: bool = False) -> bytes:
    """The filter's instructions: these families of sockets, and none of the calls above; with a supervisor more.

    Without UNIX sockets there are no pairs of datagram sockets either: one can be connected elsewhere afterwards.
    Empty for an unknown CPU: there is no filter then.
    """
    if platform.machine() not in ARCHITECTURES:
        return b""
    architecture, column = ARCHITECTURES[platform.machine()]
    steps: list[Step] = [
        (_LOAD, 4, "", ""),
        (_EQUAL, architecture, "", "refuse"),
        (_LOAD, 0, "", ""),
        (_ABOVE, _X32, "refuse", ""),
        *((_EQUAL, number, "refuse", "") for number in _numbers(_NEVER)),
    ]
    if supervised:
        steps += [(_EQUAL, number, "unsupported", "") for number in _numbers(_ATTRIBUTES)]
        steps += [(_EQUAL, number, "notify", "") for number in _numbers(_FILES)]
        steps += [(_EQUAL, number, "refuse", "") for number in _numbers(_SHARED)]
        steps += [
            (_EQUAL, row[column], "notify" if argument else "process", "") for row, argument in _PROCESSES.values()
        ]
    # Its mode is in memory, which a filter cannot read; programs use openat if it is missing.
    steps.append((_EQUAL, _OPENAT2[column], "missing", ""))
    for table, name in ((_MODES, "mode"), (_OPENS, "open")):
        for index, calls in table.items():
            steps += [(_EQUAL, number, f"{name} {index}", "") for number in _numbers(calls)]
    if UNIX not in families:
        steps.append((_EQUAL, _PAIR[column], "pair", ""))
    steps += [(_EQUAL, _SOCKET[column], "", "allow"), (_LOAD, _arguments(0), "", "")]
    steps += [(_EQUAL, family, "allow", "") for family in families]
    refuse: Step = (_GIVE, _REFUSE | errno.EACCES, "", "")
    steps.append(refuse)
    labels: dict[str, int] = {}
    blocks: dict[str, list[Step]] = {
        "process": [(_LOAD, _arguments(0), "", ""), (_EQUAL, 0, "allow", "notify")],
        "pair": [
            (_LOAD, _arguments(1), "", ""),
            (_AND, _KIND_OF_SOCKET, "", ""),
            (_EQUAL, _STREAM, "allow", ""),
            (_EQUAL, _PACKETS, "allow", "refuse"),
        ],
        **{f"open {index}": [*_tested(index - 1, _CREATES, "allow", ""), *_plain(index)] for index in _OPENS},
        **{f"mode {index}": _plain(index) for index in _MODES},
        "missing": [(_GIVE, _REFUSE | errno.ENOSYS, "", "")],
        "unsupported": [(_GIVE, _REFUSE | errno.EOPNOTSUPP, "", "")],
        "notify": [(_GIVE, _NOTIFY, "", "")],
        "refuse": [refuse],
        "allow": [(_GIVE, _ALLOW, "", "")],
    }
    for label, block in blocks.items():
        labels[label] = len(steps)
        steps += block

    def far(at: int, label: str) -> int:
        return labels[label] - at - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", what, far(at, yes), far(at, no), value)
        for at, (what, value, yes, no) in enumerate(steps)
    )


def install(families: Sequence[int]) -> int:
    """Install the supervised filter in this process, permanently; return its supervisor's descriptor.

    The process must have given up new privileges before. Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(families, supervised=True)
    buffer = ctypes.create_string_buffer(code)
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    number = _SECCOMP[ARCHITECTURES[platform.machine()][1]]
    listener = libc.syscall(number, _SET_MODE_FILTER, ctypes.c_uint(_NEW_LISTENER | _WAIT_KILLABLE), head)
    if listener < 0:
        raise OSError(ctypes.get_errno(), f"the filter of system calls: {os.strerror(ctypes.get_errno())}")
    return int(listener)


def supervise(listener: int, child: int, writable: Sequence[str]) -> None:
    """Answer the calls of a filter until `child` has ended. Files below `writable` may change, and descendants."""
    roots = tuple(os.path.realpath(path) for path in writable)
    ended = os.pidfd_open(child)
    try:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        poller.register(listener, select.POLLIN)
        while ended not in (ready := dict(poller.poll())):
            if ready[listener] & select.POLLIN:
                _answer_one(listener, roots)
            else:
                poller.unregister(listener)
    finally:
        os.close(ended)


def _answer_one(listener: int, roots: Sequence[str]) -> None:
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return  # the caller was killed before its call was read
    key, pid, _flags, number, _architecture, _address, *arguments = _NOTIFICATION.unpack(buffer)
    value, error, flags = 0, 0, 0
    try:
        if _may_continue(number, arguments):
            flags = _CONTINUE
        else:
            _change_file(_file_call(number), pid, arguments, roots)
    except OSError as failed:
        error = -(failed.errno or errno.EPERM)
    try:
        fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(key, value, error, flags)))
    except OSError:
        return  # the caller was killed meanwhile


def _signed(value: int) -> int:
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _may_continue(number: int, arguments: Sequence[int]) -> bool:
    """Return True for a call about processes of the command; False for one about files. Raises: PermissionError."""
    column = ARCHITECTURES[platform.machine()][1]
    for name, (row, index) in _PROCESSES.items():
        if row[column] != number:
            continue
        if name in _WHICH and _signed(arguments[0]) not in _WHICH[name]:
            raise PermissionError(errno.EPERM, "the processes of a user")
        if (process := _signed(arguments[index])) and not _is_descendant(process):
            raise PermissionError(errno.EPERM, "another program")
        return True
    return False


def _is_descendant(pid: int) -> bool:
    """Return whether a process or thread is a child of this process, at any depth."""
    own = os.getpid()
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        pid = int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])
        if pid == own:
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What a call changes: a path (0: none) from a folder, or the folder's descriptor itself."""

    at: int = _AT_CWD
    path: int = 0
    flags: int = 0
    change: Callable[[str], None]


def _request(name: str, memory: "_Memory", arguments: Sequence[int]) -> _Request:
    """Read the arguments of a call. Raises: OSError: what the call returns."""
    first, second, third, fourth, fifth, _ = arguments
    at = _signed(first)
    requests: dict[str, Callable[[], _Request]] = {
        "chmod": lambda: _Request(path=first, change=_mode(second)),
        "fchmod": lambda: _Request(at=at, change=_mode(second)),
        "fchmodat": lambda: _Request(at=at, path=second, change=_mode(third)),
        "fchmodat2": lambda: _Request(at=at, path=second, flags=fourth, change=_mode(third)),
        "chown": lambda: _Request(path=first, change=_owner(second, third)),
        "lchown": lambda: _Request(path=first, flags=_AT_NOFOLLOW, change=_owner(second, third)),
        "fchown": lambda: _Request(at=at, change=_owner(second, third)),
        "fchownat": lambda: _Request(at=at, path=second, flags=fifth, change=_owner(third, fourth)),
        "utime": lambda: _Request(path=first, change=_times(memory.times(second, "=qq", 0))),
        "utimes": lambda: _Request(path=first, change=_times(memory.times(second, "=qqqq", 1000))),
        "futimesat": lambda: _Request(at=at, path=second, change=_times(memory.times(third, "=qqqq", 1000))),
        "utimensat": lambda: _Request(
            at=at, path=second, flags=fourth, change=_times(memory.times(third, "=qqqq", 1))
        ),
    }
    if name not in requests:
        raise PermissionError(errno.EPERM, name)
    return requests[name]()


def _change_file(name: str, pid: int, arguments: Sequence[int], roots: Sequence[str]) -> None:
    """Make the change that a call requests. Raises: OSError: what the call returns."""
    memory = _Memory(pid)
    request = _request(name, memory, arguments)
    if not request.path and name not in _BY_DESCRIPTOR:
        raise OSError(errno.EFAULT, "the address of an argument")
    opened = _open(memory, request)
    path = Path(f"/proc/self/fd/{opened}")
    try:
        real = str(path.readlink()).removesuffix(" (deleted)")
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
            raise PermissionError(errno.EPERM, real)
        request.change(str(path))
    finally:
        os.close(opened)


class _Memory:
    """The memory and the folders of the process that made a call."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def read(self, address: int, count: int) -> bytes:
        """Up to `count` bytes from `address`, at least one. Raises: OSError."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - unbuffered
            try:
                memory.seek(address)
                got = memory.read(count)
            except (OSError, OverflowError, ValueError) as error:
                raise OSError(errno.EFAULT, "the address of an argument") from error
        if not got:
            raise OSError(errno.EFAULT, "the address of an argument")
        return got

    def path(self, address: int) -> bytes:
        """A path, read page by page because the next page may not exist. Raises: OSError."""
        text = b""
        while b"\0" not in text and len(text) < _PATH_BYTES:
            here = address + len(text)
            text += self.read(here, 4096 - here % 4096)
        path, end, _ = text.partition(b"\0")
        if not end or len(path) >= _PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, "the path of a call")
        return path

    def times(self, address: int, form: str, nanoseconds: int) -> bytes | None:
        """Two times as `struct timespec`; None means now. `nanoseconds`: what the second number counts in."""
        if not address:
            return None
        size = struct.calcsize(form)
        got = self.read(address, size)
        if len(got) < size:
            raise OSError(errno.EFAULT, "the address of an argument")
        values = struct.unpack(form, got)
        if not nanoseconds:
            return struct.pack("=qqqq", values[0], 0, values[1], 0)
        return struct.pack("=qqqq", values[0], values[1] * nanoseconds, values[2], values[3] * nanoseconds)


def _open(memory: _Memory, request: _Request) -> int:
    """Open what a call names, as that process would, without rights to its content. Raises: OSError."""
    if _root(memory.pid) != _own_root():
        raise PermissionError(errno.EPERM, "a process with another root folder")
    here = f"/proc/{memory.pid}/cwd" if request.at == _AT_CWD else f"/proc/{memory.pid}/fd/{request.at}"
    name = memory.path(request.path) if request.path else b""
    if request.path and not name and not request.flags & _AT_EMPTY_PATH:
        raise FileNotFoundError(errno.ENOENT, "")
    for own in (b"/proc/self/", b"/proc/thread-self/"):
        if name.startswith(own):
            name = b"/proc/%d/" % memory.pid + name.removeprefix(own)
    how = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if request.flags & _AT_NOFOLLOW else 0)
    if name.startswith(b"/"):
        return os.open(name, how)
    base = os.open(here, os.O_PATH | os.O_CLOEXEC)
    if not name:
        return base
    try:
        return os.open(name, how, dir_fd=base)
    finally:
        os.close(base)


def _root(pid: int) -> tuple[int, int, str]:
    """Identity of the root folder and the mounts that a process sees. Raises: OSError."""
    facts = Path(f"/proc/{pid}/root").stat()
    return facts.st_dev, facts.st_ino, os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - no file lies there


@functools.cache
def _own_root() -> tuple[int, int, str]:
    return _root(os.getpid())


def _mode(mode: int) -> Callable[[str], None]:
    if mode & _RUN_AS_OWNER:
        raise PermissionError(errno.EPERM, "others would run the file as its owner")
    return lambda path: Path(path).chmod(mode & 0o7777)


def _owner(user: int, group: int) -> Callable[[str], None]:
    return lambda path: os.chown(path, _signed(user), _signed(group))


def _times(times: bytes | None) -> Callable[[str], None]:
    def change(path: str) -> None:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        if libc.utimensat(_AT_CWD, path.encode(), times, 0) < 0:
            raise OSError(ctypes.get_errno(), "utimensat")

    return change
