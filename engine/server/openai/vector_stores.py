"""/v1/vector_stores: collections in OpenAI's format, so that its clients can create, fill and search them.

A store is a collection that everyone with chat access may query. Collections created in Tessera are not listed.
"""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from engine.api.collections import Passage, SearchRequest
from engine.core.errors import InputFault
from engine.core.ownership import first_to_go, may_see, new_id, request_owner
from engine.documents.collection_config import ATTRIBUTES, CollectionConfig
from engine.documents.errors import CollectionUnusable, FileNotFound, NoCollection
from engine.documents.registry import OpenCollection
from engine.documents.store import FAILED, READING
from engine.documents.types import NEEDS_OCR, NO_TEXT, DocumentRow
from engine.server.body import ignored_header, openapi_body, parse, parse_or
from engine.server.documents.service import CollectionService
from engine.server.openai.files import Files, files_of
from engine.server.openai.vector_store_schemas import (
    BatchRequest,
    FileRequest,
    StoreRequest,
    StoreSearch,
    Wanted,
    fits,
)
from engine.server.paging import Order, PageSize, page
from engine.server.state import server_state

router = APIRouter(prefix="/v1/vector_stores", tags=["vector stores"])
PREFIX: Final = "vs"
MAX_BATCHES: Final = 1000
# What a batch counts in addition to its file ids, so that many small ones count too.
_BATCH_BYTES: Final = 1000


class FileBatch(msgspec.Struct, frozen=True):
    """Files that were added to a store together."""

    store: str
    files: tuple[str, ...]
    created_at: float
    owner: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its file ids."""
        return sum(map(len, self.files))


class FileBatches:
    """The latest file batches since the server started."""

    def __init__(self) -> None:
        self._by_id: dict[str, FileBatch] = {}

    def add(self, store: str, files: tuple[str, ...]) -> str:
        """Record a batch of this request's owner; return its id. Beyond the limit, the owner of most loses one."""
        batch = new_id("vsfb", "_")
        self._by_id[batch] = FileBatch(store, files, time.time(), request_owner.get())
        if len(self._by_id) > MAX_BATCHES:
            del self._by_id[first_to_go(self._by_id, _BATCH_BYTES)]
        return batch

    def get(self, store: str, batch: str) -> FileBatch:
        """The batch of a store with this id. Raises: FileNotFound."""
        entry = self._by_id.get(batch)
        if entry is None or entry.store != store:
            raise FileNotFound(f"There is no batch {batch!r} here.", "batch_id")
        return entry


_batches = FileBatches()


async def _open(request: Request, store: str) -> tuple[CollectionService, OpenCollection]:
    """A store by its id. Raises: NoCollection."""
    service = await server_state(request).collection_service()
    if not store.startswith(f"{PREFIX}_"):
        raise NoCollection(store)
    return service, await asyncio.to_thread(service.allowed, store)


@router.post("", openapi_extra=openapi_body(StoreRequest, required=False))
async def make_store(request: Request) -> Response:
    """Create a store, empty or with uploaded files."""
    body = await parse_or(request, StoreRequest)
    metadata = _metadata(body) or {}
    service, files = await server_state(request).collection_service(), files_of(request)

    def make() -> dict[str, Any]:
        sources = tuple(str(files.path(files.get(file_id))) for file_id in dict.fromkeys(body.file_ids or ()))
        name = body.name or "vector store"
        live = service.collections.add(
            name, PREFIX, sources=sources, follow=False, open=True, facts=metadata, owner=request_owner.get()
        )
        return _store(live)

    return JSONResponse(await asyncio.to_thread(make), headers=ignored_header(body.ignored()))


def _metadata(body: StoreRequest) -> dict[str, str] | None:
    """The metadata of a request. Raises: InputFault: a name would be that of a file's attributes."""
    for name in body.metadata or ():
        if name.startswith(ATTRIBUTES):
            raise InputFault(f"metadata: {name!r} may not start with {ATTRIBUTES!r}.", "metadata")
    return body.metadata


