"""How fast this machine computes at the moment, for a forecast before any job was done on it."""

import os
import time
from functools import lru_cache

from devices.cores import allowed_cores

# A product of two square matrices of floats: some 10 ms. The best of a few is what the machine can do.
_SIDE = 1024
_ROUNDS = 5
# Of one core while all compute, on the machine of the forecast's table.
# Measured: docs/log.md, "Forecast by the machine's own speed".
_TABLE_FLOPS = 160e9
# Libraries with units for matrices of their own say little of what llama.cpp does without them.
_LEAST, _MOST = 0.5, 16.0
_CACHE_S = 600.0  # what else runs changes in minutes


def slower_than_table() -> float:
    """Seconds that computing takes here for one of the forecast's table. Takes some 50 ms, once in ten minutes."""
    return _probed(int(time.monotonic() / _CACHE_S))


@lru_cache(maxsize=1)
def _probed(_when: int) -> float:
    import numpy as np  # noqa: PLC0415  a process that only asks for help must not load it

    left = np.full((_SIDE, _SIDE), 0.5, dtype=np.float32)
    out = np.empty_like(left)
    np.matmul(left, left, out=out)  # the library's threads are started by the first
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        np.matmul(left, left, out=out)
        seconds.append(time.perf_counter() - started)
    flops = 2 * _SIDE**3 / min(seconds) / _threads()
    return min(max(_TABLE_FLOPS / flops, _LEAST), _MOST)


def _threads() -> int:
    """As many as numpy's library computes with: what it was told, else the cores this process may use."""
    setting = os.environ.get("OPENBLAS_NUM_THREADS", "")
    allowed = allowed_cores()
    return min(int(setting), allowed) if setting.isdecimal() and int(setting) > 0 else allowed
