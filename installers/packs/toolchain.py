"""Sources, tools and headers of a build: the locked archive, and Debian packages that are unpacked on request."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from installers.packs.recipes import Recipe

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "installers" / "lock" / "llama.txt"
# Debian packages for the Vulkan pack: name, version, SHA-256. Other versions produce a different pack.
PACKAGES_LOCK: Final = ROOT / "installers" / "lock" / "vulkan.txt"
TOOLS: Final = ("libvulkan1",)
# Mesa's software driver, to test the result.
SOFTWARE_DRIVER: Final = ("mesa-vulkan-drivers", "libllvm15", "libdrm2", "libdrm-amdgpu1")
# ggml's Vulkan backend needs types of Vulkan 1.4; Debian 12 has 1.3.239.
NEWER_PACKAGES: Final = ("libvulkan-dev", "spirv-headers")
# Debian 12's glslc (2023.2) silently omits the shaders for matrix units and integer dot products, Debian 13's
# (2025.2) those for bfloat16. A newer glslc runs with its own C library and loader.
SHADER_COMPILER: Final = ("glslc", "libshaderc1", "libstdc++6", "libgcc-s1", "libc6")
NEWER_SUITE: Final = "forky"
# glslc 2026.4 reads memory that it never wrote when it converts an integer constant to a half float: float16_t(0)
# came out as 0, infinity or other values, depending on the length of paths. With 0.0 it is 0. These shaders have
# such a constant; the check after the build finds others.
MENDED_SHADERS: Final = ("diag.comp", "im2col.comp", "tri.comp")
# SPIR-V's opcodes, and the exponent of a float that is infinite or not a number.
OP_CONSTANT, OP_FCONVERT, INFINITE = 43, 115, 0x7F800000
# A glslc wrapper that caches compiled shaders by command line, ignoring the output's name. Calls that write a
# dependency list, which contains the output's name, are not cached.
KEEPING_GLSLC: Final = """#!/bin/sh
glslc() { @GLSLC@ "$@"; }
output=- previous=
for word in "$@"; do
  [ "$previous" != -o ] || output=$word
  [ "$word" != -MF ] || KEPT_SHADERS=
  previous=$word
done
if [ -z "$KEPT_SHADERS" ] || [ "$output" = - ]; then glslc "$@"; exit; fi
key=$(printf '%s\\n' "$@" | sed '/^-o$/,+1d' | sha256sum | cut -c1-64)
if ! cp "$KEPT_SHADERS/$key" "$output" 2>/dev/null; then
  glslc "$@" || exit
  cp "$output" "$KEPT_SHADERS/$key.$$" && mv "$KEPT_SHADERS/$key.$$" "$KEPT_SHADERS/$key"