@router.get("")
async def list_stores(
    request: Request, limit: PageSize = 20, after: str | None = None, order: Order = "desc"
) -> dict[str, Any]:
    """All stores, newest first."""
    service = await server_state(request).collection_service()

    def shown() -> list[dict[str, Any]]:
        stores = []
        for live in service.collections.all():
            if live.definition.id.startswith(f"{PREFIX}_") and may_see(live.definition.owner):
                with contextlib.suppress(CollectionUnusable):  # it may be deleted meanwhile
                    stores.append(_store(live))
        return stores

    return page(await asyncio.to_thread(shown), limit, after, order)


@router.get("/{store}")
async def show_store(request: Request, store: str) -> dict[str, Any]:
    """One store."""
    _, live = await _open(request, store)
    return await asyncio.to_thread(_store, live)


@router.post("/{store}", openapi_extra=openapi_body(StoreRequest, required=False))
async def change_store(request: Request, store: str) -> Response:
    """Change a store's name or metadata."""
    body = await parse_or(request, StoreRequest)
    metadata = _metadata(body)
    service, _ = await _open(request, store)

    def change(old: CollectionConfig) -> CollectionConfig:
        facts = old.facts
        if metadata is not None:
            facts = metadata | {k: v for k, v in old.facts.items() if k.startswith(ATTRIBUTES)}
        return msgspec.structs.replace(old, name=body.name or old.name, facts=facts)

    live = await asyncio.to_thread(service.collections.change, store, change)
    return JSONResponse(await asyncio.to_thread(_store, live), headers=ignored_header(body.ignored()))


@router.delete("/{store}")
async def delete_store(request: Request, store: str) -> dict[str, Any]:
    """Delete a store; its files are not deleted."""
    service, live = await _open(request, store)
    await asyncio.to_thread(service.collections.remove, live.definition.id)
    return {"id": store, "object": "vector_store.deleted", "deleted": True}


@router.post("/{store}/files", openapi_extra=openapi_body(FileRequest))
async def add_file(request: Request, store: str) -> Response:
    """Add a file; it is indexed in the background."""
    body = await parse(request, FileRequest)
    live = await _add(request, store, (body.file_id,), body.attributes)
    shown = await asyncio.to_thread(_file, live, files_of(request), body.file_id)
    return JSONResponse(shown, headers=ignored_header(body.ignored()))


async def _add(
    request: Request, store: str, ids: tuple[str, ...], attributes: dict[str, Any] | None
) -> OpenCollection:
    service, _ = await _open(request, store)
    files = files_of(request)

    def change(old: CollectionConfig) -> CollectionConfig:
        sources = [str(files.path(files.get(file_id))) for file_id in ids]
        facts = dict(old.facts)
        if attributes:
            facts |= {f"{ATTRIBUTES}{file_id}": json.dumps(attributes) for file_id in ids}
        return msgspec.structs.replace(old, sources=tuple(dict.fromkeys((*old.sources, *sources))), facts=facts)

    return await asyncio.to_thread(service.collections.change, store, change)


@router.get("/{store}/files")
async def list_store_files(
    request: Request, store: str, limit: PageSize = 20, after: str | None = None, order: Order = "desc"
) -> dict[str, Any]:
    """The store's files with their indexing state."""
    _, live = await _open(request, store)
    files = files_of(request)
    every = await asyncio.to_thread(lambda: [_file(live, files, file_id) for file_id in _ids(live)])
    return page(every, limit, after, order)


@router.get("/{store}/files/{file_id}")
async def show_store_file(request: Request, store: str, file_id: str) -> dict[str, Any]:
    """One file of the store."""
    _, live = await _open(request, store)
    return await asyncio.to_thread(_file, live, files_of(request), file_id)


