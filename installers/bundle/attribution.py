"""Finds the origin of every file in the bundle; lists parts without Python package metadata with their licence.

Python itself, PyInstaller's bootloader and libraries of the build system's packages end up in the program's folder.
A file of unknown origin stops the build, so that nothing is distributed without its licence.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from packaging.utils import canonicalize_name

from app.licences import UNSAID, Component

DOCUMENTS: Final = Path("/usr/share/doc")
_LICENCE_LINE: Final = re.compile(r"^License: *(\S.*)$", re.MULTILINE)
_LISTED: Final = re.compile(r"^(\S+): (/\S+)$", re.MULTILINE)
# A build tool; only its bootloader is in the bundle. setuptools' shim is not included.
BOOTLOADER: Final = "pyinstaller"


def bundled_components(files: Iterable[Path], own: tuple[Path, ...], names: set[str]) -> list[Component]:
    """The components of files outside of the packages in `names` (canonical names) and Tessera's `own` folders.

    Raises: RuntimeError: a file belongs to an unlisted package, or to none.
    """
    site = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    python = {Path(p).resolve() for p in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))}
    owners, system, strangers = _owners(), set(), []
    for file in sorted({Path(f) for f in files}):
        place = file.resolve()
        if any(folder in (*file.parents, *place.parents) for folder in site):
            owner = owners.get(str(file)) or owners.get(str(place))
            if owner not in names | {BOOTLOADER, "tessera"}:
                strangers.append(f"{file} of {owner or 'no package'}")
        elif any(folder in place.parents for folder in (*own, *python)) or _is_python(place):
            continue
        elif not _is_windows(place):
            system.add(place)
    packages, unknown = _debian(system)
    strangers += unknown
    if strangers:
        raise RuntimeError("files of parts whose licence is not listed:\n" + "\n".join(strangers))
    return [_python(), _bootloader(), *packages]


def _is_python(file: Path) -> bool:
    """Return whether the file is the interpreter's own library, which is outside of its module folder."""
    names = (sysconfig.get_config_var("LDLIBRARY"), sysconfig.get_config_var("INSTSONAME"))
    return file.name in names or (Path(sys.base_prefix).resolve() in file.parents and sys.platform != "linux")


def _is_windows(file: Path) -> bool:
    """Return whether the file is a Windows library, which Microsoft's terms allow programs to redistribute."""
    return sys.platform == "win32" and Path(os.environ["SYSTEMROOT"]).resolve() in file.parents


def _owners() -> dict[str, str]:
    owners: dict[str, str] = {}
    for dist in metadata.distributions():
        name, folder = canonicalize_name(dist.metadata["Name"]), str(dist.locate_file(""))
        for file in dist.files or ():
            owners[os.path.join(folder, file)] = name  # as strings, because there are tens of thousands
    return owners


def _debian(files: set[Path]) -> tuple[list[Component], list[str]]:
    """Components of the Debian packages that own the files; and the files without a package."""
    packages, strangers = set(), []
    for file in sorted(files):
        # With merged /usr, dpkg knows a library below /lib or /usr/lib, depending on how its package was built.
        names = [str(file), str(file).removeprefix("/usr"), f"/usr{file}"]
        try:
            listing = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            listing = ""
        if match := _LISTED.search(listing):
            packages.add(match[1].partition(":")[0])
        else:
            strangers.append(f"{file} of no package of this system")
    return [_debian_package(name) for name in sorted(packages)], strangers


def _debian_package(name: str) -> Component:
    command = ["dpkg-query", "-W", "-f", "${Version}\n${Homepage}\n", name]
    version, page, *_ = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    text = (DOCUMENTS / name / "copyright").read_text(encoding="utf-8", errors="replace")
    names = list(dict.fromkeys(_LICENCE_LINE.findall(text)))
    return Component(
        name=f"{name} (library)", version=version, licence=", ".join(names[:4]) or UNSAID, page=page, text=text
    )


def _python() -> Component:
    text = ""
    for place in (Path(sysconfig.get_path("stdlib")), Path(sys.base_prefix)):
        if (place / "LICENSE.txt").exists():
            text = (place / "LICENSE.txt").read_text(encoding="utf-8")
            break
    else:  # a distribution's Python has it in its documentation folder
        for file in DOCUMENTS.glob(f"python3.{sys.version_info.minor}*/copyright"):
            text = file.read_text(encoding="utf-8", errors="replace")
    if not text:
        raise RuntimeError("the licence of this Python was not found")
    version = ".".join(map(str, sys.version_info[:3]))
    return Component(name="Python", version=version, licence="PSF-2.0", page="https://www.python.org", text=text)


def _bootloader() -> Component:
    dist = metadata.distribution(BOOTLOADER)
    text = next(f.read_text(encoding="utf-8") for f in dist.files or () if f.name.upper().startswith("COPYING"))
    licence = "GPL-2.0-or-later WITH Bootloader-exception"
    return Component(
        name="PyInstaller's start program",
        version=dist.version,
        licence=licence,
        page="https://pyinstaller.org",
        text=text,
    )


def written(parts: list[Component], target: Path) -> Path:
    """Write the components as the JSON file that the program reads."""
    target.write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1))
    return target
