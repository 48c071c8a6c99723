"""Read an export from a file: JSON, a zip with conversations.json in it, or a thread of Jan."""

import errno
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

from app.imports.formats import chats_of, jan
from app.imports.types import Chat, ImportFailed

# Larger than any export there is; a file that inflates to more is no export.
MAX_BYTES: Final = 1 << 30
_INSIDE: Final = "conversations.json"


def read_document(path: Path) -> Any:
    """The JSON of a file. Raises: ImportFailed, OSError."""
    return _parsed(_bytes(path))


def read_chats(path: Path, document: Any = None) -> list[Chat]:
    """The chats of another program's export. Raises: ImportFailed, OSError."""
    if path.suffix == ".jsonl":
        beside = path.with_name("thread.json")
        about = _parsed(_read(beside)) if beside.is_file() else {}
        return [jan(_read(path).decode("utf-8", "replace"), about)]
    return chats_of(read_document(path) if document is None else document)


def _bytes(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return _read(path)
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.rpartition("/")[2] == _INSIDE), None)
            if name is None:
                raise ImportFailed(f"there is no {_INSIDE} in it")
            if archive.getinfo(name).file_size > MAX_BYTES:
                raise ImportFailed(f"it inflates to more than {MAX_BYTES >> 30} GiB")
            with archive.open(name) as file:
                return _bounded(file.read(MAX_BYTES + 1))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ImportFailed(f"the archive is damaged or encrypted ({error})") from error
    except OSError as error:
        # A place in the file that its damaged directory names; without a number, a stream that does not inflate.
        if error.errno not in {None, errno.EINVAL}:
            raise
        raise ImportFailed(f"the archive is damaged or encrypted ({error})") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(MAX_BYTES + 1))


def _bounded(raw: bytes) -> bytes:
    if len(raw) > MAX_BYTES:
        raise ImportFailed(f"it is larger than {MAX_BYTES >> 30} GiB")
    return raw


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        raise ImportFailed("it is not JSON") from None
