"""/v1/files: uploaded files. They are stored below the state folder until they are deleted."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, Response

from devices.atomic_file import sweep_unfinished, unfinished
from engine.core.errors import InputFault
from engine.core.json_store import CorruptStateFile, JsonStore
from engine.core.ownership import may_see, request_owner
from engine.core.paths import Paths
from engine.documents.errors import FileNotFound
from engine.server.body import form_of
from engine.server.paging import ManyFiles, Order, page
from engine.server.state import server_state

router = APIRouter(tags=["files"])
# Supported purposes; OpenAI's others are for services that this server does not have.
PURPOSES: Final = frozenset({"assistants", "user_data"})
# Bounds of uploaded files: of one key, and of all together.
MAX_FILES_OF_A_KEY: Final = 5_000
MAX_FILES: Final = 20_000
MAX_BYTES_OF_A_KEY: Final = 8 << 30
MAX_BYTES: Final = 32 << 30
_MAX_NAME_BYTES: Final = 120
_UNSAFE: Final = re.compile(r"[^\w.,()+ -]+")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file."""

    id: str
    filename: str
    purpose: str
    size_bytes: int
    created_at: float
    owner: str = ""


class FilesFull(InputFault):
    """The upload would exceed the bounds of uploaded files."""

    code = "files_full"

    def __init__(self, count: int, most: int, num_bytes: int, most_bytes: int) -> None:
        super().__init__(
            f"There are {count} uploaded files, and with this one they would have {num_bytes / (1 << 30):.1f} GiB; "
            f"the limits are {most} files and {most_bytes >> 30} GiB. Delete files: DELETE /v1/files/ID.",
            "file",
        )


class Files:
    """All uploaded files, each in a separate folder. Thread-safe."""

    def __init__(self, paths: Paths) -> None:
        self.folder = paths.state / "files"
        self._list = paths.state / "files.json"
        self._store: JsonStore[dict[str, StoredFile]] = JsonStore(
            self._list, dict[str, StoredFile], dict, private=True
        )

    def all(self) -> list[StoredFile]:
        """All files that the current request may see, oldest first."""
        return sorted((f for f in self._store.get().values() if may_see(f.owner)), key=lambda file: file.created_at)

    def get(self, file_id: str) -> StoredFile:
        """The file with this id. Raises: FileNotFound."""
        file = self._store.get().get(file_id)
        if file is None or not may_see(file.owner):
            raise FileNotFound(f"There is no file {file_id!r} here.", "file_id")
        return file

    def path(self, file: StoredFile) -> Path:
        """Path of the file's content."""
        # File systems count bytes, not characters; the end with the extension remains.
        name = os.fsencode(_UNSAFE.sub("_", file.filename))[-_MAX_NAME_BYTES:].decode("utf-8", "ignore")
        return self.folder / file.id / (name.lstrip(".") or "file")

    def add(self, filename: str, purpose: str, raw: bytes) -> StoredFile:
        """Store a file. Raises: OSError; FilesFull: too many files, or too many bytes."""
        self._require_capacity(len(raw))  # before writing; checked again below, as other uploads may finish first
        name = filename.replace("\\", "/").rsplit("/", 1)[-1] or "file"
        file = StoredFile(
            id=f"file-{secrets.token_hex(12)}",
            filename=name,
            purpose=purpose,
            size_bytes=len(raw),
            created_at=time.time(),
            owner=request_owner.get(),
        )
        path = self.path(file)
        with unfinished(path.parent) as staging:
            staging.mkdir(mode=0o700)
            (staging / path.name).write_bytes(raw)
            try:
                with self._store.locked():  # so that `sweep` never sees the folder without its row
                    self._require_capacity(len(raw))
                    staging.rename(path.parent)
                    self._store.put({**self._store.get(), file.id: file})
            except OSError:
                shutil.rmtree(path.parent, ignore_errors=True)
                raise
        return file

    def _require_capacity(self, num_bytes: int) -> None:
        stored, owner = self._store.get().values(), request_owner.get()
        own = [file for file in stored if file.owner == owner]
        limits = [(own, MAX_FILES_OF_A_KEY, MAX_BYTES_OF_A_KEY)] if owner else []
        for files, most, most_bytes in (*limits, (stored, MAX_FILES, MAX_BYTES)):
            total_bytes = sum(file.size_bytes for file in files)
            if len(files) >= most or total_bytes + num_bytes > most_bytes:
                raise FilesFull(len(files), most, total_bytes + num_bytes, most_bytes)

    def sweep(self) -> None:
        """Delete what interrupted uploads and deletions left behind.

        Without a list that can be read, or with one that was set aside as damaged, every file would look like that.
        """
        sweep_unfinished(self.folder)
        with contextlib.suppress(OSError, CorruptStateFile), self._store.locked():
            stored = self._store.read()
            if any(self._list.parent.glob(f"{self._list.name}.corrupt-*")):
                return
            for folder in self.folder.iterdir():
                if folder.name.startswith("file-") and folder.name not in stored:
                    shutil.rmtree(folder, ignore_errors=True)

    def remove(self, file_id: str) -> StoredFile:
        """Delete a file. Raises: FileNotFound."""
        with self._store.locked():
            removed = self.get(file_id)
            self._store.put({k: v for k, v in self._store.get().items() if k != file_id})
        shutil.rmtree(self.folder / removed.id, ignore_errors=True)
        return removed


