"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.chat.types import ChatTemplate
from engine.errors import InputFault
from engine.pool import LoadedModel
from engine.server.body import openapi_body, parse
from engine.server.errors import sse_error
from engine.server.fanout import merge
from engine.server.openai import shapes
from engine.server.openai.messages import to_messages
from engine.server.openai.schemas import ChatRequest
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.types import Delta, Done, Event, GenerationRequest, Image, TokenLogprob

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=openapi_body(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    body = await parse(request, ChatRequest)
    if body.top_logprobs is not None and not body.logprobs:
        raise InputFault("top_logprobs needs logprobs: true.", "top_logprobs")
    headers = shapes.ignored_header(body)
    if body.stream:
        return EventStream(_stream(state, body), sse_error, headers=headers)
    answer = await while_connected(request, _complete(state, body))
    return JSONResponse(answer, headers=headers)


async def _start(state: ServerState, body: ChatRequest) -> tuple[LoadedModel, list[AsyncIterator[Event]]]:
    messages = to_messages(body.messages)
    model = await state.pool.acquire(body.model)
    assert model.facts is not None
    template = ChatTemplate(source=model.facts.chat_template, bos=model.facts.bos, eos=model.facts.eos)
    rendered = await state.renderer.render(template, messages, **(body.chat_template_kwargs or {}))
    requests = [
        GenerationRequest(
            prompt=rendered.prompt,
            add_special=rendered.add_special,
            max_tokens=body.answer_limit,
            stop=body.stops(),
            sampling=body.sampling(choice),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            images=tuple(Image(data=i.data) for i in rendered.images),
            ignore_eos=bool(body.ignore_eos),
        )
        for choice in range(body.n or 1)
    ]
    return model, [state.pool.generate(model, r) for r in requests]


async def _complete(state: ServerState, body: ChatRequest) -> dict[str, Any]:
    model, generations = await _start(state, body)
    texts = [""] * len(generations)
    logprobs: list[list[TokenLogprob]] = [[] for _ in generations]
    ends: dict[int, Done] = {}
    async for index, event in merge(generations):
        if isinstance(event, Delta):
            texts[index] += event.text
            logprobs[index].extend(event.logprobs)
        elif isinstance(event, Done):
            ends[index] = event
            state.metrics.finished(model.id, event)
    return {
        "id": shapes.new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [
            {
                "index": i,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": _logprobs(logprobs[i]) if body.logprobs else None,
                "finish_reason": ends[i].finish_reason,
            }
            for i, text in enumerate(texts)
        ],
        "usage": shapes.usage_body([ends[i].usage for i in sorted(ends)]),
        "timings": shapes.timings_body(ends[0]),
    }


def _logprobs(entries: list[TokenLogprob]) -> dict[str, Any]:
    return {"content": [shapes.chat_logprob(e) for e in entries], "refusal": None}


async def _stream(state: ServerState, body: ChatRequest) -> AsyncGenerator[bytes, None]:
    model, generations = await _start(state, body)
    writer = shapes.ChunkWriter("chat.completion.chunk", shapes.new_id("chatcmpl"), body.model)
    ends: dict[int, Done] = {}
    greeted: set[int] = set()
    async for index, event in merge(generations):
        if index not in greeted:
            greeted.add(index)
            yield writer.chunk(index, shapes.ROLE_DELTA)
        if isinstance(event, Delta):
            probabilities = _logprobs(list(event.logprobs)) if body.logprobs else None
            yield writer.chunk(index, shapes.delta(event.text), None, probabilities)
        elif isinstance(event, Done):
            ends[index] = event
            state.metrics.finished(model.id, event)
            yield writer.chunk(index, shapes.EMPTY_DELTA, event.finish_reason)
    if body.wants_usage:
        yield writer.usage([ends[i].usage for i in sorted(ends)], shapes.timings_body(ends[0]))
    yield shapes.DONE