@router.get("/{store}/files/{file_id}/content")
async def store_file_content(request: Request, store: str, file_id: str) -> dict[str, Any]:
    """The extracted text of a file, by passage."""
    _, live = await _open(request, store)

    def content() -> list[dict[str, Any]]:
        row = _row(live, file_id)
        return [{"type": "text", "text": c.text} for c in live.store.chunks_of(row.id)] if row else []

    return {
        "object": "vector_store.file_content.page",
        "data": await asyncio.to_thread(content),
        "has_more": False,
        "next_page": None,
    }


@router.delete("/{store}/files/{file_id}")
async def remove_store_file(request: Request, store: str, file_id: str) -> dict[str, Any]:
    """Remove a file from a store; the file itself is not deleted."""
    service, live = await _open(request, store)
    if file_id not in _ids(live):
        raise FileNotFound(f"There is no file {file_id!r} in this store.", "file_id")
    await asyncio.to_thread(service.collections.change, store, lambda old: old.without_file(file_id))
    return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


@router.post("/{store}/file_batches", openapi_extra=openapi_body(BatchRequest))
async def make_batch(request: Request, store: str) -> Response:
    """Add several files."""
    body = await parse(request, BatchRequest)
    live = await _add(request, store, tuple(body.file_ids), body.attributes)
    batch = _batches.add(store, tuple(body.file_ids))
    shown = await asyncio.to_thread(_batch, live, batch)
    return JSONResponse(shown, headers=ignored_header(body.ignored()))


@router.get("/{store}/file_batches/{batch}")
async def show_batch(request: Request, store: str, batch: str) -> dict[str, Any]:
    """The progress of a batch."""
    _, live = await _open(request, store)
    return await asyncio.to_thread(_batch, live, batch)


@router.get("/{store}/file_batches/{batch}/files")
async def list_batch_files(
    request: Request, store: str, batch: str, limit: PageSize = 20, after: str | None = None, order: Order = "desc"
) -> dict[str, Any]:
    """The files of a batch."""
    _, live = await _open(request, store)
    ids, files = _batches.get(store, batch).files, files_of(request)
    every = await asyncio.to_thread(lambda: [_file(live, files, file_id) for file_id in ids])
    return page(every, limit, after, order)


@router.post("/{store}/search", openapi_extra=openapi_body(StoreSearch))
async def search_store(request: Request, store: str) -> Response:
    """Passages for one or several queries."""
    body = await parse(request, StoreSearch)
    service, live = await _open(request, store)
    questions = [body.query] if isinstance(body.query, str) else body.query
    results = await search_results(service, live, questions, body)
    shown = {
        "object": "vector_store.search_results.page",
        "search_query": questions,
        "data": results,
        "has_more": False,
        "next_page": None,
    }
    return JSONResponse(shown, headers=ignored_header(body.ignored()))


async def search_results(
    service: CollectionService, live: OpenCollection, questions: list[str], body: StoreSearch
) -> list[dict[str, Any]]:
    """The results in OpenAI's format, without duplicates, best first."""
    rows: dict[int, dict[str, Any]] = {}
    for question in questions:
        for result in (await found_in(service, live, question, body)).results:
            content = [{"type": "text", "text": result.passage.text}]
            rows.setdefault(result.passage.id, {**result.payload(), "content": content})
    return sorted(rows.values(), key=lambda row: -row["score"])[: body.max_num_results or 10]


class Result(NamedTuple):
    """A passage of a store's file with its score from 0 to 1."""

    passage: Passage
    file_id: str
    score: float
    attributes: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """The fields that the search route and the tool share, without the text."""
        name = Path(self.passage.path).name
        return {"file_id": self.file_id, "filename": name, "score": self.score, "attributes": self.attributes}


class StoreAnswer(NamedTuple):
    """Search results, best first. `bears`: at least one result seems relevant."""

    results: list[Result]
    bears: bool


