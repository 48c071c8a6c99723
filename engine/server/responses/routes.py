"""POST /v1/responses, and access to stored responses."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from devices.errors import TesseraError
from engine.chat import structured
from engine.chat.chat_pipeline import thinks
from engine.chat.query import ChatQuery, check_tools
from engine.chat.types import Message
from engine.core.errors import InputFault, exhausted
from engine.core.ownership import new_id
from engine.core.sampling import Chosen, choose
from engine.core.types import Constraint
from engine.server.body import ignored_header, openapi_body, parse
from engine.server.openai.errors import SHAPE
from engine.server.openai.schemas import Reasoning, limit_of
from engine.server.openai.translate import allowed_tools
from engine.server.paging import Order, PageSize, page
from engine.server.response_store.conversations import Conversation, stored_item
from engine.server.responses import file_search
from engine.server.responses.schemas import ResponsesRequest
from engine.server.responses.stream import ItemStream
from engine.server.responses.tools import Toolbox, add_from_items, tool_choice, toolbox, whole_tool
from engine.server.responses.translate import to_messages
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import prepare_turn

log = logging.getLogger(__name__)
router = APIRouter(tags=["responses"])


class _Asked(msgspec.Struct, frozen=True):
    """A validated request. `context` is the conversation without this request's instructions."""

    body: ResponsesRequest
    query: ChatQuery
    box: Toolbox
    context: tuple[Message, ...]
    response: dict[str, Any]
    conversation: Conversation | None
    search: file_search.Search | None = None


@router.post("/v1/responses", openapi_extra=openapi_body(ResponsesRequest))
@router.post("/responses", include_in_schema=False)
async def create_response(request: Request) -> Response:
    """Response to a conversation of items."""
    state = server_state(request)
    body = await parse(request, ResponsesRequest)
    parts = await _understand(state, body)
    # A stream sends its first event immediately, so errors that need an HTTP status are checked before it.
    check_tools(parts.query)
    if parts.query.output is not None:
        await state.checker.check(parts.query.output, parts.query.output_param)
    entry = await state.models.entry(body.model)
    layers = state.models.recommended_for(entry).layers(thinks(parts.query))
    _report_sampling(parts, choose(parts.query.sampling, layers))  # a stream reports it before the model is loaded
    state.pool.announce(body.model)
    silent = body.ignored() + parts.box.without_effect
    headers = ignored_header(silent)
    items = ItemStream(parts.response, parts.box)
    if body.background:
        job = state.background.start(items, _stream(state, parts, items))
        if body.stream:
            return EventStream(job.follow(), SHAPE, headers=headers)
        return JSONResponse(items.snapshot(), headers=headers)
    if body.stream:
        return EventStream(_stream(state, parts, items), SHAPE, ping=items.keep_alive_event, headers=headers)
    await while_connected(request, _run(state, parts, items))
    return JSONResponse(items.snapshot(), headers=headers)


@router.get("/v1/responses/{response_id}")
async def get_response(
    request: Request, response_id: str, *, stream: bool = False, starting_after: int = -1
) -> Response:
    """A stored response. A background response can be streamed from any event, any number of times."""
    state = server_state(request)
    job = state.background.find(response_id)
    if stream and job is not None:
        return EventStream(job.follow(starting_after), SHAPE)
    if stream:
        state.responses.get(response_id)
        raise InputFault("Only an answer from the background can be streamed again.", "stream")
    if job is not None:
        return JSONResponse(job.items.snapshot())
    return JSONResponse(state.responses.get(response_id).response)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> dict[str, Any]:
    """Cancel a background response."""
    state = server_state(request)
    if state.background.find(response_id) is None:
        state.responses.get(response_id)
    return await state.background.cancel(response_id)


