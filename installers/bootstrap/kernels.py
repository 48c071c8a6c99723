"""llama-cpp-python for this computer: from the wheel cache, from a given folder, or built locally."""

import glob
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress

from installers.bootstrap import commands
from installers.bootstrap.progress import is_terminal, open_closed_streams, redraw, show

_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# An estimate: GCC takes up to about 1 GiB for llama.cpp's largest files.
_COMPILER_BYTES = 1 << 30
# Tessera's own CPU kernels for prompts, which are built together with llama.cpp.
TILES = os.path.join(_ROOT, "engine", "kernels")
# Changes of Vulkan's shaders, without which some glslc compiles wrong constants.
SHADERS = os.path.join(_ROOT, "installers", "bootstrap", "shaders.cmake")


def cache_folder() -> str:
    """Cache folder of built wheels, shared between environments."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "tessera", "wheels")


def _cpu_features() -> str:
    """The CPU features behind the compiler's `native`: a wheel built for another CPU would not run."""
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
                for line in info:
                    if line.lower().startswith(("flags", "features")):
                        return " ".join(sorted(line.partition(":")[2].split()))
        except OSError:
            pass
    return f"{platform.processor()} {platform.machine()}"


# Features in /proc/cpuinfo that a compiler uses by itself. Others come and go with kernel and firmware.
_INSTRUCTIONS = re.compile(
    "ss?se|avx|fma|f16c|bmi|abm|popcnt|movbe|gfni|v?pclmul|amx|asimd|sve|i8mm|bf16|atomics"  # the last five: ARM
)


def instructions() -> set[str]:
    """Instruction sets of this CPU that a wheel built here may use; empty where they are unknown."""
    return {feature for feature in _cpu_features().split() if _INSTRUCTIONS.match(feature)}


def vulkan_comes_along() -> bool:
    """Return whether the source tree contains a Vulkan kernel pack for this platform, so none must be built."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(glob.glob(os.path.join(_ROOT, "assets", "kernels", "vulkan-linux-x86_64-*.tar.xz")))


def vulkan_ready() -> bool:
    """Return whether building the Vulkan backend makes sense: a GPU, the shader compiler and recent headers exist.

    It is not built if a kernel pack is bundled. Headers older than 1.4 lack types that ggml's Vulkan backend uses
    (Debian 12 has 1.3.239). Without the package spirv-headers the build fails.
    """
    if sys.platform == "darwin" or not shutil.which("glslc") or not glob.glob("/dev/dri/renderD*"):
        return False
    if vulkan_comes_along():
        return False
    prefixes = ("/usr/share", "/usr/lib*", "/usr/local/share", "/usr/local/lib*")
    if not any(glob.glob(f"{prefix}/cmake/SPIRV-Headers/*.cmake") for prefix in prefixes):
        return False
    for header in ("/usr/include/vulkan/vulkan_core.h", "/usr/local/include/vulkan/vulkan_core.h"):
        try:
            with open(header, encoding="utf-8", errors="replace") as file:
                version = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+)", file.read())
        except OSError:
            continue
        return bool(version) and (int(version.group(1)), int(version.group(2))) >= (1, 4)  # type: ignore[union-attr]
    return False


def cmake_arguments() -> list[str]:
    """CMake options for building llama.cpp on this computer.

    On Linux every backend is a plugin in libllama's folder, so that another one (Vulkan, ROCm, CUDA) can be added
    later. The CPU plugin is compiled for this CPU. The install folders keep all files inside the wheel's package.
    On other systems the backends are linked in.
    """
    if sys.platform != "linux":
        return ["-DGGML_NATIVE=ON"]
    folders = ["BINDIR=llama_cpp/lib", "LIBDIR=llama_cpp/lib", "INCLUDEDIR=llama_cpp/include", "RPATH=$ORIGIN"]
    plugins = ["-DGGML_BACKEND_DL=ON", "-DGGML_NATIVE=OFF", "-DGGML_RPC=ON"]
    if vulkan_ready():
        plugins.append("-DGGML_VULKAN=ON")
    return plugins + [f"-DCMAKE_INSTALL_{folder}" for folder in folders]


def included_files() -> str:
    """CMake options, quoted for CMAKE_ARGS, that include Tessera's CMake files: build rules, CPU kernels, shaders.

    They are not part of the wheel cache key, because they contain this source tree's path. The key contains the
    content of the sources instead.
    """
    files = {"llama.cpp_INCLUDE": os.path.join(TILES, "llama.cmake")}
    if sys.platform == "linux":
        files["ggml_INCLUDE"] = os.path.join(TILES, "plugin.cmake")
    if vulkan_ready():
        files["INCLUDE"] = SHADERS
    options = [f"-DCMAKE_PROJECT_{variable}={path}" for variable, path in files.items()]
    return " ".join(shlex.quote(option.replace(os.sep, "/")) for option in options)


def tiles_sources() -> str:
    """Content of the files that llama.cpp's build includes: build rules and Tessera's CPU kernels."""
    parts = []
    for name in sorted(os.listdir(TILES)):
        with open(os.path.join(TILES, name), encoding="utf-8") as file:
            parts += [name, file.read()]
    return "\n".join(parts)


def users_arguments() -> str:
    """The user's CMAKE_ARGS; they come last, so that they have priority."""
    return os.environ.get("CMAKE_ARGS", "").strip()


