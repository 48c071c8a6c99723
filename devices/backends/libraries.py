"""The backend libraries there could be, where they lie, and how to get one that is missing."""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

LIBRARY = re.compile(r"^(?:lib)?ggml-([a-z0-9_.]+?)(?:\.so|\.dll|\.dylib)$")
NOT_BACKENDS = ("base",)


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend: ggml's library stem, the devices it is for, and what building it needs."""

    name: str
    stem: str
    kinds: frozenset[str]
    vendors: frozenset[str]
    systems: frozenset[str]
    build: str

    @property
    def build_hint(self) -> str:
        """How to get the library. start.py builds CPU and Vulkan; others come in a wheel made elsewhere."""
        if self.name in {"cpu", "vulkan"}:
            return f"Install {self.build}, then build again: `{REBUILD}`."
        return (
            f"Build llama-cpp-python with -DGGML_{self.stem.upper()}=ON (needs {self.build}), then "
            f"`python3 start.py --wheels FOLDER`; see docs/devices.md."
        )


REBUILD = "rm -r .venv && python3 start.py"

_ANY = frozenset({"linux", "windows", "macos"})
_GPU = frozenset({"igpu", "dgpu"})

# Every backend a device could ask for. Vendors are empty where any will do.
BACKENDS: tuple[Backend, ...] = (
    Backend("cpu", "cpu", frozenset({"cpu"}), frozenset(), _ANY, "a C++ compiler"),
    Backend(
        "vulkan",
        "vulkan",
        _GPU,
        frozenset(),
        frozenset({"linux", "windows"}),
        "glslc, Vulkan headers 1.4 and spirv-headers",
    ),
    Backend("rocm", "hip", _GPU, frozenset({"AMD"}), frozenset({"linux", "windows"}), "ROCm 6.4 or newer"),
    Backend("cuda", "cuda", _GPU, frozenset({"NVIDIA"}), frozenset({"linux", "windows"}), "the CUDA toolkit"),
    Backend("metal", "metal", _GPU, frozenset({"Apple"}), frozenset({"macos"}), "the Xcode command line tools"),
    Backend("sycl", "sycl", _GPU, frozenset({"Intel"}), frozenset({"linux", "windows"}), "Intel oneAPI"),
    Backend("opencl", "opencl", _GPU, frozenset({"Qualcomm"}), frozenset({"linux", "windows"}), "OpenCL headers"),
    Backend("rpc", "rpc", frozenset(), frozenset(), _ANY, "nothing more"),
)


def library_folder() -> Path | None:
    """Where llama.cpp's libraries lie, found without importing them; LLAMA_CPP_LIB_PATH overrides."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override:
        return Path(override)
    try:
        spec = importlib.util.find_spec("llama_cpp")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def built_libraries(folder: Path | None) -> dict[str, tuple[Path, ...]]:
    """Backend name → its libraries: one, or the CPU's variants. Unknown stems keep their own name."""
    if folder is None or not folder.is_dir():
        return {}
    names = {backend.stem: backend.name for backend in BACKENDS}
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = LIBRARY.match(path.name)
        if match is None or match[1] in NOT_BACKENDS:
            continue
        stem = "cpu" if match[1].startswith("cpu") else match[1]
        found.setdefault(names.get(stem, stem), []).append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed; it is not imported here."""
    try:
        return importlib.util.find_spec("onnxruntime") is not None
    except (ImportError, ValueError):
        return False