@router.post("/v1/responses/input_tokens", openapi_extra=openapi_body(ResponsesRequest))
@router.post("/responses/input_tokens", include_in_schema=False)
async def count_input(request: Request) -> Response:
    """Exact number of tokens of a request's prompt."""
    state = server_state(request)
    body = await parse(request, ResponsesRequest)
    parts = await _understand(state, body)
    hits = None if parts.search is None else await parts.search.run(state, body.model, parts.query)
    turn = await prepare_turn(state, body.model, parts.query if hits is None else hits.query)
    payload = {"object": "response.input_tokens", "input_tokens": await turn.prompt_tokens()}
    return JSONResponse(payload, headers=ignored_header(body.ignored()))


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(
    request: Request, response_id: str, limit: PageSize = 20, after: str | None = None, order: Order = "desc"
) -> dict[str, Any]:
    """The input items of a stored response, newest first by default."""
    return page(server_state(request).responses.get(response_id).input_items, limit, after, order)


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Delete a stored response."""
    state = server_state(request)
    if state.background.find(response_id) is None:
        state.responses.get(response_id)
    state.background.forget(response_id)
    state.responses.discard(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _understand(state: ServerState, body: ResponsesRequest) -> _Asked:
    body.refuse_impossible()
    if isinstance(body.input, list):
        body.input = [state.responses.meant(item, f"input[{i}]") for i, item in enumerate(body.input)]
    conversation = None if body.conversation_id is None else state.conversation_store.get(body.conversation_id)
    items = body.input if isinstance(body.input, list) else []
    box = toolbox(body.tools or [])
    for listed in (conversation.items if conversation is not None else [], items):
        add_from_items(box, listed)
    context: tuple[Message, ...] = ()
    if body.previous_response_id is not None:
        state.background.refuse_unfinished(body.previous_response_id)
        context = state.responses.previous(body.previous_response_id).messages
    if conversation is not None:
        conversation.require_capacity(items or [_user_item(body.input if isinstance(body.input, str) else "")])
        context = tuple(to_messages(conversation.items, box))
    context = (*context, *to_messages(body.input if body.input is not None else [], box))
    if not context:
        raise InputFault("input is empty; say something.", "input")
    messages = context
    if body.instructions:
        messages = (Message(role="system", content=body.instructions), *context)
    output, param = _output(body.text or {})
    reasoning = body.reasoning or Reasoning()
    choice = file_search.chosen(body.tool_choice, box)
    tools, allowed = allowed_tools(tuple(box.definitions), choice.functions)
    query = ChatQuery(
        messages=messages,
        tools=tools,
        tool_choice=tool_choice(allowed, box),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        output=output,
        output_param=param,
        thinking=reasoning.enabled,
        reasoning_effort=reasoning.effort,
        reasoning_budget=limit_of(reasoning.max_tokens),
        max_tokens=body.max_output_tokens,
        logprobs=body.wanted_logprobs,
        sampling=body.sampling(),
        **body.common(),
    )
    search = await file_search.prepared(state, box, choice)
    return _Asked(body, query, box, context, _response(body), conversation, search)


def _output(text: dict[str, Any]) -> tuple[Constraint | None, str]:
    form, param = text.get("format"), "text.format"
    if form is None or (isinstance(form, dict) and form.get("type") == "text"):
        return None, param
    if isinstance(form, dict) and form.get("type") == "json_object":
        return structured.of_schema({}, param), param
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema, where = form.get("schema"), f"{param}.schema"
        return structured.of_schema(schema, where, strict=form.get("strict") is True), where
    raise InputFault(f"{param}.type must be text, json_object or json_schema.", f"{param}.type")


def _response(body: ResponsesRequest) -> dict[str, Any]:
    return {
        "id": new_id("resp", "_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "conversation": None if body.conversation_id is None else {"id": body.conversation_id},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [whole_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "usage": None,
        **body.labels(),
    }


async def _stream(state: ServerState, parts: _Asked, items: ItemStream) -> AsyncGenerator[bytes, None]:
    items.response["status"] = "in_progress"
    yield items.begin()
    try:
        async with aclosing(_work(state, parts, items)) as chunks:
            async for chunk in chunks:
                yield chunk
    except TesseraError as error:
        yield items.fail(error)
        return
    except Exception as error:
        lack = exhausted(error)
        if lack is None:
            log.exception("stream failed")
        yield items.fail(lack or error)
        return
    _store_response(state, parts, items)


async def _run(state: ServerState, parts: _Asked, items: ItemStream) -> None:
    async with aclosing(_work(state, parts, items)) as chunks:
        async for _ in chunks:
            pass
    _store_response(state, parts, items)


async def _work(state: ServerState, parts: _Asked, items: ItemStream) -> AsyncGenerator[bytes, None]:
    """Search, then generate; yields the encoded events."""
    query = parts.query
    if parts.search is not None:
        yield items.search_begins()
        passages = await parts.search.run(state, parts.body.model, query)
        with_results = "file_search_call.results" in (parts.body.include or ())
        yield items.search_ended(passages, with_results=with_results)
        query = passages.query
    turn = await prepare_turn(state, parts.body.model, query)
    _report_sampling(parts, turn.chat.sampling)
    async with aclosing(turn.events()) as events:
        async for item in events:
            if out := items.feed(item):
                yield out


def _report_sampling(parts: _Asked, sampling: Chosen) -> None:
    """Add the sampling values and their sources to the response."""
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        parts.response[name] = getattr(sampling.params, name)
    parts.response["tessera"] = {"sampling": sampling.facts()}


def _store_response(state: ServerState, parts: _Asked, items: ItemStream) -> None:
    """Add the items to the conversation, and store the response unless the client disabled that."""
    sent = parts.body.input
    listed = sent if isinstance(sent, list) else [_user_item(sent or "")]
    listed = [stored_item(item) for item in listed]
    if parts.conversation is not None:
        state.conversation_store.add(parts.conversation, [*listed, *items.output])
    if parts.body.store is not False:
        state.responses.put(items.snapshot(), listed, (*parts.context, items.message()))


def _user_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
