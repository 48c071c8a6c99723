"""Daily copies of the database, each complete and readable on its own."""

import re
import time
from pathlib import Path

import apsw

from app.db import conversations, messages
from app.db.errors import StoreUnreadable
from devices.atomic_file import make_private

_DAILY = re.compile(r"\d{8}")


def folder(path: Path) -> Path:
    """Folder with the copies of the database at `path`."""
    return path.parent / "backups"


def backups(path: Path) -> list[Path]:
    """Copies of the database at `path`, newest first."""
    files = [file for file in folder(path).glob(f"{path.stem}-*.db") if file.is_file()]
    return sorted(files, key=lambda file: (file.stat().st_mtime, file.name), reverse=True)


def back_up(connection: apsw.Connection, path: Path, label: str) -> Path:
    """Copy the open database to `backups/<stem>-<label>.db`; the name appears only when the copy is complete.

    Raises: apsw.Error, OSError: the copy could not be written; no partial file remains.
    """
    folder(path).mkdir(parents=True, exist_ok=True)
    target = folder(path) / f"{path.stem}-{label}.db"
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    make_private(partial)
    try:
        connection.execute("VACUUM INTO ?", (str(partial),))
        partial.replace(target)
    except (apsw.Error, OSError):
        partial.unlink(missing_ok=True)
        raise
    return target


def back_up_daily(connection: apsw.Connection, path: Path, keep: int, today: str | None = None) -> Path | None:
    """Create today's copy if there is none, and delete all daily copies except the newest `keep`.

    Args: today: date as YYYYMMDD (default: the current date).
    Returns: the new copy, or None if today already has one.
    """
    today = time.strftime("%Y%m%d") if today is None else today
    if (folder(path) / f"{path.stem}-{today}.db").exists():
        return None
    backup = back_up(connection, path, today)
    daily = [file for file in backups(path) if _DAILY.fullmatch(file.stem.removeprefix(f"{path.stem}-"))]
    for old in sorted(daily, key=lambda file: file.name, reverse=True)[keep:]:
        if old != backup:
            old.unlink(missing_ok=True)
    return backup


def restore(backup: Path, connection: apsw.Connection) -> None:
    """Replace the contents of the open database with the copy, in one step.

    Raises: apsw.Error: the copy is damaged too; the open database stays unchanged.
    """
    source = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if source.execute("PRAGMA quick_check(1)").get != "ok":
            raise apsw.CorruptError(f"{backup} is damaged")
        with connection.backup("main", source, "main") as copy:
            while not copy.done:
                copy.step(-1)
    finally:
        source.close()


def chat_texts(path: Path) -> list[str]:
    """Text of each chat that is not in the trash, the newest first. Raises: StoreUnreadable."""
    if not path.exists():
        return []
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            chats = [messages.of_conversation(connection, c.id) for c in conversations.listing(connection)]
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreUnreadable(path, str(error)) from error
    texts = ["\n\n".join(m.content for m in messages if m.role != "tool" and m.content) for messages in chats]
    return [t for t in texts if t]
