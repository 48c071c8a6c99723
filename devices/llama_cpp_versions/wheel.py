"""Reads wheels of llama-cpp-python: their names, and their files, unpacked within limits."""

import base64
import csv
import hashlib
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from packaging import tags, utils

from devices.errors import EngineVersionRefused
from devices.llama_cpp_versions.names import PACKAGE, VERSION_NAME

# The largest wheel contains CUDA libraries for many architectures: 1.5 GB unpacked.
MAX_BYTES: Final = 4 << 30
MAX_FILES: Final = 5_000
_CHUNK: Final = 1 << 20


def checked_name(wheel: Path) -> str:
    """The version in the wheel's name, if it is llama-cpp-python's and for this Python and system."""
    try:
        name, version, _, fits = utils.parse_wheel_filename(wheel.name)
    except utils.InvalidWheelFilename as error:
        raise EngineVersionRefused(f"{wheel.name} is not named like a wheel: {error}") from error
    if name != "llama-cpp-python":
        raise EngineVersionRefused(f"{wheel.name} is a wheel of {name}, not of llama-cpp-python")
    if fits.isdisjoint(tags.sys_tags()):
        supported = " or ".join(sorted(map(str, fits)))
        raise EngineVersionRefused(f"{wheel.name} is for {supported}, this is {next(iter(tags.sys_tags()))}")
    if not VERSION_NAME.match(str(version)):
        raise EngineVersionRefused(f"{wheel.name} has a version that cannot name a folder")
    return str(version)


def unpack(wheel: Path, target: Path) -> None:
    """Unpack the package's files below `target`, within limits; each must match the hash in the wheel's RECORD."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            _check_bounds(wheel, infos)
            hashes = _recorded(archive, infos)
            package_files = [info for info in infos if info.filename.startswith(f"{PACKAGE}/")]
            if f"{PACKAGE}/{PACKAGE}.py" not in {info.filename for info in package_files}:
                raise EngineVersionRefused(f"{wheel.name} contains no {PACKAGE}/{PACKAGE}.py")
            for info in package_files:
                digest = _extract(archive, info, target)
                if hashes.get(info.filename) != digest:
                    raise EngineVersionRefused(f"{info.filename} in {wheel.name} is not what its list says")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise EngineVersionRefused(f"{wheel.name} cannot be unpacked: {error}") from error


def _check_bounds(wheel: Path, infos: list[zipfile.ZipInfo]) -> None:
    total = sum(info.file_size for info in infos)
    if total > MAX_BYTES or len(infos) > MAX_FILES:
        raise EngineVersionRefused(
            f"{wheel.name} holds {len(infos)} files of {total} bytes; "
            f"at most {MAX_FILES} and {MAX_BYTES} are unpacked"
        )
    for info in infos:
        path = PurePosixPath(info.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in info.filename or ":" in info.filename:
            raise EngineVersionRefused(
                f"{wheel.name} contains a file that would be unpacked outside its folder: {info.filename[:80]!r}"
            )


def _recorded(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> dict[str, str]:
    """SHA-256 by file, as urlsafe base64 without padding, from the RECORD."""
    record = next((info for info in infos if info.filename.endswith(".dist-info/RECORD")), None)
    if record is None or record.file_size > _CHUNK * 4:
        raise EngineVersionRefused("the wheel has no RECORD of its files, or one of an impossible size")
    rows = csv.reader(archive.read(record).decode("utf-8", "replace").splitlines())
    return {row[0]: row[1].removeprefix("sha256=") for row in rows if len(row) > 1}


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> str:
    path = target / info.filename
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, remaining = hashlib.sha256(), info.file_size
    with archive.open(info) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            remaining -= len(chunk)
            if remaining < 0:
                raise EngineVersionRefused(f"{info.filename} is larger than the wheel says")
            digest.update(chunk)
            file.write(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
