"""Arithmetic with identical results on every CPU of the same architecture level, for portable plans.

Floating-point sums depend on their order, and the order depends on the width of the CPU's instructions: llama.cpp,
OpenBLAS and numpy each choose kernels for the CPU they run on. On request, a child process does not use the wider
ones.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries, library_folder

# AVX2, FMA and F16C: supported by nearly all x86 CPUs of the last ten years.
PORTABLE: Final = "x86-64-v3"
_VARIANT: Final = "cpu-haswell"  # the ggml CPU backend library for exactly this level
_BLAS: Final = "Haswell"  # Source: OpenBLAS, driver/others/dynamic.c, corename
_WIDER: Final = ("X86_V4", "AVX512", "AVX10")  # Source: numpy, meson_cpu/x86/meson.build
_LIBRARY: Final = "TESSERA_CPU_LIBRARY"


def arithmetic_here() -> str:
    """`PORTABLE` if this installation and CPU support it, otherwise "".

    A llama.cpp that was compiled for one CPU lacks the CPU variants, and on other systems numpy's BLAS lacks them.
    """
    import numpy as np

    built = np.show_config(mode="dicts")
    blas = str(built.get("Build Dependencies", {}).get("blas", {}).get("name", ""))
    extensions = built.get("SIMD Extensions", {}).get("found", [])
    return PORTABLE if "openblas" in blas and "X86_V3" in extensions and _library() is not None else ""


def environment_of(request: Mapping[str, object] | object) -> dict[str, str]:
    """Environment variables for the child process, for the arithmetic in the request (or a nested one)."""
    for part in ("round", "measure"):
        request = getattr(request, part, request)
    if getattr(request, "arithmetic", "") != PORTABLE:
        return {}
    import numpy as np

    extensions = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    wider = " ".join(name for name in extensions if name.startswith(_WIDER))
    library = _library()
    return {
        "OPENBLAS_CORETYPE": _BLAS,
        **({"NPY_DISABLE_CPU_FEATURES": wider} if wider else {}),
        **({_LIBRARY: str(library)} if library else {}),
    }


def cpu_library() -> Path | None:
    """The ggml CPU backend library that this child process must use; None: the fastest one."""
    path = os.environ.get(_LIBRARY)
    return Path(path) if path else None


def _library() -> Path | None:
    if sys.platform == "darwin":
        return None
    libraries = built_libraries(library_folder()).get("cpu", ())
    return next((path for path in libraries if path.stem.endswith(_VARIANT)), None)
