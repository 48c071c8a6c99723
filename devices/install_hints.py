"""Steps that install a missing part, backend or driver, or better kernels, for each system."""

import shlex
import sys
from typing import Final

from devices.child_command import interpreter
from devices.types import System

# Kernel packs that ship with the program, in assets/kernels.
BUNDLED: Final = frozenset({"vulkan-linux-x86_64", "vulkan-windows-x86_64"})
# Kernel packs with a recipe (installers/packs/recipes.py). None is published.
PACKS: Final = frozenset(
    {"cuda-linux-x86_64", "openvino-linux-x86_64", "openvino-windows-x86_64", "rocm-linux-x86_64"}
    | {"sycl-linux-x86_64", "vulkan-linux-x86_64", "vulkan-windows-x86_64"}
)
# Packages (Debian, Ubuntu) that start.py needs in addition to a compiler to build the Vulkan backend.
VULKAN_TOOLS: Final = "glslc, Vulkan headers 1.4 and spirv-headers"
_TOOLKITS: Final = {
    "cuda": ("CUDA", "the CUDA toolkit"),
    "rocm": ("HIP", "ROCm 7.14 or newer"),
    "sycl": ("SYCL", "Intel oneAPI"),
    "opencl": ("OPENCL", "OpenCL headers and loader"),
    "rpc": ("RPC", "a C++ compiler"),
}
_MAKERS_DRIVER: Final = "Install the current driver of the GPU's vendor, then restart"


def add_part(part: str) -> str:
    """The command that adds an extra of pyproject.toml to this installation.

    It names this Python: another environment's pip would install another project's package, which has the same name
    on the package index. An installed program has no pip: the command is for a folder with the sources.
    """
    if getattr(sys, "frozen", False):
        return f"pip install '.[{part}]'"
    return shlex.join(interpreter("-m", "pip", "install", f"tessera[{part}]"))


def rebuild(system: System, *, frozen: bool | None = None) -> str:
    """How to rebuild the shipped libraries. `frozen`: an installed program, which cannot build them."""
    if getattr(sys, "frozen", False) if frozen is None else frozen:
        return "Install Tessera again"
    if system == "windows":
        return "rmdir /s /q .venv && py start.py"
    return "rm -r .venv && python3 start.py"


def platform_of(system: System, arch: str) -> str:
    """A platform as named by packs."""
    names = {"amd64": "x86_64", "arm64": "aarch64"} if system != "windows" else {"amd64": "x86_64"}
    return f"{system}-{names.get(arch.lower(), arch.lower())}"


def missing_backend(  # noqa: PLR0911 - one for each kind of remedy
    backend: str, system: System, arch: str, *, frozen: bool | None = None
) -> str:
    """How to get the library of a backend that some device here could use."""
    again = rebuild(system, frozen=frozen)
    if backend == "cpu":
        return f"Build the CPU kernels again (a C++ compiler is needed): `{again}`."
    if backend == "metal":
        return f"Install Apple's tools (`xcode-select --install`), then build again: `{again}`."
    pack = f"{backend}-{platform_of(system, arch)}"
    if pack in BUNDLED:
        return f"Install the included kernels: `tessera kernels install {pack}`."
    install = (
        f"No kernel pack is published yet. Build {pack} from Tessera's sources (see the page Kernels there), "
        "then pass the file to `tessera kernels install FILE`"
        if pack in PACKS
        else f"There is no kernel pack {pack} yet"
    )
    if backend == "openvino" or (getattr(sys, "frozen", False) if frozen is None else frozen):
        return f"{install}."
    if system == "windows" and backend == "vulkan":  # start.py does not build it there
        return f"{install}."
    build = f"{install}. Or install" if pack in PACKS else "Install"
    if backend == "vulkan":
        return f"{build} {VULKAN_TOOLS} and build again: `python3 start.py`."
    option, toolkit = _TOOLKITS.get(backend, (backend.upper(), "its toolkit"))
    flag = f"-DGGML_{option}=ON"
    start = f"set CMAKE_ARGS={flag}&& py start.py"
    command = start if system == "windows" else f"CMAKE_ARGS={flag} python3 start.py"
    return f"{build} {toolkit} and build again: `{command}`."


def no_device(backend: str, system: System) -> str | None:
    """Advice for a backend that loads but finds no device; None if there is none."""
    if system == "windows":
        return {
            "vulkan": f"{_MAKERS_DRIVER}: it brings Vulkan.",
            "cuda": "Install NVIDIA's driver, then restart; `nvidia-smi` must list the GPU.",
            "rocm": "Install AMD's HIP SDK and the current Adrenalin driver, then restart.",
            "sycl": f"{_MAKERS_DRIVER}, with Intel's oneAPI runtime.",
            "opencl": f"{_MAKERS_DRIVER}: it brings OpenCL.",
            "openvino": f"{_MAKERS_DRIVER}; an NPU's comes from Windows Update.",
        }.get(backend)
    if system == "macos":
        return "This Mac's GPU needs macOS 13 or newer for Metal 3." if backend == "metal" else None
    return {
        "vulkan": "Install a Vulkan driver: Mesa's for AMD and Intel (`mesa-vulkan-drivers` on Debian, Ubuntu and "
        "Fedora, `vulkan-radeon` or `vulkan-intel` on Arch), or NVIDIA's own.",
        "rocm": "Install the ROCm runtime and join the render group: `sudo usermod -aG render $USER`.",
        "cuda": "Install NVIDIA's driver; `nvidia-smi` must list the GPU.",
        "sycl": "Install Intel's compute runtime (`intel-opencl-icd` and `libze1` on Debian and Ubuntu).",
        "openvino": "For a GPU install Intel's compute runtime (`intel-opencl-icd`), for an NPU Intel's driver "
        "(intel-level-zero-npu).",
        "opencl": "Install an OpenCL driver; `clinfo` must list the GPU.",
    }.get(backend)
