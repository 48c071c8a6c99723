"""Builds the folder of the installed program: locked packages, portable kernels, PyInstaller."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Final

from installers.bootstrap import kernels

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = ROOT / "installers" / "lock"
# Every x86 level as a separate plugin, chosen when a model is loaded, so that the build machine's CPU does not
# matter.
PORTABLE: Final = (
    "GGML_BACKEND_DL=ON", "GGML_NATIVE=OFF", "GGML_CPU_ALL_VARIANTS=ON", "GGML_RPC=ON",
    "CMAKE_INSTALL_BINDIR=llama_cpp/lib", "CMAKE_INSTALL_LIBDIR=llama_cpp/lib",
    "CMAKE_INSTALL_INCLUDEDIR=llama_cpp/include", "CMAKE_INSTALL_RPATH=$ORIGIN",
)  # fmt: skip
# A library is replaced by its stripped copy only if that saves at least this much.
LEAST_GAIN_BYTES: Final = 64 << 10
# 1 January 2026: the date of archives and compiled files, unless SOURCE_DATE_EPOCH is set.
EPOCH: Final = "1767225600"


def environment() -> dict[str, str]:
    """Environment variables for reproducible builds: one date, one hash order."""
    return {"SOURCE_DATE_EPOCH": EPOCH, **os.environ, "PYTHONHASHSEED": "0"}


def _made_from(*names: str) -> str:
    """A hash of these locks, the kernel options and sources; an earlier build with the same hash is reused."""
    parts = [*PORTABLE, kernels.tiles_sources(), *((LOCKS / name).read_text("utf-8") for name in names)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def python_in(work: Path) -> Path:
    """The interpreter of an environment with the locked packages and PyInstaller, created once below `work`."""
    folder = work / "venv"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    mark, made_from = folder / "complete", _made_from("desktop.txt", "build.txt", "bundle.txt")
    if not mark.exists() or mark.read_text("utf-8") != made_from:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
        for name in ("desktop.txt", "build.txt", "bundle.txt"):
            subprocess.run([*pip, "-r", str(LOCKS / name)], check=True)
        mark.write_text(made_from, encoding="utf-8")
    return python


def portable_wheel(python: Path, work: Path, jobs: int) -> Path:
    """A llama-cpp-python wheel for every CPU of this architecture, built once below `work`."""
    folder = work / f"wheel-{_made_from('build.txt', 'llama.txt')}"
    if wheels := list(folder.glob("llama_cpp_python-*.whl")):
        return wheels[0]
    sources = work / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    env = environment()
    env["CMAKE_ARGS"] = " ".join((*(f"-D{flag}" for flag in PORTABLE), kernels.included_files()))
    env["CMAKE_BUILD_PARALLEL_LEVEL"] = str(jobs)
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    # The sources' CMake files query git for a commit; stop git from finding a repository above the work folder.
    env["GIT_CEILING_DIRECTORIES"] = str(sources)
    if os.name != "nt":  # assertions contain their file's path: make it independent of the work folder
        env["CFLAGS"] = env["CXXFLAGS"] = f"-ffile-prefix-map={sources}= -ffile-prefix-map={kernels.TILES}=tiles"
    pip = [str(python), "-m", "pip"]
    lock = ["--require-hashes", "-r", str(LOCKS / "llama.txt"), "-d", str(sources)]
    take = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", *lock]
    subprocess.run([*pip, *take], check=True, env=env)
    archive = next(sources.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(sources, filter="data")
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    place = ["-C", f"build-dir={sources / 'made'}"]
    make = ["wheel", "--no-deps", "--no-build-isolation", *place, "-w", str(folder), str(unpacked)]
    subprocess.run([*pip, *make], check=True, env=env)
    return next(folder.glob("llama_cpp_python-*.whl"))


def bundle(work: Path, *, jobs: int) -> Path:
    """Build the program's folder, `tessera` below `work`/bundle."""
    print("[1/3] locked packages", flush=True)
    python = python_in(work)
    print("[2/3] kernels for every CPU", flush=True)
    wheel = portable_wheel(python, work, jobs)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--force-reinstall",
    ]
    subprocess.run([*pip, str(wheel)], check=True)
    subprocess.run([*pip, "--no-build-isolation", str(ROOT)], check=True, env=environment())
    print("[3/3] collecting the program", flush=True)
    out = work / "bundle"
    shutil.rmtree(out, ignore_errors=True)
    spec = ROOT / "installers" / "bundle" / "tessera.spec"
    command = [str(python), "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", "--distpath", str(out)]
    icons = work / "icons"
    subprocess.run([str(python), "-m", "installers.bundle.icons", str(icons)], check=True, cwd=ROOT)
    env = {**environment(), "TESSERA_ROOT": str(ROOT), "TESSERA_ICONS": str(icons)}
    subprocess.run([*command, "--workpath", str(work / "pyinstaller"), str(spec)], check=True, env=env, cwd=work)
    if sys.platform == "linux":
        _strip(out / "tessera" / "_internal")
    _forget_scripts(out / "tessera" / "_internal")
    _link_copies(out / "tessera" / "_internal" / "llama_cpp" / "lib")
    return out / "tessera"


def _forget_scripts(folder: Path) -> None:
    """Remove scripts from the lists of installed files: their paths are outside of the bundle."""
    for path in folder.glob("*.dist-info/RECORD"):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        remaining = [line for line in lines if not line.startswith("../") and "/direct_url.json," not in line]
        path.write_text("".join(remaining), encoding="utf-8")


def _strip(folder: Path) -> None:
    """Strip symbols that only debuggers use: 55 MB in the wheels' and Python's libraries.

    Libraries below NAME.libs are skipped: auditwheel rewrote them, and strip does not always keep them loadable.
    """
    for path in sorted(folder.rglob("*.so*")):
        if path.is_symlink() or not path.is_file() or path.parent.name.endswith(".libs"):
            continue
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        stripped = path.with_name(f"{path.name}.stripped")
        subprocess.run(["strip", "--strip-unneeded", "-o", str(stripped), str(path)], check=True)
        if path.stat().st_size - stripped.stat().st_size > LEAST_GAIN_BYTES:
            stripped.chmod(path.stat().st_mode)
            stripped.replace(path)
        else:
            stripped.unlink()


def _link_copies(folder: Path) -> None:
    """Replace a wheel's copies of a library (one per version name) by links to one file."""
    if sys.platform == "win32" or not folder.is_dir():
        return
    first: dict[bytes, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda p: (len(p.name), p.name)):
        data = path.read_bytes()
        if data in first:
            path.unlink()
            path.symlink_to(first[data].name)
        else:
            first[data] = path


def sizes(folder: Path) -> list[tuple[str, int]]:
    """Bytes per part, largest first: the packages in the program's folder, small ones combined."""
    inside = folder / "_internal"
    by_name = {}
    for path in [*inside.iterdir(), folder / "tessera"]:
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and not p.is_symlink()]
        by_name[path.name] = sum(p.stat().st_size for p in files if not p.is_symlink())
    large = [(name, size) for name, size in by_name.items() if size > 4 << 20]
    rest = sum(size for size in by_name.values() if size <= 4 << 20)
    return [*sorted(large, key=lambda item: -item[1]), ("everything else", rest)]