def _key(lock: str) -> str:
    with open(lock, "rb") as file:
        parts = (file.read().decode(), sys.platform, platform.machine(), _cpu_features(), *cmake_arguments())
    parts += (tiles_sources(),)
    if vulkan_ready():
        with open(SHADERS, encoding="utf-8") as included:
            parts += (included.read(),)
    parts += tuple(filter(None, (users_arguments(), os.environ.get("CFLAGS"), os.environ.get("CXXFLAGS"))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def wheel(python: str, lock: str, wheels: str | None, beside: Callable[[], str] = str) -> str:
    """Path of a llama-cpp-python wheel for this computer; it is built if the cache has none.

    beside: returns the status of concurrent work, shown with the progress.
    Raises: RuntimeError: no wheel in the given folder, or the build failed; the message names its log.
    """
    if wheels is not None:
        files = glob.glob(os.path.join(wheels, "llama_cpp_python-*.whl"))
        if not files:
            raise RuntimeError(f"there is no llama_cpp_python wheel in {wheels}")
        return files[0]
    folder = os.path.join(cache_folder(), _key(lock))
    built = [path for path in glob.glob(os.path.join(folder, "*.whl")) if _is_whole(path)]
    if built:
        show("  using the wheel built earlier")
        return built[0]
    os.makedirs(folder, exist_ok=True)
    work = os.path.join(folder, f"build-{os.getpid()}")
    try:
        return _build(python, ["--require-hashes", "-r", lock], folder, work, beside)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_whole(path: str) -> bool:
    """Whether a wheel can be read to its end; after a power failure it may be empty."""
    try:
        with zipfile.ZipFile(path) as wheel:
            return wheel.testzip() is None
    except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return False


def build_version(python: str, version: str, folder: str) -> str:
    """Path of a wheel of a version other than the locked one, built into `folder`.

    Raises: RuntimeError: there is no such version, or the build failed; the message names its log.
    """
    if not re.match(r"^[0-9][0-9A-Za-z.]{0,31}$", version):
        raise RuntimeError(f"{version!r} is not a version")
    work = os.path.join(folder, "build")
    try:
        return _build(python, [f"llama-cpp-python=={version}"], folder, work, str)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"pip could not get llama-cpp-python {version}; see its output above") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(python: str, requirements: list[str], folder: str, work: str, beside: Callable[[], str]) -> str:
    options = ("-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    commands.run(commands.pip(python, "download", *options, *requirements, "-d", work))
    archive = glob.glob(os.path.join(work, "*.tar.gz"))[0]
    log_path = os.path.join(folder, "build.log")
    environment = commands.variables()
    arguments = (*cmake_arguments(), included_files(), users_arguments())
    environment["CMAKE_ARGS"] = " ".join(filter(None, arguments))
    if users_arguments():
        show(f"  with your CMAKE_ARGS: {users_arguments()}")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(compilers()))
    environment["PATH"] = os.path.dirname(python) + os.pathsep + environment.get("PATH", "")
    if sys.platform == "linux":
        for name in ("CFLAGS", "CXXFLAGS"):
            environment[name] = f"-march=native {os.environ.get(name, '')}".strip()
    command = commands.pip(python, "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", work, archive)
    started = time.monotonic()
    with (
        open(log_path, "w", encoding="utf-8") as log,
        commands.running(command, stdout=subprocess.PIPE, env=environment) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            with suppress(Exception):  # an error in the progress output must not end a build
                _show(line, started, beside())
    if is_terminal():
        show()
    built = glob.glob(os.path.join(work, "*.whl"))
    if process.returncode != 0 or not built:
        raise RuntimeError(f"building llama-cpp-python failed; its log is {log_path}")
    final = os.path.join(folder, os.path.basename(built[0]))
    os.replace(built[0], final)  # only a finished wheel gets this name
    return final


def compilers() -> int:
    """How many compilers may run at once: one for each CPU, and for each GiB of free memory."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    cpus = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    sizes = [size for size in (_free_memory(), _container_limit()) if size is not None]
    return max(1, min([cpus, *(size // _COMPILER_BYTES for size in sizes)]))


def _free_memory() -> int | None:
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as info:
        for line in info:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _container_limit() -> int | None:
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
        return int(limit.read())  # "max" without a limit
    return None


def _show(line: str, started: float, beside: str) -> None:
    """Show the compiler's progress. Ninja's step 0 compiles nothing (it checks Vulkan's shader globs)."""
    step = _STEP.match(line)
    if not step or int(step.group(1)) == 0:
        return
    done, total = int(step.group(1)), int(step.group(2))
    spent = time.monotonic() - started
    seconds_left = max(0.0, spent / done * (total - done))
    text = f"  compiled {done} of {total} files, about {seconds_left / 60:.0f} min left"
    text += f"; {beside}   " if beside else "   "
    if is_terminal():
        redraw(text)
    elif done % 20 == 0 or done == total:
        show(text.rstrip())


if __name__ == "__main__":
    open_closed_streams()
    try:
        show(build_version(sys.executable, sys.argv[1], sys.argv[2]))
    except (RuntimeError, OSError) as failure:
        sys.exit(f"kernels.py: {failure}")
