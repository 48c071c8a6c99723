"""Arithmetic that comes out the same on every processor of a kind, for plans that travel.

Sums of floats depend on their order, and that on the width of a CPU's instructions: llama.cpp, OpenBLAS and
numpy each pick kernels for the CPU they run on. A child that is told to leaves the wider ones alone.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devices.backends.libraries import built_libraries, library_folder

# AVX2, FMA and F16C: what CPUs of the last ten years have in common.
PORTABLE: Final = "x86-64-v3"
_VARIANT: Final = "cpu-haswell"  # the library of ggml's CPU backend that needs no more
_BLAS: Final = "Haswell"  # Source: OpenBLAS, driver/others/dynamic.c, corename
_WIDER: Final = ("X86_V4", "AVX512", "AVX10")  # Source: numpy, meson_cpu/x86/meson.build
_LIBRARY: Final = "TESSERA_CPU_LIBRARY"


def arithmetic_here() -> str:
    """`PORTABLE` where this installation and processor have it, otherwise "".

    A llama.cpp that was compiled for one CPU has none of the variants, and other systems' BLAS none either.
    """
    import numpy as np  # noqa: PLC0415  the parent of a child that measures may do without it

    built = np.show_config(mode="dicts")
    blas = str(built.get("Build Dependencies", {}).get("blas", {}).get("name", ""))
    found = built.get("SIMD Extensions", {}).get("found", [])
    return PORTABLE if "openblas" in blas and "X86_V3" in found and _library() is not None else ""


def environment_of(request: Mapping[str, object] | object) -> dict[str, str]:
    """What a child needs in its environment for the arithmetic that its request, or one within, asks for."""
    for part in ("round", "measure"):
        request = getattr(request, part, request)
    if getattr(request, "arithmetic", "") != PORTABLE:
        return {}
    import numpy as np  # noqa: PLC0415

    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    wider = " ".join(name for name in found if name.startswith(_WIDER))
    library = _library()
    return {
        "OPENBLAS_CORETYPE": _BLAS,
        **({"NPY_DISABLE_CPU_FEATURES": wider} if wider else {}),
        **({_LIBRARY: str(library)} if library else {}),
    }


def cpu_library() -> Path | None:
    """The one library of ggml's CPU backend that this child shall compute with; None: the best one."""
    named = os.environ.get(_LIBRARY)
    return Path(named) if named else None


def _library() -> Path | None:
    if sys.platform == "darwin":
        return None
    libraries = built_libraries(library_folder()).get("cpu", ())
    return next((path for path in libraries if path.stem.endswith(_VARIANT)), None)
