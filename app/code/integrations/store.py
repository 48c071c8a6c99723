"""Write a client's configuration with a backup, and revert it."""

import secrets
import time
from pathlib import Path

import msgspec

from app.code.errors import FileChanged
from app.code.integrations.types import Endpoint, FileEdit, Integration, read_config
from devices.atomic_file import write_atomically
from devices.errors import InputFault
from devices.msgspec_lock import learned


class NotConnected(InputFault):
    """Tessera was not connected to this client."""

    code = "not_connected"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was not connected from here; nothing was changed.")
        self.name = name


class _File(msgspec.Struct):
    path: str
    before: str | None
    after: str | None


class _Record(msgspec.Struct):
    name: str
    made_at: float
    files: list[_File]


class ConnectStore:
    """Records, in the state folder, which files were written for which client."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "connect"

    def connected(self, name: str) -> bool:
        """Return True if the client's configuration was written by Tessera and not reverted."""
        return self._record_path(name).exists()

    def planned(self, integration: Integration, home: Path, endpoint: Endpoint) -> list[FileEdit]:
        """Changes that connecting would make; writes nothing.

        Raises: NeedsHand.
        """
        edits = integration.edits(home, endpoint) if integration.edits else []
        return [edit for edit in edits if edit.before != edit.after]

    def connect(self, integration: Integration, edits: list[FileEdit]) -> list[Path]:
        """Write the changes that were shown; return the paths of the backups.

        Raises: FileChanged: a file has changed since it was shown; then nothing is written.
        """
        _check_unchanged(edits)
        earlier = self._read(integration.name)
        first = {file.path: file.before for file in earlier.files} if earlier else {}
        files = [_File(str(e.path), first.get(str(e.path), e.before), e.after) for e in edits]
        others = [f for f in (earlier.files if earlier else []) if f.path not in {str(e.path) for e in edits}]
        backups = [backup for edit in edits if (backup := _backup(edit)) is not None]
        self._write(_Record(integration.name, time.time(), others + files))
        for edit in edits:
            if edit.after is not None:
                write_private(edit.path, edit.after)
        return backups

    def planned_removal(self, integration: Integration) -> list[FileEdit]:
        """Changes that revert the client's configuration.

        Raises: NotConnected.
        """
        record = self._read(integration.name)
        if record is None:
            raise NotConnected(integration.name)
        edits = []
        for file in record.files:
            now = read_config(Path(file.path))
            if now is None:
                continue
            after = file.before
            if now != file.after and file.after is not None and integration.undo is not None:
                # The file was edited since: remove only Tessera's part.
                after = integration.undo(now, file.before, file.after)
            edits.append(FileEdit(path=Path(file.path), before=now, after=after))
        return [edit for edit in edits if edit.before != edit.after]

    def remove(self, integration: Integration, edits: list[FileEdit]) -> list[Path]:
        """Write the removal that was shown; return the paths of the backups."""
        _check_unchanged(edits)
        backups = [backup for edit in edits if (backup := _backup(edit)) is not None]
        for edit in edits:
            if edit.after is None:
                edit.path.unlink(missing_ok=True)
            else:
                write_private(edit.path, edit.after)
        self._record_path(integration.name).unlink(missing_ok=True)
        return backups

    def _record_path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> _Record | None:
        try:
            return msgspec.json.decode(self._record_path(name).read_bytes(), type=learned(_Record))
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def _write(self, record: _Record) -> None:
        write_private(self._record_path(record.name), msgspec.json.encode(record).decode())


def _check_unchanged(edits: list[FileEdit]) -> None:
    for edit in edits:
        if read_config(edit.path) != edit.before:
            raise FileChanged(str(edit.path), "was changed since the edit was shown")


def _backup(edit: FileEdit) -> Path | None:
    """Copy the file to a timestamped backup in the same folder; None if there was no file."""
    if edit.before is None:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    backup = edit.path.with_name(f"{edit.path.name}.{stamp}-{secrets.token_hex(2)}.tessera-backup")
    write_private(backup, edit.before)
    return backup


def write_private(path: Path, text: str) -> None:
    """Write a file atomically. New files are readable only by this user, because they may contain keys."""
    write_atomically(path, text.encode(), mode=path.stat().st_mode & 0o777 if path.exists() else 0o600)
