"""Build recipes of the kernel packs. `tried` says whether a recipe was ever run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Recipe:
    """One pack: ggml's backend and CMake `target`, its `flags`, the `tools` for building, and what it `needs`.

    `needs` maps libraries on the user's computer to a text on how to get them. `toolchain` is the CMake toolchain:
    the computer's own compiler, mingw-w64 for Windows, or Microsoft's on Windows (it links that compiler's C++
    runtime). `refused` are tool versions that build faulty kernels: the tool, a pattern of its `--version` output,
    and the reason. `oldest` is the minimum version of a tool.
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
    refused: tuple[tuple[str, str, str], ...] = ()
    oldest: tuple[tuple[str, tuple[int, int]], ...] = ()


_VULKAN_LINUX = "a Vulkan driver: mesa-vulkan-drivers (AMD, Intel) or NVIDIA's own, with libvulkan1"
_VULKAN_WINDOWS = "a Vulkan driver: the GPU vendor's current driver contains it"

# Turing to Blackwell, like llama.cpp's own builds: the last target of each generation also runs on its newer chips.
_CUDA_TARGETS = "75-virtual;80-virtual;86-real;89-real;120a-real"
_CUDA_WORDS = "CUDA's runtime: pip install nvidia-cuda-runtime nvidia-cublas, or the CUDA toolkit"
_CUDA_RUNTIME = dict.fromkeys(("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"), _CUDA_WORDS)
_CUDA_BAD = ("nvcc", r"V13\.2\.(51|78)\b", "it miscompiles IQ1_S, IQ2_S and IQ3_S; take 13.0, 13.1 or 13.2.2")
_ROCM_RUNTIME = dict.fromkeys(("libamdhip64.so.7", "libhipblas.so.3", "librocblas.so.5"), "ROCm 7.14 or newer")
# Without gfx1201, which hangs during generation with ROCm 7.14 until a reboot. rocWMMA's attention stays off: on
# gfx1151 it nearly halves prefill speed. Source: ROCm/legacy-rocm-build#6630; llama.cpp, pull request 24562.
_ROCM_TARGETS = "gfx1100;gfx1103;gfx1150;gfx1151;gfx1152;gfx1200"

# Tessera's own kernels, which llama.cpp's build includes.
_TILES = Path(__file__).resolve().parents[2] / "engine" / "kernels" / "plugin.cmake"

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
            "tiles-windows-x86_64", "tiles", "windows-x86_64", "ggml-tiles",
            (f"CMAKE_PROJECT_ggml_INCLUDE={_TILES}",), ("x86_64-w64-mingw32-g++",), {},
            "built; compared with ggml's kernels under wine; not run on Windows",
            toolchain="mingw",
        ),
        Recipe(
            "cuda-linux-x86_64", "cuda", "linux-x86_64", "ggml-cuda",
            ("GGML_CUDA=ON", f"CMAKE_CUDA_ARCHITECTURES={_CUDA_TARGETS}"), ("nvcc",),
            {"libcuda.so.1": "NVIDIA's driver", **_CUDA_RUNTIME}, "compiled in part for sm_120a, not run",
            refused=(_CUDA_BAD,),
        ),
        Recipe(
            "rocm-linux-x86_64", "rocm", "linux-x86_64", "ggml-hip",
            ("GGML_HIP=ON", "GGML_HIP_ROCWMMA_FATTN=OFF", f"GPU_TARGETS={_ROCM_TARGETS}"), ("hipcc",),
            _ROCM_RUNTIME, "compiled in part for gfx1151, not run",
            oldest=(("hipcc", (7, 14)),),
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
            ("cl",), {"OpenCL.dll": "the GPU vendor's current driver contains it"},
            "not built, not run; build it on Windows",
            toolchain="msvc",
        ),
    )
}  # fmt: skip
