"""Build a package of Tessera for this system.

    python installers/build.py TARGET [--out FOLDER] [--with-model FILE] [--pack FILE ...] [--jobs N]

Targets: folder (the program alone), deb, run (Linux), nsis (Windows). Two builds of the same source with the same
compiler and Python give the same bytes. `--with-model` includes a GGUF file; `--pack` adds a kernel pack to those
of this platform in assets/kernels. Windows needs one with Tessera's own kernels, which Linux builds:
`python installers/packs/build.py tiles-windows-x86_64`.
"""

import argparse
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from installers.bundle import make

TARGETS = ("folder", "deb", "run", "nsis")


def version() -> str:
    """The program's version, from engine/core/version.py."""
    return str(runpy.run_path(str(ROOT / "engine" / "core" / "version.py"))["__version__"])


def require_packs(program: Path, platform: str | None = None) -> None:
    """Check that the program's folder, which all packages take as it is, has the kernel packs of its platform.

    Raises: SystemExit.
    """
    from devices.kernel_packs.manifest import this_platform

    assets = ROOT / "assets" / "kernels"
    names = sorted(path.name for path in assets.glob(f"*-{platform or this_platform()}-*.tar.xz"))
    folder = program / "_internal" / "assets" / "kernels"
    for name in names:
        if not (folder / name).is_file() or (folder / name).read_bytes() != (assets / name).read_bytes():
            raise SystemExit(f"{name} is in {assets} but not in the program: see installers/bundle/tessera.spec")


def add_pack(program: Path, archive: Path, work: Path) -> None:
    """Add a kernel pack to the program: Tessera's own kernels next to llama.cpp's libraries, others as an archive.

    Raises: PackRefused: the pack is invalid. SystemExit: its kernels are for another llama.cpp.
    """
    from devices.backends.cpu_kernels import BACKEND
    from devices.kernel_packs.abi import headers_hash
    from devices.kernel_packs.store import PackStore

    pack = PackStore(work / "packs").add(archive)
    if pack.manifest.backend == BACKEND:
        package = program / "_internal" / "llama_cpp"
        if pack.manifest.headers != headers_hash(package / "include"):
            raise SystemExit(
                f"{archive.name} was built from other headers of ggml than the program's: build it again"
            )
        for file in pack.manifest.files:
            if Path(file.name).suffix != ".txt":  # the licences are in assets/licences
                shutil.copy(pack.folder / file.name, package / "lib")
        return
    folder = program / "_internal" / "assets" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(archive, folder / f"{pack.manifest.name}-{pack.manifest.version}.tar.xz")


def require_own_kernels(program: Path, platform: str | None = None) -> None:
    """Check that the program has Tessera's own kernels, if they exist for its platform. Raises: SystemExit."""
    from devices.backends.cpu_kernels import PLATFORMS, tiles_library
    from devices.kernel_packs.manifest import this_platform

    platform = platform or this_platform()
    if platform in PLATFORMS and tiles_library(program / "_internal" / "llama_cpp" / "lib") is None:
        how = (
            "its compiler has no OpenMP"
            if platform.startswith("linux")
            else f"pass --pack tiles-{platform}-….tar.xz"
        )
        raise SystemExit(f"the program has none of Tessera's own kernels: {how}")


def main() -> int:
    """Build the package, then print its sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "installers")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--with-model", type=Path)
    parser.add_argument("--pack", type=Path, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", make.EPOCH)
    python = make.python_in(options.work.resolve())
    if Path(sys.prefix).resolve() != python.parents[1].resolve():  # the rest needs the locked packages
        return subprocess.run([str(python), __file__, *sys.argv[1:]], check=False).returncode
    program = make.bundle(options.work.resolve(), jobs=options.jobs)
    if options.with_model:
        shutil.copy(options.with_model, program / "_internal" / "assets" / "models")
    require_packs(program)
    for archive in options.pack:
        add_pack(program, archive, options.work)
    require_own_kernels(program)
    if options.target == "deb":
        from installers.linux.packages import deb

        print(deb(program, options.out, version(), options.work))
    elif options.target == "run":
        from installers.linux.packages import run_file

        print(run_file(program, options.out, version(), options.work))
    elif options.target == "nsis":
        from installers.windows.package import nsis

        print(nsis(program, options.out, version()))
    total = 0
    for name, size in make.sizes(program):
        total += size
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{total / 1e6:8.1f} MB  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
