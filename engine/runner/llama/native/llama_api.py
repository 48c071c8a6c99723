"""The low-level llama.cpp API without the rest of the package: no high-level class, no disk cache import."""

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devices.backends import cpu_kernels as own_tiles
from devices.backends import openvino
from devices.backends.libraries import best_variant, built_libraries
from devices.backends.symbols import ggml_functions
from devices.errors import EngineVersionRefused
from devices.kernel_packs.folder import active_libraries
from devices.llama_cpp_versions.folder import LOW_LEVEL, low_level_bindings, package_folder
from engine.runner.llama.native import log
from quantize.ggml_types import GgmlType


class KernelsMissing(ImportError):
    """llama-cpp-python is not installed, or its libraries do not load; the message says which."""


def load_api() -> Any:
    """Import `llama_cpp.llama_cpp` without running the package's `__init__`. Raises: KernelsMissing."""
    if LOW_LEVEL in sys.modules:
        return sys.modules[LOW_LEVEL]
    try:
        folder = package_folder()
    except EngineVersionRefused as error:
        raise KernelsMissing(str(error)) from error
    if folder is None:
        raise KernelsMissing("llama-cpp-python is not installed; run start.py again to build it")
    try:
        return low_level_bindings(folder)
    except (OSError, RuntimeError) as error:
        raise KernelsMissing(f"the llama.cpp libraries do not load: {error}") from error


def library_folder() -> Path:
    """Return the folder with libllama, libggml and the backend plugins."""
    api = load_api()
    return Path(api.__file__).parent / "lib"


def ggml(api: Any) -> Any:
    """Return ggml's own functions, which the package wraps only in part."""
    return ggml_functions(api._lib, library_folder())  # noqa: SLF001 - the one shared handle


def start_backends(
    devices: Sequence[str] = (),
    cache: Path | None = None,
    tiles: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> Any:
    """Load all backend plugins next to libllama and those of kernel packs, then start llama.cpp.

    Returns the API module. OpenVINO is loaded only if `devices` names one of its devices; `cache` is its folder for
    compiled models. Tessera's own kernels are loaded only for `tiles`, the computations they should do; every
    context of this process then uses them. `variables` are set first; empty ones are removed.
    Raises: KernelsMissing: OpenVINO does not offer that device now.

    The symbol comes from libllama's own handle: wheels have no symlinks, so opening libggml by name would map a
    second copy with its own registry. Without plugins (a static build) the backends are built in.
    """
    for name, _, value in (variable.partition("=") for variable in variables):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    api = load_api()
    packs = active_libraries()
    target = openvino.target_of(devices)
    if target:
        _prepare_openvino(packs, target, cache)
    else:
        packs.pop(openvino.BACKEND, None)
    lib = ggml(api)
    if packs and hasattr(lib, "ggml_backend_load"):
        lib.ggml_backend_load.restype = ctypes.c_void_p
        built = built_libraries(library_folder()) | packs
        built.pop(own_tiles.BACKEND, None)
        for path in load_order(built):
            if not lib.ggml_backend_load(str(path).encode()):
                sys.stderr.write(f"{path} did not load\n")
    elif hasattr(lib, "ggml_backend_load_all_from_path"):
        lib.ggml_backend_load_all_from_path(str(library_folder()).encode())
    if tiles:
        _start_tiles(lib, tiles)
    log.listen(api)
    api.llama_backend_init()
    return api


def _start_tiles(lib: Any, kernels: Sequence[str]) -> None:
    """Load Tessera's own CPU kernels. If they do not load, llama.cpp's kernels compute the same."""
    path = own_tiles.tiles_library(library_folder())
    if path is None:
        return
    lib.ggml_backend_load.restype = ctypes.c_void_p
    if lib.ggml_backend_load(str(path).encode()):
        types = [GgmlType[name] for name in kernels if name != own_tiles.ATTENTION]
        own_tiles.take(path, types, attention=own_tiles.ATTENTION in kernels)
    else:
        sys.stderr.write(f"{path} did not load\n")


def _prepare_openvino(packs: Mapping[str, tuple[Path, ...]], target: str, cache: Path | None) -> None:
    """Select OpenVINO's device by environment variables; a missing device would silently become the CPU."""
    paths = packs.get(openvino.BACKEND)
    if not paths:
        raise KernelsMissing("the OpenVINO kernel pack is not installed")
    device_name = f"{openvino.PREFIX}{target}"
    try:
        names = [device.name for device in openvino.offered(paths[0].parent)]
    except OSError as error:
        raise KernelsMissing(f"OpenVINO does not load: {error}") from error
    if device_name not in names:
        raise KernelsMissing(f"OpenVINO offers no {device_name} now (it offers {', '.join(names) or 'none'})")
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        openvino.trim(cache)
    os.environ.update(openvino.environment(target, cache))


def load_order(libraries: Mapping[str, tuple[Path, ...]]) -> list[Path]:
    """Return one library per backend, the best variant for this CPU; the CPU backend comes last, as in ggml."""
    names = sorted(libraries, key=lambda name: (name == "cpu", name))
    return [best_variant(libraries[name]) for name in names]
