"""Opt-in: builds llama.cpp with Vulkan and compares it on Mesa's software device with the CPU.

    python tests/optin/vulkan.py [--work FOLDER] [--jobs N] [--packages] [--plugin]

Takes 10 to 20 minutes on two idle cores the first time; FOLDER stores the build. Needs a C++ compiler, CMake and
Ninja. `--plugin` builds the Vulkan library alone, from the same locked source, and puts it next to a copy of the
installed libraries, as a user adds a backend to an installation: a third of the work. `--packages` downloads
glslc, Mesa's software driver and Vulkan headers as Debian packages and unpacks them below FOLDER: nothing is
installed, and the second package source is not added to the system's lists. Without it, glslc, headers of at least
1.4 and a Vulkan driver must be installed.

Then tests/optin/test_vulkan_device.py runs with the built libraries.
"""

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from installers.packs.toolchain import LOCK, environment, source_tree, unpack_packages, vulkan_flags

FLAGS = ("GGML_BACKEND_DL=ON", "GGML_NATIVE=OFF", "GGML_VULKAN=ON", "GGML_RPC=ON", "GGML_CPU_ALL_VARIANTS=ON")
PLUGIN_ONLY = (
    "CMAKE_BUILD_TYPE=Release",
    "BUILD_SHARED_LIBS=ON",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
)
INSTALL = ("BINDIR=llama_cpp/lib", "LIBDIR=llama_cpp/lib", "INCLUDEDIR=llama_cpp/include", "RPATH=$ORIGIN")


def build_plugin(work: Path, root: Path | None, env: dict[str, str], jobs: int) -> Path:
    """A copy of the installed llama_cpp with the Vulkan library of the same source beside its own."""
    target = work / "site"
    if (target / "llama_cpp/lib/libggml-vulkan.so").exists():
        return target
    tree = source_tree(work)
    flags = [f"-D{flag}" for flag in (*FLAGS, *PLUGIN_ONLY)] + vulkan_flags(root, windows=False)
    made = work / "plugin"
    subprocess.run(["cmake", "-S", str(tree), "-B", str(made), "-G", "Ninja", *flags], env=env, check=True)
    subprocess.run(["nice", "-n", "19", "ninja", "-C", str(made), f"-j{jobs}", "ggml-vulkan"], env=env, check=True)
    installed = find_spec("llama_cpp")
    assert installed is not None
    assert installed.origin is not None
    shutil.copytree(Path(installed.origin).parent, target / "llama_cpp", dirs_exist_ok=True)
    shutil.copy(next(made.rglob("libggml-vulkan.so")), target / "llama_cpp/lib")
    return target


def build(work: Path, root: Path | None, env: dict[str, str], jobs: int) -> Path:
    """A folder with llama_cpp built with Vulkan, to be put in front of the installed one."""
    target = work / "site"
    if (target / "llama_cpp/lib/libggml-vulkan.so").exists():
        return target
    arguments = [f"-D{flag}" for flag in FLAGS] + [f"-DCMAKE_INSTALL_{folder}" for folder in INSTALL]
    arguments += vulkan_flags(root, windows=False)
    env = {**env, "CMAKE_ARGS": " ".join(arguments), "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    pip = [sys.executable, "-m", "pip", "install", "-v", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run(
        ["nice", "-n", "19", *pip, "--require-hashes", "-r", str(LOCK), "--target", str(target)],
        env=env,
        check=True,
    )
    return target


def main() -> int:
    """Build and test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "vulkan")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--packages", action="store_true")
    parser.add_argument("--plugin", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    root = unpack_packages(options.work, driver=True) if options.packages else None
    env = environment(root)
    if shutil.which("glslc", path=env["PATH"]) is None:
        parser.error("glslc was not found; install it or pass --packages")
    target = (build_plugin if options.plugin else build)(options.work, root, env, options.jobs)
    env["PYTHONPATH"] = os.pathsep.join([str(target), str(ROOT)])
    env["GGML_VK_VISIBLE_DEVICES"] = "0"  # ggml hides Vulkan devices of type CPU otherwise
    env["TESSERA_HOME"] = str(options.work / "home")
    test = str(ROOT / "tests/optin/test_vulkan_device.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", test]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
