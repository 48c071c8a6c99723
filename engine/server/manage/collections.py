"""/tessera/v1/collections: create, search, update and delete document collections."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from devices.msgspec_lock import learned
from engine.api.collections import (
    Collection,
    CollectionChange,
    CollectionRequest,
    Collections,
    Document,
    DocumentPages,
    Documents,
    PageState,
    PageText,
    Removed,
    SearchAnswer,
    SearchRequest,
)
from engine.core.errors import InputFault
from engine.core.paths import whole_path
from engine.documents.collection_config import CollectionConfig
from engine.documents.errors import NoDocument
from engine.documents.types import DocumentRow
from engine.documents.walk import is_there
from engine.message_catalog.reasons import because
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

# Integers that SQLite and JSON numbers can represent exactly.
Number = Annotated[int, Field(ge=0, lt=1 << 53)]

router = APIRouter(prefix="/tessera/v1/collections", tags=["collections"], route_class=TypedRoute)


@router.get("")
async def list_collections(request: Request) -> Collections:
    """All collections with the state of their index."""
    service = await server_state(request).collection_service()
    return Collections(collections=await asyncio.to_thread(service.all_shown))


@router.post("", status_code=201)
async def make_collection(request: Request, body: CollectionRequest) -> Collection:
    """Create a collection. Its files are indexed immediately, in the background."""
    service = await server_state(request).collection_service()
    fields = msgspec.structs.asdict(body)
    fields["sources"] = _sources(body.sources)
    del fields["name"], fields["allow_remote"]
    models = CollectionConfig(id="", name="", embedding_model=body.embedding_model, reranker=body.reranker)
    fields["agreed"] = service.agreement(models, allows=body.allow_remote).agreed
    return await asyncio.to_thread(lambda: service.shown(service.collections.add(body.name, **fields)))


@router.get("/{collection}")
async def show_collection(request: Request, collection: str) -> Collection:
    """One collection, by id or name."""
    service = await server_state(request).collection_service()
    return await asyncio.to_thread(lambda: service.shown(service.collections.live(collection)))


@router.post("/{collection}")
async def change_collection(request: Request, collection: str, body: CollectionChange) -> Collection:
    """Add and remove sources, or change the settings of a collection."""
    service = await server_state(request).collection_service()
    apart = ("add", "remove", "allow_remote")
    changes = {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None and k not in apart}
    added = _sources(body.add)

    def change(old: CollectionConfig) -> CollectionConfig:
        removed = {path if path in old.sources else _plain(path, "remove") for path in body.remove}
        unknown = removed - set(old.sources)
        if unknown:
            raise InputFault(because("not_a_source", source=min(unknown), name=old.name), "remove")
        remaining = tuple(source for source in old.sources if source not in removed)
        new = msgspec.structs.replace(old, sources=tuple(dict.fromkeys((*remaining, *added))), **changes)
        if body.allow_remote is False:
            return msgspec.structs.replace(new, agreed={})
        if body.allow_remote or "embedding_model" in changes or "reranker" in changes:
            return service.agreement(new, allows=bool(body.allow_remote))
        return new

    return await asyncio.to_thread(lambda: service.shown(service.collections.change(collection, change)))


@router.delete("/{collection}")
async def remove_collection(request: Request, collection: str) -> Removed:
    """Delete a collection; its source files stay. Its index can be restored for ten minutes."""
    service = await server_state(request).collection_service()
    removed = await asyncio.to_thread(lambda: service.collections.remove(collection, restorable=True))
    return Removed(id=removed.id, name=removed.name)


@router.post("/{collection}/restore")
async def restore_collection(request: Request, collection: str) -> Collection:
    """Bring back a collection that was removed within the last ten minutes, by its id."""
    service = await server_state(request).collection_service()
    return await asyncio.to_thread(lambda: service.shown(service.collections.restore(collection)))


@router.post("/{collection}/refresh")
async def refresh_collection(request: Request, collection: str) -> Collection:
    """Check the collection's files for changes now."""
    service = await server_state(request).collection_service()

    def refresh() -> Collection:
        service.collections.refresh(collection)
        return service.shown(service.collections.live(collection))

    return await asyncio.to_thread(refresh)


@router.post("/{collection}/search")
async def search_collection(request: Request, collection: str, body: SearchRequest) -> SearchAnswer:
    """Passages relevant to a query, best first."""
    service = await server_state(request).collection_service()
    return await service.search(await asyncio.to_thread(service.collections.live, collection), body)


@router.get("/{collection}/documents")
async def list_documents(
    request: Request,
    collection: str,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    *,
    problems: bool = False,
) -> Documents:
    """Documents by path; if `problems`, only those that were not read completely."""
    service = await server_state(request).collection_service()
    live = await asyncio.to_thread(service.collections.live, collection)
    rows = await asyncio.to_thread(live.store.documents, after, limit + 1, problems=problems)
    shown = tuple(_document(row) for row in rows[:limit])
    return Documents(documents=shown, after=shown[-1].path if len(rows) > limit else None)


@router.get("/{collection}/documents/{document}")
async def show_document(request: Request, collection: str, document: Number) -> DocumentPages:
    """A document and its pages, with the reason if a page could not be read."""
    service = await server_state(request).collection_service()
    live = await asyncio.to_thread(service.collections.live, collection)
    row = await asyncio.to_thread(live.store.document, document)
    if row is None:
        raise NoDocument(because("no_document", name=live.definition.name, document=document), "document")
    pages = await asyncio.to_thread(live.store.pages, document)
    return DocumentPages(
        document=_document(row),
        pages=tuple(PageState(number=n, label=label, problem=problem) for n, label, problem in pages),
    )


@router.get("/{collection}/documents/{document}/pages/{page}")
async def show_page(
    request: Request, collection: str, document: Number, page: Number, passage: Number | None = None
) -> PageText:
    """The text of a page, with the position of a passage."""
    service = await server_state(request).collection_service()
    live = await asyncio.to_thread(service.collections.live, collection)
    return await asyncio.to_thread(service.page, live, document, page, passage)


def _sources(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Absolute paths that exist. Raises: InputFault."""
    sources = []
    for path in paths:
        source = _plain(path, "sources")
        if not is_there(source):
            raise InputFault(because("source_not_there", path=path), "sources")
        sources.append(source)
    return tuple(dict.fromkeys(sources))


def _plain(path: str, field: str) -> str:
    """The absolute path without "..", as changes of its files are reported. Raises: InputFault: it is relative."""
    place = whole_path(path, field)
    return str(place.resolve() if ".." in place.parts else place)


def _document(row: DocumentRow) -> Document:
    return msgspec.convert(row, learned(Document), from_attributes=True)
