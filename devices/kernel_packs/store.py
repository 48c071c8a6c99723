"""Stores the installed packs: each build in its own folder, one of them in use, the previous one kept.

<packs>/<name>/<digest>/manifest.json and files
<packs>/<name>/in_use.json        {"format": 1, "digest": …, "previous": … or null}
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import IO, Final

import msgspec

from devices.atomic_file import locked, scratch_folder, write_atomically
from devices.errors import PackRefused
from devices.kernel_packs import manifest as manifests
from devices.kernel_packs.manifest import Manifest
from devices.msgspec_lock import learned

IN_USE: Final = "in_use.json"
_CHUNK: Final = 1 << 20


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """The build in use, and the one to roll back to. `digest` None: the pack is inactive."""

    digest: str | None
    previous: str | None = None
    format: int = 1


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """An installed build of a pack."""

    manifest: Manifest
    folder: Path
    in_use: bool
    previous: bool


class PackStore:
    """Installs, lists and removes packs. Never loads a library: it is tested before `use` (see install.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def packs(self) -> tuple[Pack, ...]:
        """Every installed build whose manifest can be read, by name."""
        packs = []
        is_folder = os.path.isdir(self.folder)  # noqa: PTH112 - Path raises where a folder above may not be read
        for path in sorted(self.folder.glob("*/*/" + manifests.NAME)) if is_folder else []:
            with contextlib.suppress(PackRefused, OSError):
                manifest = manifests.parse(path.read_bytes())
                state = self._in_use(manifest.name)
                digest = path.parent.name
                packs.append(
                    Pack(
                        manifest=manifest,
                        folder=path.parent,
                        in_use=state.digest == digest,
                        previous=state.previous == digest,
                    )
                )
        return tuple(packs)

    def active(self) -> tuple[Pack, ...]:
        return tuple(pack for pack in self.packs() if pack.in_use)

    def add(self, source: Path) -> Pack:
        """Copy a pack from a folder or an archive (.tar.*, .zip) into the store, without using it.

        Only the members that the manifest lists are read. Raises: PackRefused, OSError.
        """
        with scratch_folder(self.folder, "incoming") as work:
            manifest = _unpacked(source, work)
            manifests.check_files(manifest, work)
            target = self.folder / manifest.name / manifest.digest
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                for path in work.iterdir():
                    path.chmod(0o644)
                work.rename(target)
        return self._pack(manifest, target)

    def use(self, pack: Pack) -> None:
        """Use this build from the next start of a runner on; the previous one is kept."""
        with locked(self.folder / pack.manifest.name / IN_USE):
            state = self._in_use(pack.manifest.name)
            previous = state.digest if state.digest not in {None, pack.folder.name} else state.previous
            self._write(pack.manifest.name, InUse(digest=pack.folder.name, previous=previous))
        for other in self.packs():
            retained = {pack.folder.name, previous}
            if other.manifest.name == pack.manifest.name and other.folder.name not in retained:
                shutil.rmtree(other.folder, ignore_errors=True)

    def drop(self, pack: Pack) -> None:
        """Remove a build that was never used or failed its test."""
        state = self._in_use(pack.manifest.name)
        if pack.folder.name not in {state.digest, state.previous}:
            shutil.rmtree(pack.folder, ignore_errors=True)

    def rollback(self, name: str) -> Pack | None:
        """Use the build before the current one; None if there is none, then the pack is inactive.

        Raises: PackRefused: no such pack.
        """
        with locked(self.folder / self._require(name) / IN_USE):
            state = self._in_use(name)
            self._write(name, InUse(digest=state.previous, previous=state.digest))
        return next((pack for pack in self.active() if pack.manifest.name == name), None)

    def remove(self, name: str) -> None:
        """Remove every build of a pack, and record that it was removed. Raises: PackRefused: no such pack."""
        self._require(name)
        with locked(self.folder / name / IN_USE):
            self._write(name, InUse(digest=None))
        for pack in self.packs():
            if pack.manifest.name == name:
                shutil.rmtree(pack.folder)

    def rests(self, name: str) -> bool:
        """Whether the user removed the pack, or rolled it back to none."""
        return (self.folder / name / IN_USE).exists() and self._in_use(name).digest is None

    def _require(self, name: str) -> str:
        names = sorted({pack.manifest.name for pack in self.packs()})
        if name not in names:
            raise PackRefused(f"no pack named {name[:64]!r} is installed; there are: {', '.join(names) or 'none'}")
        return name

    def _pack(self, manifest: Manifest, folder: Path) -> Pack:
        state = self._in_use(manifest.name)
        digest = folder.name
        return Pack(
            manifest=manifest, folder=folder, in_use=state.digest == digest, previous=state.previous == digest
        )

    def _in_use(self, name: str) -> InUse:
        try:
            return msgspec.json.decode((self.folder / name / IN_USE).read_bytes(), type=learned(InUse))
        except (OSError, ValueError, RecursionError):
            return InUse(digest=None)

    def _write(self, name: str, state: InUse) -> None:
        write_atomically(self.folder / name / IN_USE, msgspec.json.encode(state))


def _unpacked(source: Path, work: Path) -> Manifest:
    """Copy the manifest and the files it names from `source` into `work`."""
    import lzma
    import tarfile
    import zipfile
    import zlib

    try:
        if source.is_dir():
            manifest = manifests.parse(_head(source / manifests.NAME))
            for file in manifest.files:
                with (source / file.name).open("rb") as opened:
                    _copy(opened, work / file.name, file.num_bytes)
        elif zipfile.is_zipfile(source):
            manifest = _from_zip(source, work)
        elif tarfile.is_tarfile(source):
            manifest = _from_tar(source, work)
        else:
            raise PackRefused(f"{source} is neither a folder with a {manifests.NAME} nor a .tar or .zip archive")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error) as error:
        raise PackRefused(f"{source.name} is damaged or incomplete: {error}") from error
    (work / manifests.NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def _from_zip(source: Path, work: Path) -> Manifest:
    import zipfile

    with zipfile.ZipFile(source) as archive:
        members = {Path(info.filename).name: info for info in archive.infolist() if not info.is_dir()}
        if manifests.NAME not in members:
            raise PackRefused(f"{source.name} contains no {manifests.NAME}")
        with archive.open(members[manifests.NAME]) as opened:
            manifest = manifests.parse(opened.read(manifests.MAX_MANIFEST_BYTES + 1))
        for file in manifest.files:
            if file.name not in members:
                raise PackRefused(f"{file.name} is missing in {source.name}")
            with archive.open(members[file.name]) as opened:
                _copy(opened, work / file.name, file.num_bytes)
    return manifest


def _from_tar(source: Path, work: Path) -> Manifest:
    import tarfile

    with tarfile.open(source) as archive:
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        manifest_file = archive.extractfile(members[manifests.NAME]) if manifests.NAME in members else None
        if manifest_file is None:
            raise PackRefused(f"{source.name} contains no {manifests.NAME}")
        manifest = manifests.parse(manifest_file.read(manifests.MAX_MANIFEST_BYTES + 1))
        for file in manifest.files:
            opened = archive.extractfile(members[file.name]) if file.name in members else None
            if opened is None:
                raise PackRefused(f"{file.name} is missing in {source.name}")
            _copy(opened, work / file.name, file.num_bytes)
    return manifest


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(manifests.MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise PackRefused(f"{path} cannot be read: {error.strerror}") from error


def _copy(source: IO[bytes], target: Path, num_bytes: int) -> None:
    """Copy at most one byte more than expected: an archive bomb ends as a file of the wrong size."""
    remaining = num_bytes + 1
    with target.open("xb") as file:
        while remaining > 0 and (chunk := source.read(min(_CHUNK, remaining))):
            file.write(chunk)
            remaining -= len(chunk)
