"""What this machine can hold, as far as the library needs to know before anything is loaded."""

import psutil

from engine.library.hub.plan import Judge
from engine.paths import user_paths

_SHARE = 0.8  # the rest is for the system and other programs
_BYTES_PER_PARAMETER = 0.69  # 4.8 bits a weight, and 15 % for context and buffers


def memory_bytes() -> int:
    """Memory that models may use."""
    return int(psutil.virtual_memory().total * _SHARE)


def largest_parameters() -> float:
    """Parameters of the largest model that fits at about 4.8 bits a weight."""
    return memory_bytes() / _BYTES_PER_PARAMETER


def machine_judge() -> Judge | None:
    """The judge of fit and speed for this machine."""
    from engine.dispatch.verdict import judge_for  # noqa: PLC0415 - reads the machine, which few callers need

    return judge_for(user_paths())
