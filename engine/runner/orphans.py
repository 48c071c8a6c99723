"""No runner outlives its server: the child watches its parent, and Windows ties both with a job object.

End of file on the control pipe is the signal on every system; the rest covers a child that is deep inside a
native call when its parent dies.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def die_with_parent(parent_pid: int) -> None:
    """Called in the child: ask the system to end this process when its parent ends.

    Linux only; elsewhere end of file on the control pipe does it. The parent may already be gone: then leave.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if sys.platform != "win32" and os.getppid() != parent_pid:
        os._exit(0)


def kill_on_close_job() -> int | None:
    """Windows: a job object that ends its processes when this process ends. None elsewhere.

    Untested on Windows hardware; follows the documented JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE behaviour.
    """
    if sys.platform != "win32":
        return None

    class BasicLimits(ctypes.Structure):
        _fields_ = [
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

    class ExtendedLimits(ctypes.Structure):
        _fields_ = [
            ("BasicLimitInformation", BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    kernel32 = ctypes.windll.kernel32
    kernel32.CreateJobObjectW.restype = ctypes.c_void_p
    job: int = kernel32.CreateJobObjectW(None, None)
    limits = ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = 0x2000  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    extended_limit_information = 9
    kernel32.SetInformationJobObject(
        ctypes.c_void_p(job), extended_limit_information, ctypes.byref(limits), ctypes.sizeof(limits)
    )
    return job


def assign_to_job(job: int | None, pid: int) -> None:
    """Put a started child into the job of `kill_on_close_job`; nothing to do where there is none."""
    if sys.platform != "win32" or job is None:
        return
    kernel32 = ctypes.windll.kernel32
    kernel32.OpenProcess.restype = ctypes.c_void_p
    set_quota_and_terminate = 0x0101
    handle = kernel32.OpenProcess(set_quota_and_terminate, False, pid)
    kernel32.AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(handle))
    kernel32.CloseHandle(ctypes.c_void_p(handle))