fi
"""


def source_tree(work: Path) -> Path:
    """llama.cpp's sources from the locked llama-cpp-python, unpacked below `work` once."""
    sources = work / "sources"
    if not list(sources.glob("llama_cpp_python-*/vendor/llama.cpp")):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK), "-d", str(sources)], check=True)
        with tarfile.open(next(sources.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(sources, filter="data")
    tree = next(sources.glob("llama_cpp_python-*/vendor/llama.cpp"))
    for name in MENDED_SHADERS:
        shader = tree / "ggml/src/ggml-vulkan/vulkan-shaders" / name
        text = shader.read_text(encoding="utf-8")
        if "_TYPE(0)" in text:
            shader.write_text(text.replace("_TYPE(0)", "_TYPE(0.0)"), encoding="utf-8")
    return tree


def unsound_shaders(folder: Path) -> list[str]:
    """Compiled shaders below `folder` that convert an infinite or undefined constant to a half float."""
    names = []
    for path in sorted(p for p in folder.rglob("*.spv") if p.is_file()):
        words, at, constants = memoryview(path.read_bytes()).cast("I"), 5, {}
        while at < len(words) and words[at] >> 16:
            count, operation = words[at] >> 16, words[at] & 0xFFFF
            if operation == OP_CONSTANT:
                constants[words[at + 2]] = words[at + 3]
            elif operation == OP_FCONVERT and constants.get(words[at + 3], 0) & INFINITE == INFINITE:
                names.append(path.stem)
            at += count
    return names


def locked_packages() -> dict[str, tuple[str, str]]:
    """Name → version and SHA-256 of each package in the lock."""
    lines = PACKAGES_LOCK.read_text(encoding="ascii").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: (version, sha256) for name, version, sha256 in rows}


def unpack_packages(folder: Path, driver: bool = False, mirror: str | None = None, newest: bool = False) -> Path:
    """Download and unpack the Debian packages below `folder`; returns their root folder. Nothing is installed.

    `driver` adds Mesa's software driver. `mirror` is the URL of a Debian archive that still has the locked
    versions, such as a snapshot; None: this computer's mirror. `newest` uses the suite's current versions.
    Raises: CalledProcessError: the mirror does not have that version. ValueError: a package has other bytes.
    """
    root, lists = folder / "root", folder / "apt"
    present = root / ("usr/share/vulkan/icd.d" if driver else "usr/include/spirv")
    if present.exists() and (root / "usr/bin/glslc").exists():
        return root
    debs, newer_debs = folder / "debs", folder / "newer-debs"
    for new_folder in (root, debs, newer_debs, lists / "partial"):
        new_folder.mkdir(parents=True, exist_ok=True)
    source = folder / "newer.list"
    trusted = "[check-valid-until=no] " if mirror else ""
    source.write_text(f"deb {trusted}{mirror or _mirror()} {NEWER_SUITE} main\n", encoding="ascii")
    newer = [
        f"-oDir::Etc::sourcelist={source}",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={lists}",
        f"-oDir::Cache::pkgcache={folder / 'pkgcache.bin'}",
        f"-oDir::Cache::srcpkgcache={folder / 'srcpkgcache.bin'}",
    ]
    packages = (*TOOLS, *SOFTWARE_DRIVER) if driver else TOOLS
    subprocess.run(["apt-get", "download", *packages], cwd=debs, check=True)
    subprocess.run(["apt-get", *newer, "update"], check=True)
    locked = {} if newest else locked_packages()
    for names, place in ((NEWER_PACKAGES, debs), (SHADER_COMPILER, newer_debs)):
        exact = [f"{name}={locked[name][0]}" if name in locked else name for name in names]
        subprocess.run(["apt-get", *newer, "download", *exact], cwd=place, check=True)
        for name in names:
            _check_package(place, name, locked)
    for target, deb_folder in ((root, debs), (folder / "newer-root", newer_debs)):
        for deb in sorted(deb_folder.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, target], check=True)
    _wrap_glslc(folder / "newer-root", root / "usr/bin/glslc")
    return root


def _check_package(place: Path, name: str, locked: dict[str, tuple[str, str]]) -> None:
    """Compare a downloaded package with the lock; without a lock, print the line for it."""
    deb = next(place.glob(f"{name}_*.deb"))
    sha256 = hashlib.sha256(deb.read_bytes()).hexdigest()
    if not locked:
        print(f"{name} {unquote(deb.name.split('_')[1])} {sha256}")
    elif name in locked and sha256 != locked[name][1]:
        raise ValueError(f"{deb.name} has SHA-256 {sha256}, {PACKAGES_LOCK.name} says {locked[name][1]}")


def _wrap_glslc(newer: Path, wrapper: Path) -> None:
    """Write a script that runs the newer suite's glslc with that suite's loader and libraries."""
    libraries = next((newer / "usr/lib").glob("*-linux-gnu"))
    loader = next(libraries.glob("ld-linux*.so.*"))
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    words = [str(loader), "--library-path", str(libraries), str(newer / "usr/bin/glslc")]
    wrapper.write_text(KEEPING_GLSLC.replace("@GLSLC@", shlex.join(words)), encoding="utf-8")
    wrapper.chmod(0o755)


