"""What this machine can hold, as far as the library needs to know before anything is loaded."""

import psutil

_FRACTION = 0.8  # the rest is for the system and other programs
_BYTES_PER_PARAMETER = 0.69  # 4.8 bits a weight, and 15 % for context and buffers


def memory_bytes() -> int:
    """Memory that models may use."""
    return int(psutil.virtual_memory().total * _FRACTION)


def largest_parameters() -> float:
    """Parameters of the largest model that fits at about 4.8 bits a weight."""
    return memory_bytes() / _BYTES_PER_PARAMETER
