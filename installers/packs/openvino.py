"""Intel's OpenVINO runtime from its wheel, and an OpenCL loader, for the OpenVINO pack.

The wheel contains headers, CMake files and the plugins for CPU, GPU and NPU. ggml's backend links the runtime and
libOpenCL, so a pack contains both in the folder of the backend's library, which loads them from there.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "installers" / "lock" / "openvino.txt"
OPENCL_PACKAGES: Final = (
    "ocl-icd-opencl-dev",
    "ocl-icd-libopencl1",
    "opencl-c-headers",
    "opencl-clhpp-headers",
)
# Without frontends for other file formats, TBB's allocator and the automatic device selection.
LIBRARIES: Final = (
    "libopenvino.so.*",
    "libopenvino_c.so.*",
    "libopenvino_intel_cpu_plugin.so",
    "libopenvino_intel_gpu_plugin.so",
    "libopenvino_intel_npu_plugin.so",
    "libtbb.so.*",
    "libhwloc.so.*",
    "libtbbbind_2_5.so.*",
    "cache.json",
)
WINDOWS_LIBRARIES: Final = (
    "openvino.dll",
    "openvino_c.dll",
    "openvino_intel_*_plugin.dll",
    "tbb12.dll",
    "cache.json",
)


def unpack_wheel(work: Path) -> Path:
    """The locked wheel's contents, unpacked below `work` once. Raises: CalledProcessError."""
    folder = work / "openvino-wheel"
    if not (folder / "openvino" / "cmake").is_dir():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK), "-d", str(work)], check=True)
        with zipfile.ZipFile(next(work.glob("openvino-*.whl"))) as archive:
            archive.extractall(folder)
    return folder


def unpack_opencl(work: Path) -> Path:
    """Headers and loader from Debian packages, unpacked below `work`; nothing is installed."""
    root, debs = work / "opencl-root", work / "opencl-debs"
    if not (root / "usr/include/CL").is_dir():
        root.mkdir(parents=True, exist_ok=True)
        debs.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *OPENCL_PACKAGES], cwd=debs, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, root], check=True)
    return root


def cmake_flags(wheel: Path, opencl: Path | None) -> list[str]:
    """CMake flags for both; `opencl` is None if OpenCL is installed in the system."""
    flags = [f"-DOpenVINO_DIR={wheel / 'openvino' / 'cmake'}"]
    if sys.platform != "win32":
        # The pack's libraries are in the plugin's folder.
        flags += [f"-DCMAKE_{kind}_LINKER_FLAGS=-Wl,-rpath,'$ORIGIN'" for kind in ("SHARED", "MODULE")]
    if opencl is not None:
        flags += [
            f"-DOpenCL_INCLUDE_DIR={opencl / 'usr/include'}",
            f"-DOpenCL_LIBRARY={next((opencl / 'usr/lib').glob('*-linux-gnu/libOpenCL.so'))}",
        ]
    return flags


def collect(wheel: Path, opencl: Path | None, target: Path) -> list[Path]:
    """The libraries and licences of the pack, copied into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    libraries = wheel / "openvino" / "libs"
    patterns = WINDOWS_LIBRARIES if sys.platform == "win32" else LIBRARIES
    files = {library.name: library for pattern in patterns for library in libraries.glob(pattern)}
    licences = next(wheel.glob("openvino-*.dist-info/licenses"))
    files |= {f"openvino-{p.name.removesuffix('.txt')}.txt": p for p in licences.rglob("*") if p.is_file()}
    if opencl is not None:
        files["libOpenCL.so.1"] = next((opencl / "usr/lib").glob("*-linux-gnu/libOpenCL.so.1"))
        files["ocl-icd-copyright.txt"] = opencl / "usr/share/doc/ocl-icd-libopencl1/copyright"
    return [Path(shutil.copyfile(source, target / name)) for name, source in sorted(files.items())]
