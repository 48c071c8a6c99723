"""Ends runners with their server: the child watches its parent, and Windows uses a job object.

End of file on the control pipe is the signal on every system. The rest is for a child that is inside a long native
call when its parent dies.
"""

import ctypes
import os
import sys
from typing import Any, ClassVar, Final

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def die_with_parent(parent_pid: int) -> None:
    """Let the system kill this process when its parent exits. Called in the child.

    Linux only; other systems rely on end of file on the control pipe. If the parent is already gone, exit.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent_pid:
        os._exit(0)


def kill_on_close_job() -> int | None:
    """Create a Windows job object that kills its processes when this process exits. None on other systems."""
    if sys.platform == "win32":
        return create()
    return None


def assign_to_job(job: int | None, pid: int) -> None:
    """Put a started child into the job of `kill_on_close_job`; does nothing without a job."""
    if sys.platform == "win32" and job is not None:
        assign(job, pid)


# Windows job objects: children that end with their parent.
# Untested on Windows hardware; follows the documented behaviour of JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE.

_KILL_ON_JOB_CLOSE: Final = 0x2000
_EXTENDED_LIMIT_INFORMATION: Final = 9
_SET_QUOTA_AND_TERMINATE: Final = 0x0101


class _BasicLimits(ctypes.Structure):
    _fields_: ClassVar = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    ]


class _ExtendedLimits(ctypes.Structure):
    _fields_: ClassVar = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


def _kernel32() -> Any:
    loader: Any = ctypes
    return loader.WinDLL("kernel32", use_last_error=True)


def create() -> int:
    """Create a job object whose processes are killed when its last handle, this process's, closes."""
    kernel32 = _kernel32()
    kernel32.CreateJobObjectW.restype = ctypes.c_void_p
    job = int(kernel32.CreateJobObjectW(None, None) or 0)
    limits = _ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
    kernel32.SetInformationJobObject(
        ctypes.c_void_p(job), _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
    )
    return job


def assign(job: int, pid: int) -> None:
    """Put the process `pid` into the job."""
    kernel32 = _kernel32()
    kernel32.OpenProcess.restype = ctypes.c_void_p
    handle = kernel32.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, pid)
    kernel32.AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(handle))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