def files_of(request: Request) -> Files:
    """The files of the server."""
    return Files(server_state(request).paths)


_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": sorted(PURPOSES)},
                    },
                }
            }
        },
    }
}


@router.post("/v1/files", openapi_extra=_FORM)
async def upload(request: Request) -> dict[str, Any]:
    """Upload a file as `multipart/form-data` with `file` and `purpose`."""
    form = await form_of(request, max_fields=10)
    try:
        sent, purpose = form.get("file"), form.get("purpose")
        if not isinstance(sent, UploadFile):
            raise InputFault("Send the file as the field `file` of multipart/form-data.", "file")
        if purpose not in PURPOSES:
            raise InputFault(f"purpose must be one of {', '.join(sorted(PURPOSES))}.", "purpose")
        raw = await sent.read()
    finally:
        await form.close()  # a large file uses a descriptor
    if not raw:
        raise InputFault("The file is empty.", "file")
    return shown(await asyncio.to_thread(files_of(request).add, sent.filename or "file", str(purpose), raw))


@router.get("/v1/files")
async def list_files(
    request: Request,
    limit: ManyFiles = 10_000,
    after: str | None = None,
    order: Order = "desc",
    purpose: str | None = None,
) -> dict[str, Any]:
    """All files, newest first."""
    every = await asyncio.to_thread(files_of(request).all)
    return page([shown(f) for f in every if purpose in (None, f.purpose)], limit, after, order)


@router.get("/v1/files/{file_id}")
async def show_file(request: Request, file_id: str) -> dict[str, Any]:
    """One file."""
    return shown(await asyncio.to_thread(files_of(request).get, file_id))


@router.get("/v1/files/{file_id}/content")
async def file_content(request: Request, file_id: str) -> Response:
    """The content of a file, always as a download."""
    files = files_of(request)
    file = await asyncio.to_thread(files.get, file_id)
    return FileResponse(
        files.path(file),
        media_type="application/octet-stream",
        filename=file.filename,
        headers={"x-content-type-options": "nosniff"},
    )


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
    """Delete a file, also from all vector stores."""
    files = files_of(request)
    file = await asyncio.to_thread(files.get, file_id)
    source = str(files.path(file))
    service = await server_state(request).collection_service()

    def remove() -> None:
        files.remove(file_id)
        for definition in service.collections.definitions.all():
            if source in definition.sources:
                with contextlib.suppress(InputFault):
                    service.collections.change(definition.id, lambda old: old.without_file(file_id))

    await asyncio.to_thread(remove)
    return {"id": file_id, "object": "file", "deleted": True}


def shown(file: StoredFile) -> dict[str, Any]:
    """A file in OpenAI's format."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
