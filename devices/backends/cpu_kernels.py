"""Our own backend on the processor (engine/kernels): its library beside llama.cpp's, and what it computes."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries

BACKEND: Final = "tiles"
# What it computes beside products of weights, among whose types this stands.
ATTENTION: Final = "attention"
# What was measured with kernels of an earlier number says nothing of these.
VERSION: Final = 3


def tiles_library(folder: Path | None) -> Path | None:
    """The library in llama.cpp's `folder`; None: it was not built. Nothing is loaded."""
    return next(iter(built_libraries(folder).get(BACKEND, ())), None)


def take(library: Path, type_ids: Iterable[int], *, attention: bool = False) -> frozenset[int]:
    """Let it compute products of these types, and attention, from the next context on.

    Returns the types it has kernels for here. Raises: OSError: the library does not load.
    """
    loaded = ctypes.CDLL(str(library))
    loaded.ggml_tiles_attend(ctypes.c_bool(attention))
    function = loaded.ggml_tiles_take
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64
    supported = function(sum(1 << number for number in set(type_ids)))
    return frozenset(number for number in range(64) if supported >> number & 1)
