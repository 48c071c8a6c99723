"""Our own backend for prompts (installers/tiles): its library beside llama.cpp's, and the types it takes."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries

BACKEND: Final = "tiles"


def tiles_library(folder: Path | None) -> Path | None:
    """The library in llama.cpp's `folder`; None: it was not built. Nothing is loaded."""
    return next(iter(built_libraries(folder).get(BACKEND, ())), None)


def take(library: Path, type_ids: Iterable[int]) -> frozenset[int]:
    """Let it compute products of these types from the next context on; returns those it has kernels for here.

    Raises: OSError: the library does not load.
    """
    function = ctypes.CDLL(str(library)).ggml_tiles_take
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64
    known = function(sum(1 << number for number in set(type_ids)))
    return frozenset(number for number in range(64) if known >> number & 1)