def kept_shaders(work: Path, tree: Path) -> dict[str, str]:
    """Environment variables that enable the shader cache for a build with the unpacked glslc.

    A compiled shader is the same for every platform and C++ compiler, and compiling shaders is most of the work for
    a Vulkan pack. The folder's name is a hash of the shader sources and glslc; all other inputs are on glslc's
    command line.
    """
    digest = hashlib.sha256()
    sources = tree / "ggml" / "src" / "ggml-vulkan" / "vulkan-shaders"
    for path in (work / "newer-root/usr/bin/glslc", *sorted(p for p in sources.rglob("*") if p.is_file())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = work / "shaders" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return {"KEPT_SHADERS": str(folder)}


def _mirror() -> str:
    """URL of this computer's Debian mirror."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    addresses = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    mirror = next((address for address in addresses if address.rstrip("/").endswith("/debian")), None)
    if mirror is None:
        raise SystemExit(
            "--packages takes Debian's packages, and no source of this system is Debian's: use Debian 12"
        )
    return mirror


def environment(root: Path | None) -> dict[str, str]:
    """Environment variables of a build or a test, with unpacked packages first."""
    env = dict(os.environ)
    if root is None:
        return env
    libraries = [str(p) for p in (root / "usr/lib").glob("*-linux-gnu")]
    env["PATH"] = f"{root / 'usr/bin'}{os.pathsep}{env['PATH']}"
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*libraries, env.get("LD_LIBRARY_PATH", "")]))
    env["CMAKE_PREFIX_PATH"] = str(root / "usr")
    env["CPLUS_INCLUDE_PATH"] = env["C_INCLUDE_PATH"] = str(root / "usr/include")
    for manifest in (root / "usr/share/vulkan/icd.d").glob("lvp_icd.*.json"):
        text = manifest.read_text(encoding="utf-8")
        local = root / "lvp_icd.json"
        local.write_text(re.sub(r'"library_path": "([^"]+)"', lambda m: _absolute(m[1], libraries), text), "utf-8")
        env["VK_DRIVER_FILES"] = env["VK_ICD_FILENAMES"] = str(local)
    return env


def _absolute(library: str, folders: list[str]) -> str:
    library_path = next(
        (Path(f) / Path(library).name for f in folders if (Path(f) / Path(library).name).exists()), library
    )
    return f'"library_path": "{library_path}"'


def vulkan_flags(root: Path | None, *, windows: bool) -> list[str]:
    """CMake flags for Vulkan from unpacked packages; empty if it is installed in the system."""
    if root is None:
        return []
    library = next((root / "usr/lib").glob("*-linux-gnu/libvulkan.so*"))
    flags = [
        f"-DVulkan_INCLUDE_DIR={root / 'usr/include'}",
        f"-DVulkan_GLSLC_EXECUTABLE={root / 'usr/bin/glslc'}",
    ]
    return flags if windows else [*flags, f"-DVulkan_LIBRARY={library}"]


def bad_tool(recipe: Recipe, env: dict[str, str]) -> str:
    """Why a tool on this computer must not build the recipe; empty if none is known to be faulty."""
    for tool, pattern, why in recipe.refused:
        if re.search(pattern, _version_text(tool, env)):
            return f"this {tool} builds bad kernels: {why}"
    for tool, oldest in recipe.oldest:
        match = re.search(r"version:? (\d+)\.(\d+)", _version_text(tool, env))
        if match and (int(match[1]), int(match[2])) < oldest:
            return f"this {tool} is {match[1]}.{match[2]}, and {oldest[0]}.{oldest[1]} is the oldest that works"
    return ""


def _version_text(tool: str, env: dict[str, str]) -> str:
    program = shutil.which(tool, path=env["PATH"])
    command = [program or tool, "--version"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout if program else ""


def missing_tools(tools: tuple[str, ...], env: dict[str, str]) -> str:
    """A message with the missing tools; empty if all exist."""
    missing = [tool for tool in tools if shutil.which(tool, path=env["PATH"]) is None]
    return f"it needs {', '.join(missing)}: install it, or pass --packages for glslc and headers" if missing else ""
