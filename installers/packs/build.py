"""Build a kernel pack from the locked source of llama.cpp.

    python installers/packs/build.py NAME [--work FOLDER] [--out FOLDER] [--packages] [--jobs N] [--compare FILE]
    python installers/packs/build.py --list

Writes NAME-VERSION.tar.xz: the plugin and its manifest (ggml's version, a hash of its headers, SHA-256). Times and
file order are fixed, so two builds with the same compiler have the same bytes. `--packages` uses glslc and recent
Vulkan headers, or OpenCL for OpenVINO, from Debian packages that are unpacked below FOLDER; nothing is installed.
The versions for Vulkan are locked; `--mirror ADDRESS` names an archive that still has them, `--newest` uses the
current ones. `--compare FILE` exits with 1 if the result differs from that file in any byte. Install the result
with `tessera kernels install FILE`.
"""

import argparse
import hashlib
import lzma
import os
import re
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec

from devices.backends.libraries import LIBRARY
from devices.fault_rules import load, of_compiler
from devices.kernel_packs.abi import headers_hash
from devices.kernel_packs.manifest import FORMAT, NAME, Manifest, PackFile, parse
from installers.bootstrap import kernels
from installers.packs import openvino, toolchain
from installers.packs.recipes import RECIPES, Recipe

# The oldest date that an archive may hold (1980-01-01); SOURCE_DATE_EPOCH overrides it.
EPOCH = 315532800
# The oldest glibc that the program's other libraries support. Source: the tags of PySide6's wheels.
NEWEST_GLIBC = (2, 34)
# A dictionary larger than the library finds repetitions between shaders: 6 MiB less than the preset's 8 MiB.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 << 20}]
LICENCES = ROOT / "assets" / "licences"
# Licences of what a pack contains, by backend and by toolchain. Source: the licence files of the packages.
LICENCE_WORDS = {
    "vulkan": "llama.cpp: MIT; Vulkan headers: Apache-2.0 OR MIT; SPIR-V headers: MIT",
    "tiles": "Tessera: Apache-2.0; llama.cpp: MIT",
    "mingw": "GCC's libraries: GPL-3.0-or-later WITH GCC-exception-3.1; winpthreads: MIT AND BSD-3-Clause",
}
# Licence texts that a pack contains, by backend and by toolchain.
LICENCE_FILES = {"vulkan": "llama.cpp", "tiles": "llama.cpp", "mingw": "mingw-w64"}
# Moves that fault unless their memory lies at a multiple of their width.
ALIGNED_MOVE = re.compile(
    r"\bvmov(?:ap[sd]|dqa(?:32|64)?)\s.*\(.*%[yz]mm|\bvmov(?:ap[sd]|dqa(?:32|64)?)\s.*%[yz]mm.*\("
)
COMMON = (
    "CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=ON", "GGML_BACKEND_DL=ON", "GGML_NATIVE=OFF", "GGML_RPC=OFF",
    "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_TOOLS=OFF", "LLAMA_BUILD_SERVER=OFF",
    "GGML_CCACHE=OFF", "LLAMA_CURL=OFF",
)  # fmt: skip
# CMake's own rule, and a file's identity: its object's path in the build folder.
HIP_RULE = "<CMAKE_HIP_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -cuid=<OBJECT> -o <OBJECT> -x hip -c <SOURCE>"
MINGW = """set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
"""
# The Windows headers of mingw-w64 10 (Debian 12) lack the thread power throttling API that ggml-cpu.c uses.
MINGW_ADDITIONS = """#if defined(__MINGW32__) && !defined(THREAD_POWER_THROTTLING_CURRENT_VERSION)
typedef struct { unsigned long Version, ControlMask, StateMask; } THREAD_POWER_THROTTLING_STATE;
#define THREAD_POWER_THROTTLING_CURRENT_VERSION 1
#define THREAD_POWER_THROTTLING_EXECUTION_SPEED 1
#endif
"""
# Functions of Vulkan 1.1 that ggml calls by name; every driver's loader exports them.
VULKAN_IMPORTS = (
    "LIBRARY vulkan-1.dll\nEXPORTS\nvkGetInstanceProcAddr\nvkGetDeviceProcAddr\n"
    "vkGetPhysicalDeviceFeatures2\nvkCmdCopyBuffer\n"
)


