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
    """Windows: a job object that ends its processes when this process ends. None elsewhere."""
    if sys.platform == "win32":
        from engine.runner import windows_job  # noqa: PLC0415 - exists to run there only

        return windows_job.create()
    return None


def assign_to_job(job: int | None, pid: int) -> None:
    """Put a started child into the job of `kill_on_close_job`; nothing to do where there is none."""
    if sys.platform == "win32" and job is not None:
        from engine.runner import windows_job  # noqa: PLC0415 - exists to run there only

        windows_job.assign(job, pid)
