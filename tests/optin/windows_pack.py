"""Opt-in: a kernel pack for Windows, loaded under wine: entry points, devices, and what is refused.

    python installers/packs/build.py NAME-windows-x86_64 --packages --work FOLDER --out OUT
    python tests/optin/windows_pack.py OUT/NAME-….tar.xz --work FOLDER [--jobs N] [--record]

Needs wine, mingw-w64, CMake and Ninja. ggml.dll and ggml-base.dll come from the pack's own build folder. A probe of
a few lines loads the plugin through ggml, as Tessera does, and a plugin of a foreign ggml must be refused. Wine has
its own WINEPREFIX below FOLDER. With xvfb-run and a Vulkan driver of this system (Mesa's software one will do) wine
hands the driver's devices to a Vulkan plugin; without, it loads, lists no device and says so.

Tessera's own kernels (tiles) compute products of every type they take and attention, with each set of instructions
that this processor has, beside ggml's kernels for Windows and sums in 64 bits. `--record` writes what came out to
windows_results.json. wine is not Windows: what passes here was still not run there.
"""

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec

from devices.errors import PackRefused
from devices.kernel_packs import abi
from devices.kernel_packs.manifest import NAME, check_files, parse
from installers.packs.build import ggml_version
from installers.packs.toolchain import source_tree
from quantize.ggml_types import TILED, GgmlType
from tests.bench.recording import machine

HERE = Path(__file__).parent
COMPILER = "x86_64-w64-mingw32-gcc"
WINE_TIMEOUT_S = 600
RESULTS = HERE / "windows_results.json"
INSTRUCTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
# Instructions of our kernels that are chosen by TESSERA_TILES; "" are the best that the processor has.
SETS = ("", "avx2")
# Our error may exceed that of ggml's kernels by this factor and this much: sums of 32 bits in another order.
FACTOR, SLACK = 1.1, 1e-5


def wine_version() -> str:
    """Wine's version."""
    return subprocess.run(["wine", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def compiled(source: str, target: Path, *flags: str) -> Path:
    """A Windows program or DLL of one C file."""
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Wno-cast-function-type", *flags, HERE / source, "-o", target]
    subprocess.run(command, check=True)
    return target


def runtime(work: Path, name: str, jobs: int) -> Path:
    """ggml.dll and ggml-base.dll of the pack's build, and ggml's CPU kernels with AVX2, which rewrite weights."""
    made = work / f"build-{name}"
    subprocess.run(["cmake", *(f"-DGGML_{each}=ON" for each in INSTRUCTIONS), str(made)], check=True)
    subprocess.run(["ninja", "-C", str(made), f"-j{jobs}", "ggml"], check=True)
    return made / "bin"


def under_wine(work: Path, *command: Path | str, **variables: str) -> tuple[int, str]:
    """Exit code and output; arguments that are paths are given as Windows has them."""
    env = {**os.environ, "WINEPREFIX": str(work / "wine"), "WINEDEBUG": "-all", "WINEARCH": "win64"}
    env |= {"GGML_VK_VISIBLE_DEVICES": "0", **variables}  # ggml hides devices of type CPU otherwise
    screen = ["xvfb-run", "-a"] if shutil.which("xvfb-run") else []
    words = ("Z:" + str(word).replace("/", "\\") if isinstance(word, Path) else word for word in command[1:])
    names = [str(command[0]), *words]
    done = subprocess.run(
        [*screen, "wine", *names], env=env, capture_output=True, text=True, check=False, timeout=WINE_TIMEOUT_S
    )
    return done.returncode, done.stdout.replace("\r", "") + (done.stderr if done.returncode else "")


def compared(work: Path, tiles: Path, libraries: Path, tree: Path) -> tuple[list[dict[str, Any]], bool]:
    """What our kernels compute next to ggml's, case by case; and whether one is wrong, or was left to ggml."""
    ggml = tree / "ggml"
    probe = libraries / "windows_tiles.exe"  # beside the libraries that it is linked with
    built = [str(path) for name in ("ggml", "ggml-base") for path in libraries.parent.rglob(f"lib{name}.dll.a")]
    command = [
        f"{COMPILER.removesuffix('gcc')}g++-posix",
        "-O2",
        "-std=c++17",
        "-Wall",
        "-static",
        "-o",
        str(probe),
    ]
    command += ["-I", str(ggml / "include"), "-D_WIN32_WINNT=0x0A00", str(HERE / "windows_tiles.cpp"), *built]
    subprocess.run(command, check=True)
    types = [f"{int(GgmlType[t])}+" if GgmlType[t].traits.tiles_of_copy else str(int(GgmlType[t])) for t in TILED]
    found, failed = [], False
    for instructions in SETS:
        variables = {"TESSERA_TILES": instructions} if instructions else {}
        code, told = under_wine(work, probe, tiles, libraries / "ggml-cpu.dll", *types, **variables)
        lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        failed |= code != 0 or "failed" in lines[-1]
        for line in lines:
            print("  " + " ".join(f"{key}={value}" for key, value in line.items()))
            if line.get("taken"):
                failed |= line["ours"] > FACTOR * line["ggml"] + SLACK or not line["same_by_threads"]
        found.append({**lines[0], "cases": lines[1:]})
    best = {case["case"] for case in found[0]["cases"] if case["taken"]}
    expected = {
        GgmlType[t].name.lower() + (" rewritten" if GgmlType[t].traits.tiles_of_copy else "") for t in TILED
    }
    left = {name for name in expected if name not in {case.lower() for case in best}}
    if left:
        print(f"  left to ggml: {', '.join(sorted(left))}")
    return found, failed


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
    parser.add_argument("--record", action="store_true")
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
    for file in (each for each in manifest.files if each.name.endswith(".dll")):
        code, told = under_wine(work, probe, libraries, folder / file.name)
        print(f"{file.name}: exit {code}\n  " + "\n  ".join(told.strip().splitlines()))
        failed |= not re.search(r"^entry ggml_backend_init yes$", told, re.MULTILINE)
        failed |= manifest.backend == "cpu" and "score 0" not in told and "device CPU" not in told
    if manifest.backend == "tiles":
        found, wrong = compared(work, folder / "ggml-tiles.dll", libraries, source_tree(work))
        failed |= wrong
        if options.record:
            head = {
                "date": dt.datetime.now(dt.UTC).date().isoformat(),
                "machine": machine(),
                "system": wine_version(),
            }
            about = {**head, "pack": manifest.files[0].sha256, **manifest.built, "right": not wrong}
            RESULTS.write_text(json.dumps({**about, "runs": found}, indent=1) + "\n", encoding="utf-8")
    foreign = compiled("windows_foreign.c", folder / "ggml-foreign.dll", "-shared")
    code, told = under_wine(work, probe, libraries, foreign)
    print(f"a plugin of a foreign ggml: exit {code}\n  " + "\n  ".join(told.strip().splitlines()))
    failed |= "refused" not in told.splitlines()
    refusals(folder, source_tree(work))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