def ggml_version(tree: Path) -> str:
    """The version of ggml, from its CMake file."""
    text = (tree / "ggml" / "CMakeLists.txt").read_text(encoding="utf-8")
    parts = [re.search(rf"set\(GGML_VERSION_{part} (\d+)\)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part)


def compile_plugin(recipe: Recipe, work: Path, extra: list[str], env: dict[str, str], jobs: int) -> list[Path]:
    """The plugin's libraries, stripped. `extra`: CMake flags for this computer. Raises: CalledProcessError."""
    tree, out = toolchain.source_tree(work), work / f"build-{recipe.name}"
    flags = [f"-D{flag}" for flag in (*COMMON, *recipe.flags)] + extra
    if recipe.toolchain == "mingw":
        flags += _mingw(work, env)
    folders, more = {work: "work", out: "build", tree: "llama.cpp"}, ""
    if recipe.backend == "tiles":
        folders[Path(kernels.TILES)] = "tiles"
    if recipe.toolchain == "mingw" and not _mingw_knows_throttling():
        additions = work / "mingw-additions.h"
        _write(additions, MINGW_ADDITIONS)
        more = f" -include {additions}"
    flags += compiler_flags(recipe, folders, more)
    if recipe.toolchain == "native":
        # libstdc++ and libgcc stay shared: Debian 12's static ones need glibc 2.36.
        small = "-Wl,--gc-sections -Wl,--build-id=none"
        flags.append(f"-DCMAKE_MODULE_LINKER_FLAGS_RELEASE={small}")
    flags.append("-DCMAKE_SKIP_RPATH=ON")
    subprocess.run(["cmake", "-S", str(tree), "-B", str(out), "-G", "Ninja", *flags], env=env, check=True)
    targets = _variants(out, env) if recipe.target == "ggml-cpu-variants" else [recipe.target]
    subprocess.run(["ninja", "-C", str(out), f"-j{jobs}", *targets], env=env, check=True)
    if unsound := toolchain.unsound_shaders(out):
        raise SystemExit(f"glslc spoilt constants of {', '.join(unsound)}: see MENDED_SHADERS in toolchain.py")
    return _checked(recipe, out / "bin")


def compiler_flags(recipe: Recipe, folders: dict[Path, str], more: str = "") -> list[str]:
    """CMake flags by which each compiler writes these names for the build machine's folders.

    Otherwise every build differs. `more`: further options of C and C++.
    """
    if recipe.toolchain == "msvc":
        return []
    names = [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    host = f"{' '.join(names)} -ffunction-sections -fdata-sections{more}"
    flags = [f"-DCMAKE_C_FLAGS={host}", f"-DCMAKE_CXX_FLAGS={host}"]
    if recipe.backend == "cuda":  # nvcc preprocesses with the host's compiler, for the GPU too
        flags.append(f"-DCMAKE_CUDA_FLAGS=-Xcompiler={','.join(names)}")
    elif recipe.backend == "rocm":
        # clang gives every file a symbol that is a hash of its whole path, unless the rule names another identity.
        flags += [f"-DCMAKE_HIP_FLAGS={' '.join(names)}", f"-DCMAKE_HIP_COMPILE_OBJECT={HIP_RULE}"]
    return flags


def _checked(recipe: Recipe, folder: Path) -> list[Path]:
    """The recipe's libraries in `folder`, stripped. Raises: SystemExit: one would crash."""
    stem = "cpu-" if recipe.backend == "cpu" else recipe.target.removeprefix("ggml-")
    libraries = [p for p in sorted(folder.iterdir()) if (m := LIBRARY.match(p.name)) and m[1].startswith(stem)]
    for path in libraries:
        if recipe.toolchain == "native":
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
        elif recipe.toolchain == "mingw" and recipe.backend in {"cpu", "tiles"} and (moves := aligned_moves(path)):
            raise SystemExit(f"{path.name} would crash on Windows: {len(moves)} aligned moves, as {moves[0]}")
    return libraries


def aligned_moves(library: Path) -> list[str]:
    """Instructions of a Windows library that move 32 or 64 bytes and need them aligned.

    Windows aligns stacks to 16 bytes, and GCC does not align the frames of its functions further (its bug 54412):
    such a move of a variable on the stack faults in about half of all runs. Wine's stacks happen to be aligned, so
    that no test there finds it.
    """
    command = ["x86_64-w64-mingw32-objdump", "-d", "--no-show-raw-insn", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t", 1)[1] for line in listed.splitlines() if ALIGNED_MOVE.search(line)]


def _variants(tree: Path, env: dict[str, str]) -> list[str]:
    listed = subprocess.run(
        ["ninja", "-C", str(tree), "-t", "targets", "all"], env=env, check=True, capture_output=True, text=True
    )
    return sorted(set(re.findall(r"^(ggml-cpu-[a-z0-9_.]+): phony", listed.stdout, re.MULTILINE)))


def _mingw_knows_throttling() -> bool:
    program = "#include <windows.h>\nTHREAD_POWER_THROTTLING_STATE state;\n"
    command = ["x86_64-w64-mingw32-gcc", "-D_WIN32_WINNT=0x0A00", "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(command, input=program, capture_output=True, text=True, check=False).returncode == 0


def _mingw(work: Path, env: dict[str, str]) -> list[str]:
    """CMake flags for mingw-w64: the toolchain file, and an import library of the system's Vulkan loader."""
    chain, imports = work / "mingw.cmake", work / "vulkan-1.def"
    _write(chain, MINGW)
    _write(imports, VULKAN_IMPORTS)
    library = work / "libvulkan-1.a"
    subprocess.run(["x86_64-w64-mingw32-dlltool", "-d", str(imports), "-l", str(library)], env=env, check=True)
    # Without --exclude-libs, ggml-base.dll would export libgcc's functions to the plugins, which have their own.
    # The linker strips: mingw's `strip` would write the present time into the file.
    static = "-static-libgcc -static-libstdc++ -Wl,-Bstatic,--whole-archive -lwinpthread -Wl,--no-whole-archive"
    static += " -Wl,--exclude-libs,ALL -s -Wl,--no-insert-timestamp"
    return [
        f"-DCMAKE_TOOLCHAIN_FILE={chain}",
        "-DGGML_OPENMP=OFF",  # Windows has no libgomp-1.dll; ggml has its own threads
        f"-DVulkan_LIBRARY={library}",
        f"-DCMAKE_SHARED_LINKER_FLAGS={static}",
        f"-DCMAKE_MODULE_LINKER_FLAGS={static}",
    ]


def _write(path: Path, text: str) -> None:
    """Write a file only if its content changed: a new time would recompile every object."""
    if not path.exists() or path.read_text(encoding="ascii") != text:
        path.write_text(text, encoding="ascii")


def _licences(recipe: Recipe, work: Path) -> list[Path]:
    """The licence texts that the pack contains, written below `work`."""
    names = [LICENCE_FILES[key] for key in (recipe.backend, recipe.toolchain) if key in LICENCE_FILES]
    for name in names:
        (work / f"{name}-LICENCE.txt").write_bytes((LICENCES / f"{name}.txt").read_bytes())
    return [work / f"{name}-LICENCE.txt" for name in names]


def glibc_needed(libraries: list[Path]) -> str:
    """The newest glibc version that any of the libraries needs; empty for Windows."""
    newest: tuple[int, ...] = ()
    for path in libraries:
        if ".so" in path.name:
            listed = subprocess.run(["readelf", "-V", str(path)], capture_output=True, text=True, check=True).stdout
            versions = re.findall(r"GLIBC_(\d+(?:\.\d+)+)", listed)
            newest = max([newest, *(tuple(map(int, version.split("."))) for version in versions)])
    return ".".join(map(str, newest))


def engine_commit(tree: Path) -> str:
    """The llama.cpp commit of the locked archive; empty if it is not recorded."""
    head = tree.parents[1] / ".git" / "modules" / "vendor" / "llama.cpp" / "HEAD"
    commit = head.read_text(encoding="ascii").strip() if head.is_file() else ""
    return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else ""


def shader_compiler(env: dict[str, str]) -> str:
    """The versions of glslc and of its glslang, on one line."""
    versions = subprocess.run(["glslc", "--version"], env=env, capture_output=True, text=True, check=True).stdout
    return ", ".join(line.strip() for line in versions.splitlines() if re.match(r"(shaderc|glslang) ", line))


def describe(recipe: Recipe, tree: Path, libraries: list[Path], env: dict[str, str]) -> Manifest:
    """The manifest of the built libraries."""
    files = tuple(
        PackFile(name=p.name, num_bytes=p.stat().st_size, sha256=hashlib.sha256(p.read_bytes()).hexdigest())
        for p in libraries
    )
    version = ggml_version(tree)
    built = {"source": tree.parents[1].name, "commit": engine_commit(tree), "tried": recipe.tried}
    if recipe.backend == "vulkan":
        built["shader_compiler"] = shader_compiler(env)
        built["packages"] = ", ".join(f"{n} {v}" for n, (v, _) in sorted(toolchain.locked_packages().items()))
    if recipe.backend == "cuda":
        nvcc = subprocess.run(["nvcc", "--version"], env=env, capture_output=True, text=True, check=True).stdout
        built["nvcc"] = next(iter(re.findall(r"\bV(\d+\.\d+\.\d+)", nvcc)), "")
        for rule in of_compiler(load(), recipe.backend, built):
            raise SystemExit(f"nvcc {built['nvcc']}: {rule.title}. Use {rule.then.engine}.")
    if recipe.backend == "tiles":
        built["kernels"] = hashlib.sha256(kernels.tiles_sources().encode()).hexdigest()
    words = [LICENCE_WORDS[key] for key in (recipe.backend, recipe.toolchain) if key in LICENCE_WORDS]
    if words:
        built["licences"] = "; ".join(words)
    compilers = {"mingw": ["x86_64-w64-mingw32-g++-posix", "--version"], "msvc": ["cl"]}
    command = compilers.get(recipe.toolchain, ["g++", "--version"])
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    first = (result.stdout or result.stderr).splitlines()[0]
    return parse(
        msgspec.json.encode(
            Manifest(
                format=FORMAT,
                name=recipe.name,
                version=version,
                backend=recipe.backend,
                platform=recipe.platform,
                ggml_version=version,
                headers=headers_hash(tree / "ggml" / "include"),
                files=files,
                glibc=glibc_needed(libraries),
                needs=recipe.needs,
                built={"compiler": first, **built},
            )
        )
    )


def write_archive(manifest: Manifest, libraries: list[Path], target: Path) -> None:
    """Write a .tar.xz whose bytes depend only on the contents."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    partial = target.with_suffix(".part")
    with lzma.open(partial, "wb", filters=FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        # The manifest comes first, so that it can be read without unpacking the rest.
        contents = [(NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2))]
        contents += sorted((path.name, path.read_bytes()) for path in libraries)
        for name, data in contents:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), epoch, 0o644
            archive.addfile(member, BytesIO(data))
    partial.replace(target)


def main() -> int:
    """Build one pack, or list the recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=sorted(RECIPES))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "packs")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--packages", action="store_true")
    parser.add_argument("--mirror")
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.list or options.name is None:
        for recipe in RECIPES.values():
            print(f"{recipe.name:28} {recipe.tried}")
        return 0
    recipe = RECIPES[options.name]
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    vulkan, intel = recipe.backend == "vulkan", recipe.backend == "openvino"
    root = None
    if options.packages and vulkan:
        root = toolchain.unpack_packages(options.work, mirror=options.mirror, newest=options.newest)
    env = toolchain.environment(root)
    if problem := toolchain.missing_tools(recipe.tools, env) or toolchain.bad_tool(recipe, env):
        print(f"{recipe.name}: {problem}.")
        return 3
    if root is not None:
        env |= toolchain.kept_shaders(options.work, toolchain.source_tree(options.work))
    extra, bundled = toolchain.vulkan_flags(root, windows=recipe.toolchain == "mingw") if vulkan else [], []
    if intel:
        opencl = openvino.unpack_opencl(options.work) if options.packages else None
        wheel = openvino.unpack_wheel(options.work)
        extra = openvino.cmake_flags(wheel, opencl)
        bundled = openvino.collect(wheel, opencl, options.work / "brought")
    libraries = compile_plugin(recipe, options.work, extra, env, options.jobs) + bundled
    libraries += _licences(recipe, options.work)
    needed = glibc_needed(libraries)
    if needed and tuple(map(int, needed.split("."))) > NEWEST_GLIBC:
        print(f"{recipe.name} needs glibc {needed}, {NEWEST_GLIBC} is the newest allowed: build on Debian 12")
        return 4
    manifest = describe(recipe, toolchain.source_tree(options.work), libraries, env)
    target = options.out / f"{manifest.name}-{manifest.version}.tar.xz"
    write_archive(manifest, libraries, target)
    print(f"{target}: {target.stat().st_size >> 20} MiB, {manifest.num_bytes >> 20} MiB unpacked")
    for file in manifest.files:
        print(f"  {file.name} {file.num_bytes} bytes, sha256 {file.sha256[:16]}…")
    return compare(target, options.compare) if options.compare else 0


def compare(built: Path, committed: Path) -> int:
    """Return 0 if both files have the same bytes; else print the manifest differences and return 1."""
    if built.read_bytes() == committed.read_bytes():
        print(f"{committed.name} is what the sources give, byte for byte")
        return 0
    print(f"{committed} is not what the sources give here:")
    ours, theirs = (msgspec.to_builtins(read_manifest(path)) for path in (built, committed))
    for key in ours:
        if ours[key] != theirs[key]:
            print(f"  {key}: built {ours[key]}\n  {' ' * len(key)}  kept  {theirs[key]}")
    return 1


def read_manifest(archive: Path) -> Manifest:
    """The manifest in a pack."""
    with tarfile.open(archive) as packed:
        member = packed.extractfile(NAME)
        assert member is not None
        return parse(member.read())


if __name__ == "__main__":
    sys.exit(main())
