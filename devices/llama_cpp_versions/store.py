"""Stores the installed versions, each unpacked from its wheel into its own folder, and the one in use.

<engines>/<version>/llama_cpp/…
<engines>/in_use.json             {"format": 1, "version": …, "previous": …, "models": {path: version}}
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from devices.atomic_file import folder_bytes, locked, scratch_folder, write_atomically
from devices.errors import EngineVersionRefused
from devices.llama_cpp_versions.names import PACKAGE, SHIPPED, VERSION_NAME
from devices.msgspec_lock import learned

STATE: Final = "in_use.json"


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """`version` None: the shipped one. `rollback` returns to `previous`. `models`: version by file."""

    version: str | None = None
    previous: str | None = None
    models: dict[str, str] = {}
    format: int = 1


class EngineVersion(msgspec.Struct, frozen=True, kw_only=True):
    """An installed version; `package` is its `llama_cpp`, `models` are the files that only it is used for."""

    version: str
    package: Path
    num_bytes: int
    in_use: bool
    previous: bool
    models: tuple[str, ...] = ()


class VersionStore:
    """Installs, lists and removes versions. Never loads a library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def versions(self) -> tuple[EngineVersion, ...]:
        """Every installed version, newest first."""
        from packaging import version

        state = self.state()
        versions = []
        is_folder = os.path.isdir(self.folder)  # noqa: PTH112 - Path raises where a folder above may not be read
        for package in self.folder.glob(f"*/{PACKAGE}") if is_folder else ():
            name = package.parent.name
            if not VERSION_NAME.match(name):
                continue
            versions.append(
                EngineVersion(
                    version=name,
                    package=package,
                    num_bytes=folder_bytes(package),
                    in_use=state.version == name,
                    previous=state.previous == name,
                    models=tuple(sorted(path for path, used in state.models.items() if used == name)),
                )
            )
        return tuple(sorted(versions, key=lambda each: version.parse(each.version), reverse=True))

    def package(self, name: str) -> Path:
        """The `llama_cpp` folder of an installed version. Raises: EngineVersionRefused: it is not installed."""
        package = self.folder / name / PACKAGE
        if not VERSION_NAME.match(name) or not package.is_dir():
            there = ", ".join(each.version for each in self.versions()) or "none"
            raise EngineVersionRefused(f"version {name[:64]!r} is not installed; there are: {there}")
        return package

    def chosen(self, model: str | None = None) -> str | None:
        """The version for this model file, or for all; None is the shipped one, also if the chosen one is gone."""
        state = self.state()
        name = state.models.get(model, state.version) if model else state.version
        if name is None or name == SHIPPED or not (self.folder / name / PACKAGE).is_dir():
            return None
        return name

    def add(self, wheel: Path) -> EngineVersion:
        """Unpack a wheel without using it. Every file is checked against the wheel's own list of hashes.

        Raises: EngineVersionRefused: no wheel of llama-cpp-python for this Python and system, or a corrupt one.
        """
        import shutil

        from devices.llama_cpp_versions.wheel import checked_name, unpack

        name = checked_name(wheel)
        with scratch_folder(self.folder, "incoming") as work:
            unpack(wheel, work / name)
            target = self.folder / name
            if target.exists():
                shutil.rmtree(target)
            (work / name).rename(target)
        return next(each for each in self.versions() if each.version == name)

    def use(self, name: str | None, model: str | None = None) -> None:
        """Use `name` (None: the shipped one) from the next start of a runner on, for all models or for one.

        Raises: EngineVersionRefused: it is not installed.
        """
        if name is not None:
            self.package(name)
        with locked(self.folder / STATE):
            state = self.state()
            if model is not None:
                self._write(msgspec.structs.replace(state, models={**state.models, model: name or SHIPPED}))
            elif name != state.version:
                self._write(msgspec.structs.replace(state, version=name, previous=state.version))

    def rollback(self) -> str | None:
        """Use the version before the current one; None is the shipped one."""
        with locked(self.folder / STATE):
            state = self.state()
            before = (
                state.previous if state.previous and (self.folder / state.previous / PACKAGE).is_dir() else None
            )
            self._write(msgspec.structs.replace(state, version=before, previous=state.version))
        return before

    def remove(self, name: str) -> None:
        """Remove a version; its models use the shipped one. Raises: EngineVersionRefused: not installed."""
        import shutil

        folder = self.package(name).parent
        with locked(self.folder / STATE):
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
        """The stored state; the shipped version for all if it is unreadable."""
        try:
            return msgspec.json.decode((self.folder / STATE).read_bytes(), type=learned(InUse))
        except (OSError, ValueError, RecursionError):
            return InUse()

    def _write(self, state: InUse) -> None:
        write_atomically(self.folder / STATE, msgspec.json.encode(state))
