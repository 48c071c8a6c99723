"""Tessera's own CPU backend (engine/kernels): its library next to llama.cpp's, and the operations it computes."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries

BACKEND: Final = "tiles"
# Name of attention in the list of operations, which otherwise contains weight types.
ATTENTION: Final = "attention"
# Platforms that have them, as named by packs. On Windows they come with the installer (installers/packs).
PLATFORMS: Final = frozenset({"linux-x86_64", "windows-x86_64"})
NO_INSTRUCTIONS: Final = "this CPU lacks AVX2, FMA or F16C"
# Measurements with an earlier version of the kernels do not apply to this one.
VERSION: Final = 6


def tiles_library(folder: Path | None) -> Path | None:
    """The library in llama.cpp's `folder`; None if it was not built. Loads nothing."""
    return next(iter(built_libraries(folder).get(BACKEND, ())), None)


def take(library: Path, type_ids: Iterable[int], *, attention: bool = False) -> frozenset[int]:
    """Enable its products for these types, and its attention, from the next context on.

    Returns the types with kernels on this CPU. Raises: OSError: the library does not load.
    """
    loaded = ctypes.CDLL(str(library))
    loaded.ggml_tiles_attend(ctypes.c_bool(attention))
    function = loaded.ggml_tiles_take
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64
    supported = function(sum(1 << number for number in set(type_ids)))
    return frozenset(number for number in range(64) if supported >> number & 1)
