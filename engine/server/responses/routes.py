"""POST /v1/responses, and the answers that were stored."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.chat import structured
from engine.chat.conversation import ChatQuery, check_tools
from engine.chat.types import Message
from engine.errors import EngineError, InputFault
from engine.server.body import openapi_body, parse
from engine.server.errors import sse_error
from engine.server.openai.shapes import header_list, new_id
from engine.server.responses.items import to_messages
from engine.server.responses.schemas import ResponsesRequest
from engine.server.responses.stream import ItemStream
from engine.server.responses.tools import Toolbox, tool_choice, toolbox
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import prepare_turn
from engine.types import Constraint, SamplingParams

log = logging.getLogger(__name__)
router = APIRouter(tags=["responses"])


@dataclass(frozen=True)
class _Asked:
    """A request that was understood. `context` is the conversation without this request's instructions."""

    body: ResponsesRequest
    query: ChatQuery
    box: Toolbox
    context: tuple[Message, ...]
    response: dict[str, Any]


@router.post("/v1/responses", openapi_extra=openapi_body(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Answer a conversation of items."""
    state = server_state(request)
    body = await parse(request, ResponsesRequest)
    asked = _understand(state, body)
    # A stream tells its beginning at once; what can be refused with a status is refused before.
    check_tools(asked.query)
    if asked.query.output is not None:
        await state.checker.check(asked.query.output, asked.query.output_param)
    await state.models.entry(body.model)
    silent = body.without_effect() + asked.box.without_effect
    headers = {"x-tessera-ignored": header_list(silent)} if silent else {}
    items = ItemStream(asked.response, asked.box)
    if body.stream:
        return EventStream(_stream(state, asked, items), sse_error, ping=items.still_here, headers=headers)
    await while_connected(request, _run(state, asked, items))
    return JSONResponse(items.snapshot(), headers=headers)


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> dict[str, Any]:
    """A stored answer."""
    return server_state(request).responses.get(response_id).response


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> dict[str, Any]:
    """The items that a stored answer was asked with."""
    items = server_state(request).responses.get(response_id).input_items
    ends = {"first_id": items[0].get("id") if items else None, "last_id": items[-1].get("id") if items else None}
    return {"object": "list", "data": items, "has_more": False, **ends}


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Forget a stored answer."""
    server_state(request).responses.remove(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _understand(state: ServerState, body: ResponsesRequest) -> _Asked:
    body.refuse_impossible()
    box = toolbox(body.tools or [])
    context: tuple[Message, ...] = ()
    if body.previous_response_id is not None:
        context = state.responses.previous(body.previous_response_id).messages
    context = (*context, *to_messages(body.input if body.input is not None else [], box))
    if not context:
        raise InputFault("input is empty; say something.", "input")
    messages = context
    if body.instructions:
        messages = (Message(role="system", content=body.instructions), *context)
    output, param = _output(body.text or {})
    effort = (body.reasoning or {}).get("effort")
    sampling = {k: v for k in ("temperature", "top_p") if (v := getattr(body, k)) is not None}
    query = ChatQuery(
        messages=messages,
        tools=tuple(box.definitions),
        tool_choice=tool_choice(body.tool_choice, box),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        output=output,
        output_param=param,
        reasoning_effort=effort if isinstance(effort, str) else None,
        max_tokens=body.max_output_tokens,
        sampling=SamplingParams(**sampling),
    )
    return _Asked(body, query, box, context, _response(body))


def _output(text: dict[str, Any]) -> tuple[Constraint | None, str]:
    wanted, param = text.get("format"), "text.format"
    if wanted is None or (isinstance(wanted, dict) and wanted.get("type") == "text"):
        return None, param
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        return structured.of_schema({}, param), param
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        return structured.of_schema(wanted.get("schema"), f"{param}.schema"), f"{param}.schema"
    raise InputFault(f"{param}.type must be text, json_object or json_schema.", f"{param}.type")


def _response(body: ResponsesRequest) -> dict[str, Any]:
    """The response object before anything was said."""
    return {
        "id": new_id("resp", "_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


async def _stream(state: ServerState, asked: _Asked, items: ItemStream) -> AsyncGenerator[bytes, None]:
    yield items.begin()
    try:
        turn = await prepare_turn(state, asked.body.model, asked.query)
        async with aclosing(turn.events()) as events:
            async for item in events:
                out = items.feed(item)
                if out:
                    yield out
    except EngineError as error:
        yield items.fail(error)
        return
    except Exception as error:
        log.exception("stream failed")
        yield items.fail(error)
        return
    _keep(state, asked, items)


async def _run(state: ServerState, asked: _Asked, items: ItemStream) -> None:
    turn = await prepare_turn(state, asked.body.model, asked.query)
    async with aclosing(turn.events()) as events:
        async for item in events:
            items.feed(item)
    _keep(state, asked, items)


def _keep(state: ServerState, asked: _Asked, items: ItemStream) -> None:
    """Store the answer unless the client said not to."""
    if asked.body.store is False:
        return
    given = asked.body.input
    listed = given if isinstance(given, list) else [_user_item(given or "")]
    listed = [item if "id" in item else {**item, "id": new_id("item", "_")} for item in listed]
    state.responses.put(items.snapshot(), listed, (*asked.context, items.said()))


def _user_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
