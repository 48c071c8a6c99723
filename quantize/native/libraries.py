"""Finds and loads the native libraries of the installed llama-cpp-python."""

import ctypes
import sys
from collections import deque
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from devices.backends.symbols import ggml_functions
from devices.llama_cpp_versions.folder import low_level_bindings
from quantize.files.measurement_folder import identity_of
from quantize.reproducible_math import cpu_library


@cache
def library_dir() -> Path:
    """The folder of libllama, libggml-base and the backend plugins.

    Raises: ModuleNotFoundError: llama-cpp-python is not installed.
    """
    spec = find_spec("llama_cpp")
    # A process that runs models loads the package without its `__init__`, so it has no origin.
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("llama_cpp")
    return Path(spec.submodule_search_locations[0]) / "lib"


@cache
def ggml_base() -> ctypes.CDLL:
    """libggml-base alone: quantize, dequantize, sizes. Loads no backend and no model code."""
    folder = library_dir()
    for name in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll", "libggml-base.dll"):
        path = folder / name
        if path.exists():
            if sys.platform == "win32":
                return ctypes.CDLL(str(path), winmode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    raise FileNotFoundError(str(folder / "libggml-base"))


@cache
def llama_identity() -> str:
    """An identifier that changes when another libllama is installed."""
    own = (p for p in library_dir().iterdir() if p.name.split(".")[0].removeprefix("lib") == "llama")
    return " ".join(identity_of(p) for p in sorted(own))


@cache
def llama() -> ModuleType:
    """The low-level bindings of libllama, with all backend plugins loaded and the log silenced.

    If a CPU library is selected (`cpu_library`), no other backend is loaded, not even a GPU's. Called once per
    process, because `llama_backend_init` is not undone.

    Raises: OSError: the selected library does not work on this computer.
    """
    llama_cpp = low_level_bindings(library_dir().parent)
    llama_cpp.llama_log_set(_LOG, None)
    lib = ggml_functions(llama_cpp._lib, library_dir())  # noqa: SLF001  the bindings offer no public name
    alone = cpu_library()
    if alone is None:
        load = lib.ggml_backend_load_all_from_path
        load.argtypes = [ctypes.c_char_p]
        load.restype = None
        load(str(library_dir()).encode())
    else:
        load_one = lib.ggml_backend_load
        load_one.argtypes = [ctypes.c_char_p]
        load_one.restype = ctypes.c_void_p
        if not load_one(str(alone).encode()):
            raise OSError(f"{alone.name} cannot be used on this CPU")
    llama_cpp.llama_backend_init()
    bindings: ModuleType = llama_cpp
    return bindings


def last_errors() -> tuple[str, ...]:
    """llama.cpp's last error messages, oldest first."""
    return tuple(_ERRORS)


def _print_errors(level: int, text: bytes, user_data: object) -> None:
    """Print and keep errors only; the other messages are useful only to llama.cpp developers."""
    del user_data
    if level == _LOG_ERROR:
        message = text.decode(errors="replace")
        sys.stderr.write(message)
        _ERRORS.append(message.strip())


_ERRORS: deque[str] = deque(maxlen=8)
_LOG_ERROR = 4  # Source: ggml.h, enum ggml_log_level
# a reference, so that it is not garbage-collected
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_print_errors)
