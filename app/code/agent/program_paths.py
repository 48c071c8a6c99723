"""What a sandbox shows of programs outside the system's folders: the programs, and never the data next to them.

`~/.local/bin` is on PATH nearly everywhere, and `~/.local/share` holds tokens, keyrings, histories and chats.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from devices.landlock import SYSTEM_FOLDERS

# Folders that hold programs and nothing else by their name; of others on PATH only the programs are shown.
_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin", "shims", "scripts"})
# What programs in PREFIX/bin are made of. Not `share`: in a home folder it is everybody's data.
_BESIDE_PROGRAMS: Final = ("lib", "lib64", "libexec", "include", "pyvenv.cfg")
# Where programs keep what is the user's, by variable and by default below the home.
_DATA_FOLDERS: Final = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "TESSERA_HOME": ".local/share/tessera",
}
# A link in ~/.local/bin leads to a tool's environment, and that one's Python to an installed Python.
_MAX_LINKS: Final = 3
_MAX_STEPS: Final = 8
_MAX_PATHS: Final = 500


def program_paths(name: str, home: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Files and folders to show: of each folder on PATH, and of the command's where it is named in full."""
    found = _Programs(home, environment)
    for entry in environment.get("PATH", "").split(os.pathsep):
        if Path(entry).is_absolute():
            found.add_folder(_normal(entry))
    if Path(name).is_absolute():
        found.add_program(_normal(name))
    shown = [path for path in found.paths if not any(str(above) in found.paths for above in Path(path).parents)]
    return shown[:_MAX_PATHS]


def _normal(path: str) -> Path:
    """Without `..`, which would hide where a path leads."""
    return Path(os.path.normpath(path))


class _Programs:
    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.paths: dict[str, None] = {}
        data = [home / below for below in _DATA_FOLDERS.values()]
        data += [Path(environment[name]) for name in _DATA_FOLDERS if Path(environment.get(name, "")).is_absolute()]
        self._homes = {Path("/"), home, home.resolve()}
        self._private = self._homes | {*data, *(folder.resolve() for folder in data)}

    def add_folder(self, folder: Path, links: int = 0) -> None:
        """Show a folder of programs."""
        real = folder.resolve()
        if _is_shown_anyway(folder) or str(folder) in self.paths or not self._may_show(folder, real):
            return
        if not _is_named_for_programs(folder, real):
            for program in _executables(folder):
                self._add_file(program, links)
            return
        self.paths[str(folder)] = None
        for prefix in dict.fromkeys((folder.parent, real.parent)):
            self._add_prefix(prefix)
        for program in _executables(folder):
            self._add_targets(program, links)

    def add_program(self, program: Path) -> None:
        """Show one program, with its folder where that holds nothing else."""
        if _is_named_for_programs(program.parent, program.parent.resolve()):
            self.add_folder(program.parent)
        if program.is_file() and os.access(program, os.X_OK):
            self._add_file(program, 0)

    def _add_file(self, program: Path, links: int) -> None:
        self.paths[str(program)] = None
        self._add_targets(program, links)

    def _add_targets(self, program: Path, links: int) -> None:
        """Show what a link leads to, each link on the way; what is in the system's folders is shown anyway."""
        if links >= _MAX_LINKS or not program.is_symlink():
            return
        steps, step = [program.resolve()], program
        while step.is_symlink() and len(steps) <= _MAX_STEPS:
            step = _normal(str(step.parent / step.readlink()))
            steps.append(step)
        for target in dict.fromkeys(steps):
            if _is_named_for_programs(target.parent, target.parent.resolve()):
                self.add_folder(target.parent, links + 1)
            if not _is_shown_anyway(target):
                self.paths[str(target)] = None

    def _add_prefix(self, prefix: Path) -> None:
        if any(home.is_relative_to(path) for home in self._homes for path in (prefix, prefix.resolve())):
            return
        for name in _BESIDE_PROGRAMS:
            path, real = prefix / name, (prefix / name).resolve()
            if path.exists() and real.is_relative_to(prefix.resolve()) and self._may_show(path, real):
                self.paths[str(path)] = None

    def _may_show(self, folder: Path, real: Path) -> bool:
        """Neither the home, a folder of data, nor one above either."""
        return not any(root.is_relative_to(path) for root in self._private for path in (folder, real))


def _is_shown_anyway(path: Path) -> bool:
    return any(path.is_relative_to(system) for system in SYSTEM_FOLDERS)


def _is_named_for_programs(folder: Path, real: Path) -> bool:
    return {folder.name.lower(), real.name.lower()} <= _PROGRAM_FOLDERS


def _executables(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file() and os.access(entry, os.X_OK):
            yield entry
