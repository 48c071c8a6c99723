"""Opt-in: a kernel pack for Windows, loaded under wine: entry points, devices, and what is refused.

    python installers/packs/build.py NAME-windows-x86_64 --packages --work FOLDER --out OUT
    python tests/optin/windows_pack.py OUT/NAME-….tar.xz --work FOLDER [--jobs N]

Needs wine, mingw-w64, CMake and Ninja. ggml.dll and ggml-base.dll come from the pack's own build folder. A probe of
a few lines loads the plugin through ggml, as Tessera does, and a plugin of a foreign ggml must be refused. Wine has
its own WINEPREFIX below FOLDER. With xvfb-run and a Vulkan driver of this system (Mesa's software one will do) wine
hands the driver's devices to a Vulkan plugin; without, it loads, lists no device and says so.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec

from devices.errors import PackRefused
from devices.kernel_packs import abi
from devices.kernel_packs.manifest import NAME, check_files, parse
from installers.packs.build import ggml_version
from installers.packs.toolchain import source_tree

HERE = Path(__file__).parent
COMPILER = "x86_64-w64-mingw32-gcc"
WINE_TIMEOUT_S = 300


def compiled(source: str, target: Path, *flags: str) -> Path:
    """A Windows program or DLL of one C file."""
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Wno-cast-function-type", *flags, HERE / source, "-o", target]
    subprocess.run(command, check=True)
    return target


def runtime(work: Path, name: str, jobs: int) -> Path:
    """ggml.dll and ggml-base.dll of the pack's build."""
    made = work / f"build-{name}"
    subprocess.run(["ninja", "-C", str(made), f"-j{jobs}", "ggml"], check=True)
    return made / "bin"


def under_wine(work: Path, *command: Path) -> tuple[int, str]:
    """Exit code and output."""
    env = {**os.environ, "WINEPREFIX": str(work / "wine"), "WINEDEBUG": "-all", "WINEARCH": "win64"}
    env["GGML_VK_VISIBLE_DEVICES"] = "0"  # ggml hides devices of type CPU otherwise
    screen = ["xvfb-run", "-a"] if shutil.which("xvfb-run") else []
    names = [str(command[0]), *("Z:" + str(path).replace("/", "\\") for path in command[1:])]
    done = subprocess.run(
        [*screen, "wine", *names], env=env, capture_output=True, text=True, check=False, timeout=WINE_TIMEOUT_S
    )
    return done.returncode, done.stdout.replace("\r", "") + (done.stderr if done.returncode else "")


def refusals(pack: Path, tree: Path) -> None:
    """The manifest's checks: what is foreign is refused before anything of it is loaded."""
    manifest = parse((pack / NAME).read_bytes())
    check_files(manifest, pack)
    right = abi.Abi(ggml_version=ggml_version(tree), headers=abi.headers_hash(tree / "ggml" / "include"))
    try:
        abi.check_fits(manifest, right)
    except PackRefused as error:
        print(f"on this system: refused, {error}")
    abi.this_platform = lambda: "windows-x86_64"  # type: ignore[attr-defined]
    abi.check_fits(manifest, right)
    print("on Windows, with the locked ggml: fits")
    for what, other in (
        ("another ggml", msgspec.structs.replace(right, ggml_version="0.0.1")),
        ("other headers", msgspec.structs.replace(right, headers="0" * 64)),
    ):
        try:
            abi.check_fits(manifest, other)
        except PackRefused as error:
            print(f"with {what}: refused, {error}")
        else:
            raise SystemExit(f"with {what}: taken")
    with (pack / manifest.files[0].name).open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    try:
        check_files(manifest, pack)
    except PackRefused as error:
        print(f"with one bit changed: refused, {error}")
    else:
        raise SystemExit("with one bit changed: taken")


def main() -> int:
    """Unpack, load, refuse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "packs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    work = options.work.absolute()
    folder = work / "windows-trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(options.pack) as archive:
        archive.extractall(folder, filter="data")
    manifest = parse((folder / NAME).read_bytes())
    libraries = runtime(work, manifest.name, options.jobs)
    probe = compiled("windows_probe.c", folder / "probe.exe")
    failed = False
    for file in manifest.files:
        code, told = under_wine(work, probe, libraries, folder / file.name)
        print(f"{file.name}: exit {code}\n  " + "\n  ".join(told.strip().splitlines()))
        failed |= not re.search(r"^entry ggml_backend_init yes$", told, re.MULTILINE)
        failed |= manifest.backend == "cpu" and "score 0" not in told and "device CPU" not in told
    foreign = compiled("windows_foreign.c", folder / "ggml-foreign.dll", "-shared")
    code, told = under_wine(work, probe, libraries, foreign)
    print(f"a plugin of a foreign ggml: exit {code}\n  " + "\n  ".join(told.strip().splitlines()))
    failed |= "refused" not in told.splitlines()
    refusals(folder, source_tree(work))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
