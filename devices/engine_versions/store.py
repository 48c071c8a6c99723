"""The installed versions, each unpacked from its wheel into a folder of its own, and which of them is used.

<engines>/<version>/llama_cpp/…
<engines>/in_use.json             {"format": 1, "version": …, "previous": …, "models": {path: version}}
"""

import base64
import csv
import hashlib
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from packaging import tags, utils, version

from devices.errors import EngineVersionRefused

PACKAGE: Final = "llama_cpp"
STATE: Final = "in_use.json"
# What TESSERA_ENGINE_VERSION and `models` call the version that came with the program.
SHIPPED: Final = "shipped"
# A wheel with CUDA's libraries for many architectures is the largest there is, 1.5 GB unpacked.
MAX_BYTES: Final = 4 << 30
MAX_FILES: Final = 5_000
_CHUNK: Final = 1 << 20
_VERSION: Final = re.compile(r"^[0-9][0-9A-Za-z.+]{0,63}$")


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """`version` None: the shipped one. `previous` is what `rollback` goes back to. `models`: version by file."""

    version: str | None = None
    previous: str | None = None
    models: dict[str, str] = {}
    format: int = 1


class EngineVersion(msgspec.Struct, frozen=True, kw_only=True):
    """An installed version; `package` is its `llama_cpp`, `models` the files it is used for alone."""

    version: str
    package: Path
    num_bytes: int
    in_use: bool
    previous: bool
    models: tuple[str, ...] = ()


class VersionStore:
    """Installs, lists and removes. Nothing here loads a library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> tuple[EngineVersion, ...]:
        """Every installed version, the newest first."""
        state = self.state()
        found = []
        for package in self.folder.glob(f"*/{PACKAGE}") if self.folder.is_dir() else ():
            name = package.parent.name
            if not _VERSION.match(name):
                continue
            found.append(
                EngineVersion(
                    version=name,
                    package=package,
                    num_bytes=sum(p.stat().st_size for p in package.rglob("*") if p.is_file()),
                    in_use=state.version == name,
                    previous=state.previous == name,
                    models=tuple(sorted(path for path, used in state.models.items() if used == name)),
                )
            )
        return tuple(sorted(found, key=lambda each: version.parse(each.version), reverse=True))

    def package(self, name: str) -> Path:
        """The `llama_cpp` folder of an installed version. Raises: EngineVersionRefused: it is not installed."""
        found = self.folder / name / PACKAGE
        if not _VERSION.match(name) or not found.is_dir():
            there = ", ".join(each.version for each in self.versions()) or "none"
            raise EngineVersionRefused(f"version {name[:64]!r} is not installed; there are: {there}")
        return found

    def chosen(self, model: str | None = None) -> str | None:
        """The version for this model file, or for all; None is the shipped one. One that is gone is not chosen."""
        state = self.state()
        name = state.models.get(model, state.version) if model else state.version
        if name is None or name == SHIPPED or not (self.folder / name / PACKAGE).is_dir():
            return None
        return name

    def add(self, wheel: Path) -> EngineVersion:
        """Unpack a wheel, unused yet. Every file is compared with the wheel's own list of hashes.

        Raises: EngineVersionRefused: no wheel of llama-cpp-python for this Python and system, or a damaged one.
        """
        name = _checked_name(wheel)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".incoming-") as work:
            _unpack(wheel, Path(work) / name)
            target = self.folder / name
            if target.exists():
                shutil.rmtree(target)
            (Path(work) / name).rename(target)
        return next(each for each in self.versions() if each.version == name)

    def use(self, name: str | None, model: str | None = None) -> None:
        """From the next start of a runner on, `name` (None: the shipped one) is used, for all or for one model.

        Raises: EngineVersionRefused: it is not installed.
        """
        if name is not None:
            self.package(name)
        state = self.state()
        if model is not None:
            self._write(msgspec.structs.replace(state, models={**state.models, model: name or SHIPPED}))
        elif name != state.version:
            self._write(msgspec.structs.replace(state, version=name, previous=state.version))

    def forget(self, model: str) -> None:
        """The model uses what all use again."""
        state = self.state()
        models = {path: used for path, used in state.models.items() if path != model}
        if models != state.models:
            self._write(msgspec.structs.replace(state, models=models))

    def rollback(self) -> str | None:
        """Use what was used before the present version; None is the shipped one."""
        state = self.state()
        before = state.previous if state.previous and (self.folder / state.previous / PACKAGE).is_dir() else None
        self._write(msgspec.structs.replace(state, version=before, previous=state.version))
        return before

    def remove(self, name: str) -> None:
        """Remove a version; what used it uses the shipped one. Raises: EngineVersionRefused: not installed."""
        folder = self.package(name).parent
        state = self.state()
        self._write(
            msgspec.structs.replace(
                state,
                version=None if state.version == name else state.version,
                previous=None if state.previous == name else state.previous,
                models={path: used for path, used in state.models.items() if used != name},
            )
        )
        shutil.rmtree(folder)

    def state(self) -> InUse:
        """What is written; the shipped version for all where nothing readable is."""
        try:
            return msgspec.json.decode((self.folder / STATE).read_bytes(), type=InUse)
        except (OSError, ValueError, RecursionError):
            return InUse()

    def _write(self, state: InUse) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{STATE}.{os.getpid()}.tmp"
        partial.write_bytes(msgspec.json.encode(state))
        partial.replace(self.folder / STATE)


def _checked_name(wheel: Path) -> str:
    """The version in the wheel's name, if it is llama-cpp-python's and for this Python and system."""
    try:
        name, found, _, fits = utils.parse_wheel_filename(wheel.name)
    except utils.InvalidWheelFilename as error:
        raise EngineVersionRefused(f"{wheel.name} is not named like a wheel: {error}") from error
    if name != "llama-cpp-python":
        raise EngineVersionRefused(f"{wheel.name} is a wheel of {name}, not of llama-cpp-python")
    if fits.isdisjoint(tags.sys_tags()):
        wanted = " or ".join(sorted(map(str, fits)))
        raise EngineVersionRefused(f"{wheel.name} is for {wanted}, this is {next(iter(tags.sys_tags()))}")
    if not _VERSION.match(str(found)):
        raise EngineVersionRefused(f"{wheel.name} has a version that cannot name a folder")
    return str(found)


def _unpack(wheel: Path, target: Path) -> None:
    """The package's files below `target`, bounded, each with the hash that the wheel's RECORD gives it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            _check_bounds(wheel, infos)
            hashes = _recorded(archive, infos)
            wanted = [info for info in infos if info.filename.startswith(f"{PACKAGE}/")]
            if f"{PACKAGE}/{PACKAGE}.py" not in {info.filename for info in wanted}:
                raise EngineVersionRefused(f"{wheel.name} holds no {PACKAGE}/{PACKAGE}.py")
            for info in wanted:
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
                f"{wheel.name} holds a file that would lie elsewhere: {info.filename[:80]!r}"
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
    digest, left = hashlib.sha256(), info.file_size
    with archive.open(info) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise EngineVersionRefused(f"{info.filename} is larger than the wheel says")
            digest.update(chunk)
            file.write(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
