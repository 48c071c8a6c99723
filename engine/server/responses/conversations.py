"""/v1/conversations: conversations that responses continue and extend."""

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.server.body import Body, Metadata, ignored_header, openapi_body, parse
from engine.server.paging import Order, PageSize, page
from engine.server.response_store.conversations import Conversation, ConversationStore
from engine.server.responses.schemas import ITEM_OR_TOOLS

Items = Annotated[list[dict[str, Any]], Field(max_length=1000)]

router = APIRouter(prefix="/v1/conversations", tags=["responses"])


class CreateBody(Body):
    """POST /v1/conversations."""

    shapes: ClassVar = {"items": ITEM_OR_TOOLS}

    items: Items | None = None
    metadata: Metadata | None = None


class UpdateBody(Body):
    """POST /v1/conversations/{id}."""

    metadata: Metadata


class AddBody(Body):
    """POST /v1/conversations/{id}/items."""

    shapes: ClassVar = {"items": ITEM_OR_TOOLS}

    items: Annotated[Items, Field(min_length=1)]


def _store(request: Request) -> ConversationStore:
    store = request.app.state.server.conversation_store
    assert isinstance(store, ConversationStore)
    return store


@router.post("", openapi_extra=openapi_body(CreateBody))
async def create(request: Request) -> Response:
    """Create a conversation."""
    body = await parse(request, CreateBody)
    conversation = Conversation(body.metadata or {})
    conversation.require_capacity(body.items or [])
    _store(request).put(conversation)
    _store(request).add(conversation, body.items or [])
    return JSONResponse(conversation.payload(), headers=ignored_header(body.ignored()))


@router.get("/{conversation}")
async def show(request: Request, conversation: str) -> dict[str, Any]:
    """One conversation."""
    return _store(request).get(conversation).payload()


@router.post("/{conversation}", openapi_extra=openapi_body(UpdateBody))
async def update(request: Request, conversation: str) -> Response:
    """Replace a conversation's metadata."""
    body = await parse(request, UpdateBody)
    stored = _store(request).get(conversation)
    stored.metadata = body.metadata
    return JSONResponse(stored.payload(), headers=ignored_header(body.ignored()))


@router.delete("/{conversation}")
async def delete(request: Request, conversation: str) -> dict[str, Any]:
    """Delete a conversation."""
    _store(request).remove(conversation)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation}/items")
async def list_items(
    request: Request, conversation: str, limit: PageSize = 20, after: str | None = None, order: Order = "desc"
) -> dict[str, Any]:
    """The items of a conversation, newest first by default."""
    return page(_store(request).get(conversation).items, limit, after, order)


@router.post("/{conversation}/items", openapi_extra=openapi_body(AddBody))
async def add_items(request: Request, conversation: str) -> Response:
    """Add items that are not from a response."""
    body = await parse(request, AddBody)
    stored = _store(request).get(conversation)
    stored.require_capacity(body.items)
    added = _store(request).add(stored, body.items)
    return JSONResponse(page(added, len(added), None, "asc"), headers=ignored_header(body.ignored()))


@router.get("/{conversation}/items/{item}")
async def show_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """One item."""
    return _store(request).get(conversation).find(item)


@router.delete("/{conversation}/items/{item}")
async def delete_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """Delete an item; returns the conversation without it."""
    stored = _store(request).get(conversation)
    stored.take_out(item)
    return stored.payload()
