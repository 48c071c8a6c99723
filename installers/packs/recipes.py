"""What each pack is built with. A recipe that was never run says so in `tried`."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Recipe:
    """One pack: ggml's backend and CMake `target`, its `flags`, the `tools` it takes, and what it `needs`.

    `needs` are libraries of the machine that uses the pack, each with the words that say how to get it. `toolchain`
    is the CMake toolchain: the machine's own compiler, mingw-w64 for Windows, or Microsoft's on Windows (the
    runtime it links is C++ of that compiler).
    """

    name: str
    backend: str
    platform: str
    target: str
    flags: tuple[str, ...]
    tools: tuple[str, ...]
    needs: dict[str, str]
    tried: str
    toolchain: str = "native"


_VULKAN_LINUX = "a Vulkan driver: mesa-vulkan-drivers (AMD, Intel) or NVIDIA's own, with libvulkan1"
_VULKAN_WINDOWS = "a Vulkan driver: the GPU maker's current driver brings it"

RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vulkan-linux-x86_64", "vulkan", "linux-x86_64", "ggml-vulkan", ("GGML_VULKAN=ON",),
            ("glslc",), {"libvulkan.so.1": _VULKAN_LINUX}, "built and run on Mesa's software driver",
        ),
        Recipe(
            "vulkan-windows-x86_64", "vulkan", "windows-x86_64", "ggml-vulkan", ("GGML_VULKAN=ON",),
            ("glslc", "x86_64-w64-mingw32-g++"), {"vulkan-1.dll": _VULKAN_WINDOWS},
            "built; device opened under wine; not run on Windows",
            toolchain="mingw",
        ),
        Recipe(
            "cpu-variants-linux-x86_64", "cpu", "linux-x86_64", "ggml-cpu-variants", ("GGML_CPU_ALL_VARIANTS=ON",),
            (), {}, "built; the variant of the build machine was run",
        ),
        Recipe(
            "cpu-variants-windows-x86_64", "cpu", "windows-x86_64", "ggml-cpu-variants",
            ("GGML_CPU_ALL_VARIANTS=ON",), ("x86_64-w64-mingw32-g++",), {}, "not built, not run",
            toolchain="mingw",
        ),
        Recipe(
            "cuda-linux-x86_64", "cuda", "linux-x86_64", "ggml-cuda", ("GGML_CUDA=ON",), ("nvcc",),
            {"libcuda.so.1": "NVIDIA's driver"}, "not built, not run",
        ),
        Recipe(
            "rocm-linux-x86_64", "rocm", "linux-x86_64", "ggml-hip", ("GGML_HIP=ON",), ("hipcc",),
            {"libamdhip64.so": "ROCm 6.4 or newer"}, "not built, not run",
        ),
        Recipe(
            "sycl-linux-x86_64", "sycl", "linux-x86_64", "ggml-sycl", ("GGML_SYCL=ON",), ("icpx",),
            {"libsycl.so": "Intel's oneAPI runtime"}, "not built, not run",
        ),
        Recipe(
            "openvino-linux-x86_64", "openvino", "linux-x86_64", "ggml-openvino", ("GGML_OPENVINO=ON",), (), {},
            "built and run on OpenVINO's CPU device; GPU and NPU not run",
        ),
        Recipe(
            "openvino-windows-x86_64", "openvino", "windows-x86_64", "ggml-openvino", ("GGML_OPENVINO=ON",),
            ("cl",), {"OpenCL.dll": "the GPU maker's current driver brings it"},
            "not built, not run; build it on Windows",
            toolchain="msvc",
        ),
    )
}  # fmt: skip
