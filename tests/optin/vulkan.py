"""Opt-in: build llama.cpp with Vulkan and run it on Mesa's software device, against the CPU.

    python tests/optin/vulkan.py [--work FOLDER] [--jobs N] [--packages] [--plugin]

Takes 10-20 minutes of two idle cores the first time; FOLDER keeps the build. Needs a C++ compiler, CMake and Ninja.
`--plugin` builds the Vulkan library alone, from the same locked source, and puts it beside a copy of the installed
libraries, as a user adds a backend to an installation: a third of the work.
`--packages` fetches glslc, Mesa's software driver and Vulkan headers as Debian packages and unpacks them below
FOLDER: nothing is installed, and the second package source is kept out of the system's lists. Without it, glslc,
headers of at least 1.4 and a Vulkan driver must be installed.

Then tests/optin/test_vulkan_device.py runs with the built libraries.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "installers" / "lock" / "llama.txt"
PACKAGES = ("glslc", "libshaderc1", "mesa-vulkan-drivers", "libvulkan1", "libllvm15", "libdrm2", "libdrm-amdgpu1")
# ggml's Vulkan backend needs types of 1.4; Debian 12 has 1.3.239. Only headers are taken from Debian 13.
NEWER_PACKAGES = ("libvulkan-dev", "spirv-headers")
NEWER_SUITE = "trixie"
FLAGS = ("GGML_BACKEND_DL=ON", "GGML_NATIVE=OFF", "GGML_VULKAN=ON", "GGML_RPC=ON", "GGML_CPU_ALL_VARIANTS=ON")
PLUGIN_ONLY = (
    "CMAKE_BUILD_TYPE=Release",
    "BUILD_SHARED_LIBS=ON",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
)
INSTALL = ("BINDIR=llama_cpp/lib", "LIBDIR=llama_cpp/lib", "INCLUDEDIR=llama_cpp/include", "RPATH=$ORIGIN")


def mirror() -> str:
    """The address this machine takes Debian's packages from."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    return next(address for address in known if address.rstrip("/").endswith("/debian"))


def unpack_packages(folder: Path) -> Path:
    """Download and unpack the Debian packages below `folder`; returns the root they lie in."""
    root, lists = folder / "root", folder / "apt"
    if (root / "usr/include/spirv").exists():
        return root
    debs = folder / "debs"
    for made in (root, debs, lists / "partial"):
        made.mkdir(parents=True, exist_ok=True)
    source = folder / "newer.list"
    source.write_text(f"deb {mirror()} {NEWER_SUITE} main\n", encoding="ascii")
    newer = [
        f"-oDir::Etc::sourcelist={source}",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={lists}",
        f"-oDir::Cache::pkgcache={folder / 'pkgcache.bin'}",
        f"-oDir::Cache::srcpkgcache={folder / 'srcpkgcache.bin'}",
    ]
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=debs, check=True)
    subprocess.run(["apt-get", *newer, "update"], check=True)
    subprocess.run(["apt-get", *newer, "download", *NEWER_PACKAGES], cwd=debs, check=True)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", deb, root], check=True)
    return root


def environment(root: Path | None) -> dict[str, str]:
    """The environment of build and test, with unpacked packages in front."""
    env = dict(os.environ)
    if root is None:
        return env
    libraries = [str(p) for p in (root / "usr/lib").glob("*-linux-gnu")]
    env["PATH"] = f"{root / 'usr/bin'}{os.pathsep}{env['PATH']}"
    env["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, env.get("LD_LIBRARY_PATH", "")])
    env["CMAKE_PREFIX_PATH"] = str(root / "usr")
    env["CPLUS_INCLUDE_PATH"] = env["C_INCLUDE_PATH"] = str(root / "usr/include")
    for manifest in (root / "usr/share/vulkan/icd.d").glob("lvp_icd.*.json"):
        text = manifest.read_text(encoding="utf-8")
        absolute = re.sub(r'"library_path": "([^"]+)"', lambda m: _absolute(m[1], libraries), text)
        local = root / "lvp_icd.json"
        local.write_text(absolute, encoding="utf-8")
        env["VK_DRIVER_FILES"] = env["VK_ICD_FILENAMES"] = str(local)
    return env


def _absolute(library: str, folders: list[str]) -> str:
    found = next(
        (Path(f) / Path(library).name for f in folders if (Path(f) / Path(library).name).exists()), library
    )
    return f'"library_path": "{found}"'


def build_plugin(work: Path, root: Path | None, env: dict[str, str], jobs: int) -> Path:
    """A copy of the installed llama_cpp with the Vulkan library of the same source beside its own."""
    target = work / "site"
    if (target / "llama_cpp/lib/libggml-vulkan.so").exists():
        return target
    sources = work / "sources"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    subprocess.run([*pip, "--require-hashes", "-r", str(LOCK), "-d", str(sources)], check=True)
    with tarfile.open(next(sources.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(sources, filter="data")
    tree = next(sources.glob("llama_cpp_python-*/vendor/llama.cpp"))
    flags = [f"-D{flag}" for flag in (*FLAGS, *PLUGIN_ONLY)] + vulkan_flags(root)
    made = work / "plugin"
    subprocess.run(["cmake", "-S", str(tree), "-B", str(made), "-G", "Ninja", *flags], env=env, check=True)
    subprocess.run(["nice", "-n", "19", "ninja", "-C", str(made), f"-j{jobs}", "ggml-vulkan"], env=env, check=True)
    installed = find_spec("llama_cpp")
    assert installed is not None
    assert installed.origin is not None
    shutil.copytree(Path(installed.origin).parent, target / "llama_cpp", dirs_exist_ok=True)
    shutil.copy(next(made.rglob("libggml-vulkan.so")), target / "llama_cpp/lib")
    return target


def vulkan_flags(root: Path | None) -> list[str]:
    """Where CMake finds Vulkan among unpacked packages; nothing for installed ones."""
    if root is None:
        return []
    library = next((root / "usr/lib").glob("*-linux-gnu/libvulkan.so*"))
    return [
        f"-DVulkan_INCLUDE_DIR={root / 'usr/include'}",
        f"-DVulkan_LIBRARY={library}",
        f"-DVulkan_GLSLC_EXECUTABLE={root / 'usr/bin/glslc'}",
    ]


def build(work: Path, root: Path | None, env: dict[str, str], jobs: int) -> Path:
    """A folder with llama_cpp built with Vulkan, to be put in front of the installed one."""
    target = work / "site"
    if (target / "llama_cpp/lib/libggml-vulkan.so").exists():
        return target
    arguments = [f"-D{flag}" for flag in FLAGS] + [f"-DCMAKE_INSTALL_{folder}" for folder in INSTALL]
    arguments += vulkan_flags(root)
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
    root = unpack_packages(options.work) if options.packages else None
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
