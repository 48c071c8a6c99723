"""How many processors this process may use."""

import os


def allowed_cores() -> int:
    """Logical processors within the affinity mask, where a system has one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
