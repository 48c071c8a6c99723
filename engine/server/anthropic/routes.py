"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.chat.chat_pipeline import AnswerFinished
from engine.chat.query import ChatQuery
from engine.server.anthropic.errors import SHAPE
from engine.server.anthropic.schemas import CountRequest, MessagesRequest
from engine.server.anthropic.stream import BlockStream
from engine.server.anthropic.translate import to_query
from engine.server.body import openapi_body, parse
from engine.server.ids import new_id
from engine.server.ignored import ignored_header
from engine.server.protocol_router import protocol_router
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import prepare_turn

router = protocol_router(SHAPE, tags=["anthropic"])

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@router.post("/v1/messages", openapi_extra=openapi_body(MessagesRequest))
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    body = await parse(request, MessagesRequest)
    query = to_query(body)
    headers = ignored_header(body.ignored())
    if body.stream:
        chunks = _stream(state, body.model, query)
        return EventStream(chunks, SHAPE, ping=PING, headers=headers)
    return JSONResponse(await while_connected(request, _whole(state, body.model, query)), headers=headers)


@router.post("/v1/messages/count_tokens", openapi_extra=openapi_body(CountRequest))
async def count_tokens(request: Request) -> Response:
    """Tokens that a conversation's prompt has, exactly as it would run."""
    body = await parse(request, CountRequest)
    turn = await prepare_turn(server_state(request), body.model, to_query(body))
    return JSONResponse({"input_tokens": await turn.prompt_tokens()}, headers=ignored_header(body.ignored()))


async def _stream(state: ServerState, model: str, query: ChatQuery) -> AsyncGenerator[bytes, None]:
    turn = await prepare_turn(state, model, query)
    blocks = BlockStream(new_id("msg", "_"), model)
    async with aclosing(turn.events()) as events:
        async for item in events:
            out = blocks.feed(item)
            if out:
                yield out


async def _whole(state: ServerState, model: str, query: ChatQuery) -> dict[str, Any]:
    turn = await prepare_turn(state, model, query)
    blocks = BlockStream(new_id("msg", "_"), model)
    end: AnswerFinished | None = None
    async with aclosing(turn.events()) as events:
        async for item in events:
            blocks.feed(item)
            if isinstance(item, AnswerFinished):
                end = item
    assert end is not None
    return blocks.whole(end)