async def found_in(service: CollectionService, live: OpenCollection, question: str, search: Wanted) -> StoreAnswer:
    """The passages of one store for one query that pass its filter and threshold."""
    threshold = (search.ranking_options.score_threshold if search.ranking_options else None) or 0.0
    limit = search.max_num_results or 10
    answer = await service.search(live, SearchRequest(query=question[:8000], limit=50 if search.filters else limit))
    results = []
    for passage in answer.passages:
        # Uploaded files have an id; documents of the user's collections have one in their index.
        sent = live.definition.id.startswith(f"{PREFIX}_")
        file_id = Path(passage.path).parent.name if sent else f"document-{passage.document}"
        attributes = _attributes(live, file_id)
        score = round(min(max(passage.score, 0.0), 1.0), 4)
        if score >= threshold and (search.filters is None or fits(attributes, search.filters)):
            results.append(Result(passage, file_id, score, attributes))
    return StoreAnswer(results[:limit], answer.found)


def _ids(live: OpenCollection) -> list[str]:
    return [Path(source).parent.name for source in live.definition.sources]


def _attributes(live: OpenCollection, file_id: str) -> dict[str, Any]:
    return dict(json.loads(live.definition.facts.get(f"{ATTRIBUTES}{file_id}", "{}")))


def _row(live: OpenCollection, file_id: str) -> DocumentRow | None:
    """The document row of a file, if it has been read. Raises: FileNotFound."""
    source = next((s for s in live.definition.sources if Path(s).parent.name == file_id), None)
    if source is None:
        raise FileNotFound(f"There is no file {file_id!r} in this store.", "file_id")
    return live.store.document(source)


def _status(live: OpenCollection, file_id: str) -> tuple[str, str]:
    row = _row(live, file_id)
    if row is None or row.state == READING:
        return "in_progress", ""
    if row.state == FAILED:
        return "failed", row.problem
    # Scans: pages without text, whose problem is that OCR is off.
    unread = "" if row.chars else next((problem for _, _, problem in live.store.pages(row.id) if problem), "")
    return ("failed", unread) if unread else ("completed", "")


def _file(live: OpenCollection, files: Files, file_id: str) -> dict[str, Any]:
    status, problem = _status(live, file_id)
    unsupported = "not read" in problem or problem in (NEEDS_OCR, NO_TEXT)
    code = "unsupported_file" if unsupported else "invalid_file"
    return {
        "id": file_id,
        "object": "vector_store.file",
        "created_at": int(files.get(file_id).created_at),
        "vector_store_id": live.definition.id,
        "usage_bytes": files.get(file_id).size_bytes,
        "status": status,
        "last_error": {"code": code, "message": problem} if problem else None,
        "attributes": _attributes(live, file_id),
        "chunking_strategy": {"type": "other"},
    }


def _counts(live: OpenCollection, ids: list[str]) -> dict[str, int]:
    states = [_status(live, file_id)[0] for file_id in ids]
    names = ("in_progress", "completed", "failed")
    return {**{name: states.count(name) for name in names}, "cancelled": 0, "total": len(states)}


def _store(live: OpenCollection) -> dict[str, Any]:
    definition = live.definition
    counts = _counts(live, _ids(live))
    return {
        "id": definition.id,
        "object": "vector_store",
        "created_at": int(definition.created_at),
        "name": definition.name,
        "usage_bytes": live.store.size_bytes(),
        "file_counts": counts,
        "status": "in_progress" if counts["in_progress"] else "completed",
        "expires_at": None,
        "last_active_at": int(definition.created_at),
        "metadata": {k: v for k, v in definition.facts.items() if not k.startswith(ATTRIBUTES)},
    }


def _batch(live: OpenCollection, batch: str) -> dict[str, Any]:
    entry = _batches.get(live.definition.id, batch)
    counts = _counts(live, list(entry.files))
    return {
        "id": batch,
        "object": "vector_store.files_batch",
        "created_at": int(entry.created_at),
        "vector_store_id": live.definition.id,
        "status": "in_progress" if counts["in_progress"] else "completed",
        "file_counts": counts,
    }
