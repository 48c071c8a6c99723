"""Known backend libraries, and where they are installed."""

import contextlib
import ctypes
import importlib.util
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from devices.llama_cpp_versions.folder import package_folder

LIBRARY = re.compile(r"^(?:lib)?ggml-([a-z0-9_.-]+?)(?:\.so|\.dll|\.dylib)\Z")
NOT_BACKENDS = ("base",)
# Files that change with drivers: the loader's cache, and the lists of Vulkan drivers.
DRIVER_MARKS = ("/etc/ld.so.cache", *(f"{folder}/vulkan/icd.d" for folder in ("/usr/share", "/etc")))


class Backend(msgspec.Struct, frozen=True):
    """One backend: ggml's library stem, and its devices and systems. No vendors means any vendor."""

    name: str
    stem: str
    kinds: frozenset[str]
    vendors: frozenset[str]
    systems: frozenset[str]


_ANY = frozenset({"linux", "windows", "macos"})
_PC = frozenset({"linux", "windows"})
_GPU = frozenset({"igpu", "dgpu"})

# Every backend that a device could use.
BACKENDS: tuple[Backend, ...] = (
    Backend("cpu", "cpu", frozenset({"cpu"}), frozenset(), _ANY),
    Backend("vulkan", "vulkan", _GPU, frozenset(), _PC),
    Backend("rocm", "hip", _GPU, frozenset({"AMD"}), _PC),
    Backend("cuda", "cuda", _GPU, frozenset({"NVIDIA"}), _PC),
    Backend("metal", "metal", _GPU, frozenset({"Apple"}), frozenset({"macos"})),
    Backend("sycl", "sycl", _GPU, frozenset({"Intel"}), _PC),
    Backend("openvino", "openvino", frozenset({"igpu", "dgpu", "npu"}), frozenset({"Intel"}), _PC),
    Backend("opencl", "opencl", _GPU, frozenset({"Qualcomm"}), _PC),
    Backend("rpc", "rpc", frozenset(), frozenset(), _ANY),
    Backend("tiles", "tiles", frozenset(), frozenset(), _PC),
)
# Backends without a device of this machine.
WITHOUT_DEVICE = frozenset({"cpu", "rpc", "tiles"})


def library_folder() -> Path | None:
    """Folder of llama.cpp's libraries, found without importing them; LLAMA_CPP_LIB_PATH overrides."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override:
        return Path(override)
    package = package_folder()
    return package / "lib" if package is not None else None


def ggml_library(folder: Path) -> Path:
    """The registry library in `folder`."""
    for name in ("libggml.so", "libggml.so.0", "ggml.dll", "libggml.dylib", "libggml.0.dylib"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"no ggml library in {folder}")


def built_libraries(folder: Path | None) -> dict[str, tuple[Path, ...]]:
    """Backend name → its libraries: one, or the CPU's variants. Unknown stems are used as names."""
    if folder is None or not folder.is_dir():
        return {}
    names = {backend.stem: backend.name for backend in BACKENDS}
    libraries: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = LIBRARY.match(path.name)
        if match is None or match[1] in NOT_BACKENDS:
            continue
        stem = "cpu" if match[1].startswith("cpu") else match[1]
        libraries.setdefault(names.get(stem, stem), []).append(path)
    return {name: tuple(paths) for name, paths in libraries.items()}


def best_variant(libraries: tuple[Path, ...]) -> Path:
    """The library with the highest score on this CPU, as ggml itself chooses. Loads each of several to compare.

    Raises: OSError: none of them runs here.
    """
    if len(libraries) == 1:
        return libraries[0]
    scores = {}
    for path in libraries:
        try:
            score = ctypes.CDLL(str(path)).ggml_backend_score
        except (OSError, AttributeError):
            scores[path] = 1  # without a score it is the only one of its kind
            continue
        score.restype = ctypes.c_int
        scores[path] = score()
    best = max(scores, key=lambda path: scores[path])
    if scores[best] == 0:
        raise OSError("no variant of this library runs on this CPU")
    return best


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed; does not import it."""
    try:
        return importlib.util.find_spec("onnxruntime") is not None
    except (ImportError, ValueError):
        return False


def file_facts(paths: Iterable[str | Path]) -> list[tuple[str, int, int]]:
    """Path, time of change and size of the files and folders that exist."""
    facts = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            facts.append((str(path), status.st_mtime_ns, status.st_size))
    return facts
