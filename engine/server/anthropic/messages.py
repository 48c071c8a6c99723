"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.server.anthropic.errors import anthropic_body, anthropic_event
from engine.server.anthropic.schemas import CountRequest, MessagesRequest
from engine.server.anthropic.stream import BlockStream
from engine.server.anthropic.translate import to_ask
from engine.server.body import openapi_body, parse
from engine.server.conversation import Ask, Finished, prepare
from engine.server.openai.shapes import ignored_header, new_id
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state

router = APIRouter()

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@router.post("/v1/messages", openapi_extra=openapi_body(MessagesRequest))
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    body = await parse(request, MessagesRequest)
    ask = to_ask(body)
    headers = ignored_header(body)
    if body.stream:
        chunks = _stream(state, ask)
        return EventStream(chunks, anthropic_event, anthropic_body, ping=PING, headers=headers)
    return JSONResponse(await while_connected(request, _whole(state, ask)), headers=headers)


@router.post("/v1/messages/count_tokens", openapi_extra=openapi_body(CountRequest))
async def count_tokens(request: Request) -> dict[str, Any]:
    """Tokens that a conversation's prompt has, exactly as it would run."""
    body = await parse(request, CountRequest)
    turn = await prepare(server_state(request), to_ask(body))
    assert turn.model.runner is not None
    tokens = await turn.model.runner.tokenize(turn.rendered.prompt, add_special=turn.rendered.add_special)
    return {"input_tokens": len(tokens)}


async def _stream(state: ServerState, ask: Ask) -> AsyncGenerator[bytes, None]:
    turn = await prepare(state, ask)
    blocks = BlockStream(new_id("msg", "_"), ask.model)
    async for item in turn.events():
        out = blocks.feed(item)
        if out:
            yield out


async def _whole(state: ServerState, ask: Ask) -> dict[str, Any]:
    turn = await prepare(state, ask)
    blocks = BlockStream(new_id("msg", "_"), ask.model)
    end: Finished | None = None
    async for item in turn.events():
        blocks.feed(item)
        if isinstance(item, Finished):
            end = item
    assert end is not None
    return blocks.whole(end)
