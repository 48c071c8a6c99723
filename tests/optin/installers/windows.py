"""Opt-in: runs the Windows installer under wine, around a stub: install, upgrade, refuse, uninstall, all silent.

    python tests/optin/installers/windows.py [--work FOLDER]

Needs makensis, 64-bit wine and x86_64-w64-mingw32-gcc (Debian: nsis, wine64, gcc-mingw-w64-x86-64). wine's files
are below the work folder. Prints one line per step and exits with 1 at the first failure. wine is not Windows:
this does not replace a run there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from installers.windows.package import nsis

ENVIRONMENT_KEY, CLASSES = r"HKCU\Environment", r"HKCU\Software\Classes"
LIST = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\Tessera"
LIMIT_S = 300


class Windows:
    """A fresh wine prefix below `folder`; its commands run in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "prefix"
        shutil.rmtree(self.prefix, ignore_errors=True)
        self.notes = folder / "notes"
        shutil.rmtree(self.notes, ignore_errors=True)
        self.notes.mkdir(parents=True)
        self.env = {
            **os.environ, "WINEPREFIX": str(self.prefix), "WINEARCH": "win64", "WINEDEBUG": "-all",
            "DISPLAY": "", "WINEDLLOVERRIDES": "mscoree,mshtml=",
            "STUB_NOTES": "Z:" + str(self.notes).replace("/", "\\"),
        }  # fmt: skip
        self.run("wineboot", "-i")
        user = next(p for p in (self.prefix / "drive_c/users").iterdir() if p.name != "Public")
        self.local = user / "AppData/Local"
        self.menu = user / "AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Tessera"

    def run(self, *command: str, expect: int | None = 0) -> str:
        done = subprocess.run(
            ["wine", *command], env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if expect is not None and done.returncode != expect:
            raise AssertionError(
                f"{command} ended with {done.returncode}, not {expect}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["wine", *command], env=self.env, stderr=subprocess.DEVNULL)

    def value(self, key: str, name: str = "") -> str | None:
        """A text in the registry; None if there is none."""
        which = ("/v", name) if name else ("/ve",)
        said = self.run("reg", "query", key, *which, expect=None)
        for line in said.splitlines():
            for kind in ("REG_EXPAND_SZ", "REG_SZ", "REG_DWORD"):
                if kind in line:
                    return line.split(kind, 1)[1].strip()
        return None

    def set(self, key: str, name: str, value: str) -> None:
        which = ("/v", name) if name else ("/ve",)
        self.run("reg", "add", key, *which, "/t", "REG_EXPAND_SZ", "/d", value, "/f")

    def called(self) -> list[str]:
        """What the stub recorded since the last query."""
        file = self.notes / "called.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def end(self) -> None:
        subprocess.run(["wineserver", "-k"], env=self.env, check=False)


def until(wanted, what: str) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + LIMIT_S
    while not wanted():
        if time.monotonic() > end:
            raise AssertionError(f"not after {LIMIT_S} s: {what}")
        time.sleep(0.2)


def stub(folder: Path, extra: str) -> Path:
    """A program's folder with the stub as both executables; `extra` is a file that one version has."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "_internal").mkdir(parents=True)
    compiler = ["x86_64-w64-mingw32-gcc", "-O1", "-o", str(folder / "tessera.exe")]
    subprocess.run([*compiler, str(Path(__file__).with_name("stub.c"))], check=True)
    shutil.copy(folder / "tessera.exe", folder / "tessera-window.exe")
    (folder / "_internal" / extra).write_text(extra)
    return folder


def uninstall(machine: Windows, folder: Path, *options: str) -> None:
    """The uninstaller copies itself elsewhere and returns at once: its folder's end is waited for."""
    machine.run(str(folder / "uninstall.exe"), "/S", *options)
    until(lambda: not folder.exists() and machine.value(LIST, "DisplayName") is None, f"{folder} gone")


def steps(work: Path) -> None:
    """Every step, each with what must be seen. Raises: AssertionError."""
    old = nsis(stub(work / "old", "old.bin"), work, "1.2.3")
    new = nsis(stub(work / "new", "new.bin"), work, "1.2.4")
    tell("compiled", f"{old.name}, {old.stat().st_size:,} bytes, 64 bit")
    machine = Windows(work)
    try:
        installed_and_removed(machine, old, new)
        elsewhere(machine, new)
    finally:
        machine.end()


def installed_and_removed(machine: Windows, old: Path, new: Path) -> None:
    folder = machine.local / "Programs" / "Tessera"
    machine.set(ENVIRONMENT_KEY, "Path", r"C:\before;%SystemRoot%\x")
    machine.set(rf"{CLASSES}\.gguf", "", "Other.Model")
    machine.run(str(old), "/S")
    ours = next(line for line in (machine.value(r"HKCU\Software\Tessera", "Folder"),) if line)
    assert (folder / "tessera.exe").exists()
    assert (folder / "_internal/old.bin").exists()
    assert sorted(p.name for p in machine.menu.iterdir()) == ["Tessera.lnk", "Uninstall Tessera.lnk"]
    assert machine.value(LIST, "DisplayVersion") == "1.2.3"
    assert machine.value(ENVIRONMENT_KEY, "Path") == rf"C:\before;%SystemRoot%\x;{ours}"
    tell("installed", f"for one user in {ours}, menu and PATH set, asked nothing")
    machine.called()
    models = machine.local / "tessera" / "models"
    models.mkdir(parents=True)
    (models / "a model.gguf").write_bytes(b"GGUF")
    # Windows shows a user's classes among the machine's; wine 8 looks at the machine's alone.
    for name in (".gguf", "Tessera.Model"):
        machine.run("reg", "copy", rf"{CLASSES}\{name}", rf"HKLM\Software\Classes\{name}", "/s", "/f")
    named = (models / "a model.gguf").relative_to(machine.prefix / "drive_c").as_posix().replace("/", "\\")
    machine.run("start", "/wait", rf"C:\{named}")
    (seen,) = machine.called()
    program, _, argument = seen.partition("|")
    assert program == "tessera-window.exe"
    assert argument.endswith("a model.gguf"), argument
    tell("opening a .gguf file", seen)
    busy = machine.start(str(folder / "tessera.exe"), "stay")
    until((machine.notes / "called.txt").exists, "the stub runs")
    machine.run(str(new), "/S", expect=2)
    machine.run(str(folder / "uninstall.exe"), "/S", f"_?={ours}", expect=2)
    assert (folder / "_internal/old.bin").exists()
    assert machine.value(LIST, "DisplayVersion") == "1.2.3"
    (machine.notes / "go").touch()
    busy.wait(LIMIT_S)
    tell("while it runs", "upgrade and removal end with 2, nothing changed")
    machine.run(str(new), "/S")
    assert sorted(p.name for p in (folder / "_internal").iterdir()) == ["new.bin"]
    assert machine.value(LIST, "DisplayVersion") == "1.2.4"
    assert machine.value(ENVIRONMENT_KEY, "Path") == rf"C:\before;%SystemRoot%\x;{ours}"
    tell("upgrade", "the earlier version's files are gone, PATH holds the folder once")
    machine.set(ENVIRONMENT_KEY, "Path", rf"C:\before;{ours};C:\Tessera;C:\after")
    machine.called()
    uninstall(machine, folder)
    assert machine.called() == ["tessera.exe|service|remove"]
    assert (models / "a model.gguf").exists()
    assert not machine.menu.exists()
    assert machine.value(ENVIRONMENT_KEY, "Path") == r"C:\before;C:\Tessera;C:\after"
    assert machine.value(rf"{CLASSES}\.gguf") == "Other.Model"
    assert machine.value(rf"{CLASSES}\Tessera.Model\shell\open\command") is None
    assert machine.value(r"HKCU\Software\Tessera", "Folder") is None
    tell("removal", "service stopped, PATH and .gguf as before, models kept")


def elsewhere(machine: Windows, setup: Path) -> None:
    folder = machine.prefix / "drive_c" / "Own" / "T"
    long = ";".join(rf"C:\{number:04}\abcdefghijklmnop" for number in range(60))
    machine.run(str(setup), "/S", "/PATH=0", r"/D=C:\Own\T")
    assert (folder / "tessera.exe").exists()
    assert machine.value(ENVIRONMENT_KEY, "Path") == r"C:\before;C:\Tessera;C:\after"
    uninstall(machine, folder, "/MODELS")
    assert not (machine.local / "tessera").exists()
    tell("another folder", "/D and /PATH=0 are kept to; /MODELS removes models")
    machine.set(ENVIRONMENT_KEY, "Path", long)
    machine.run(str(setup), "/S", r"/D=C:\Own\T")
    assert machine.value(ENVIRONMENT_KEY, "Path") == long
    uninstall(machine, folder)
    assert machine.value(ENVIRONMENT_KEY, "Path") == long
    tell("a PATH longer than NSIS can hold", f"{len(long)} characters, untouched")


def tell(step: str, seen: str) -> None:
    print(f"{step}: {seen}", flush=True)


def main() -> int:
    """Run every step in a fresh wine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/windows_installer"))
    options = parser.parse_args()
    missing = [t for t in ("makensis", "wine", "x86_64-w64-mingw32-gcc") if shutil.which(t) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}")
    options.work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        steps(options.work.resolve())
    except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        tell("FAILED", str(error))
        return 1
    tell("all", f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
