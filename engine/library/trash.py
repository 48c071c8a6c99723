"""Removes models; removal can be undone until the trash is emptied. Linked files are only unlisted."""

import logging
import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from devices.atomic_file import write_atomically
from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.library.catalogue import Catalogue, key_of, moved_entry, moved_path
from engine.library.errors import CannotWrite
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because

_log = logging.getLogger(__name__)
TICKET = "entry.json"


class Removed(msgspec.Struct, frozen=True):
    """One removed model: `ticket` undoes it; emptying the trash frees `freed_bytes` (0 for links)."""

    ticket: str
    entry: ModelEntry
    removed_at: float
    freed_bytes: int


class _Record(msgspec.Struct, kw_only=True):
    entry: ModelEntry
    removed_at: float
    moved: dict[str, str] = {}  # file name in the trash: original path


class Trash:
    """The `.trash` folder inside the models folder: moving a file there is a rename, whatever its size."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._folder = catalogue.paths.models / ".trash"

    def remove(self, entry: ModelEntry) -> Removed:
        """Remove a model from the catalogue. The library's own files go to the trash; linked files stay in place.

        Raises: CannotWrite: a file could not be moved; files already moved are moved back.
        """
        ticket = f"{entry.id}-{secrets.token_hex(4)}"
        removed = self._folder / ticket
        record = _Record(entry=entry, removed_at=time.time())
        own = [] if entry.origin.kind in {"bundled", "installed", "linked"} else self._own_files(entry)
        try:
            removed.mkdir(parents=True)
            record.moved = {f"{index}-{path.name}": str(path) for index, path in enumerate(own)}
            (removed / TICKET).write_bytes(msgspec.json.encode(record))
            for name, path in record.moved.items():
                Path(path).rename(removed / name)
                _remove_empty(Path(path).parent, self._catalogue.paths.models)
        except OSError as error:
            self._move_back(removed, record)
            shutil.rmtree(removed, ignore_errors=True)
            raise CannotWrite(str(entry.path), error.strerror or str(error)) from error
        with self._catalogue.store.writing():
            self._catalogue.store.forget(key_of(entry))
            # Do not hide the path of a deleted file: any later file there must be found by a scan.
            if not own and (entry.state == "offline" or any(Path(file.path).exists() for file in entry.files)):
                self._catalogue.store.hide(key_of(entry), hidden=True)
        _log.info("removed model=%s files=%d", entry.id, len(own))
        return self._removed(ticket, record)

    def delete(self, entry: ModelEntry) -> None:
        """Remove a model permanently: it can be downloaded again. Raises: CannotWrite."""
        shutil.rmtree(self._folder / self.remove(entry).ticket, ignore_errors=True)

    def restore(self, ticket: str) -> ModelEntry:
        """Undo a removal. The model gets its old id, with a number if another model has that id now.

        Raises: InputFault: no such ticket. CannotWrite: also if a file would replace another one, or, by a ticket
        in a folder from elsewhere, come from or go to a place outside of the models folder.
        """
        removed = self._folder / ticket
        record = self._read(ticket)
        models = self._catalogue.paths.models
        for name, path in record.moved.items():
            if Path(name).name != name or not is_inside(models, Path(path)):
                raise CannotWrite(path, because("outside_models"))
            if (removed / name).exists() and os.path.lexists(path):
                raise CannotWrite(path, because("other_file_there"))
        try:
            self._move_back(removed, record)
        except OSError as error:
            raise CannotWrite(str(record.entry.path), error.strerror or str(error)) from error
        with self._catalogue.store.writing():
            entry, key = record.entry, key_of(record.entry)
            used_ids = {entry.id for other, entry in self._catalogue.store.entries().items() if other != key}
            number = 2
            while entry.id in used_ids:  # another model took the id meanwhile
                entry = msgspec.structs.replace(entry, id=f"{record.entry.id}-{number}")
                number += 1
            self._catalogue.store.hide(key, hidden=False)
            self._catalogue.store.put(key, entry)
        shutil.rmtree(removed, ignore_errors=True)
        return entry

    def relocated(self, source: Path, target: Path) -> None:
        """Let restored models return to `target`, because the models folder was moved there from `source`."""
        for removed in self._folder.glob("*/"):
            try:
                record = self._read(removed.name)
            except InputFault:
                continue
            record.entry = moved_entry(record.entry, source, target)
            record.moved = {name: moved_path(path, source, target) for name, path in record.moved.items()}
            write_atomically(removed / TICKET, msgspec.json.encode(record))

    def contents(self) -> tuple[Removed, ...]:
        """The models that can be restored, newest first."""
        entries = []
        for removed in self._folder.glob("*/"):
            try:
                entries.append(self._removed(removed.name, self._read(removed.name)))
            except InputFault:
                continue
        return tuple(sorted(entries, key=lambda r: r.removed_at, reverse=True))

    def empty(self) -> int:
        """Delete everything in the trash permanently; return the freed bytes."""
        freed = sum(removed.freed_bytes for removed in self.contents())
        shutil.rmtree(self._folder, ignore_errors=True)
        return freed

    def _own_files(self, entry: ModelEntry) -> list[Path]:
        models = self._catalogue.paths.models.resolve()
        if entry.folder is not None:
            folder = Path(entry.folder)
            return [folder] if self._is_own(folder, models) else []
        return [Path(f.path) for f in entry.files if self._is_own(Path(f.path), models)]

    @staticmethod
    def _is_own(path: Path, models: Path) -> bool:
        """Whether the path is below the models folder and not behind a link (whose target has another owner)."""
        return path.exists() and path.resolve().is_relative_to(models) and path.resolve() != models

    @staticmethod
    def _move_back(removed: Path, record: _Record) -> None:
        for name, path in record.moved.items():
            if (removed / name).exists():
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                (removed / name).rename(path)

    def _read(self, ticket: str) -> _Record:
        if "/" in ticket or "\\" in ticket or ticket.startswith("."):
            raise InputFault(because("not_in_trash", ticket=ticket), "ticket")
        try:
            return msgspec.json.decode((self._folder / ticket / TICKET).read_bytes(), type=learned(_Record))
        except (OSError, ValueError, RecursionError) as error:
            raise InputFault(because("not_in_trash", ticket=ticket), "ticket") from error

    @staticmethod
    def _removed(ticket: str, record: _Record) -> Removed:
        freed = record.entry.size_bytes if record.moved else 0
        return Removed(ticket, record.entry, record.removed_at, freed)


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether a file lies in the folder, also when links of its folders are followed."""
    within = path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts
    return within and path.parent.resolve().is_relative_to(folder.resolve())


def _remove_empty(folder: Path, models: Path) -> None:
    """Remove folders that are empty now, up to the models folder."""
    while folder != models and folder.is_relative_to(models):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
