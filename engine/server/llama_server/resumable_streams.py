"""llama-server's routes for streams that outlive their connection: resume, look up, stop."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.core.ownership import request_owner
from engine.server.body import Body, ignored_header, openapi_body, parse
from engine.server.openai.errors import SHAPE
from engine.server.sse import EventStream
from engine.server.state import server_state

router = APIRouter(tags=["llama-server"])

Named = Annotated[str, Query(min_length=1)]
Offset = Annotated[int, Query(alias="from", ge=0, lt=1 << 62)]


class LookupRequest(Body):
    """POST /v1/streams/lookup. A name also matches the streams named `name::model`."""

    conversation_ids: Annotated[list[str], Field(max_length=1024)]


@router.get("/v1/stream")
async def read_stream(request: Request, conv_id: Named, start: Offset = 0) -> Response:
    """The stream of this `X-Conversation-Id` from byte `from` on, existing and future data."""
    stream = server_state(request).streams.find(request_owner.get(), conv_id)
    stream.check(start)
    return EventStream(stream.read(start), SHAPE, ping=b"")


@router.delete("/v1/stream", status_code=204, response_class=Response)
async def stop_stream(request: Request, conv_id: Named) -> None:
    """Stop and delete a conversation's stream."""
    await server_state(request).streams.stop(request_owner.get(), conv_id)


@router.post("/v1/streams/lookup", openapi_extra=openapi_body(LookupRequest))
async def look_up(request: Request) -> Response:
    """The state of these conversations' streams. Clients see only streams of their own key."""
    body = await parse(request, LookupRequest)
    state, owner = server_state(request), request_owner.get()
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(body.conversation_ids):
        rows += state.streams.look(owner, name) if name else []
    return JSONResponse(rows, headers=ignored_header(body.ignored()))
