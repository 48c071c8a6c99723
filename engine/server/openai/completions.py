"""POST /v1/completions: text in, text out."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from engine.chat.fim import FimGap
from engine.errors import InputFault
from engine.pool import LoadedModel, Place
from engine.server.body import openapi_body, parse
from engine.server.errors import sse_error
from engine.server.fanout import merge
from engine.server.fim import fim_prompt, fim_request
from engine.server.openai import shapes
from engine.server.openai.query import output_of
from engine.server.openai.schemas import CompletionRequest
from engine.server.sse import EventStream, comment_of, while_connected
from engine.server.state import ServerState, server_state
from engine.types import Delta, Done, Event, GenerationRequest, TokenLogprob

router = APIRouter()

# OpenAI's documented default for this route.
DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions", openapi_extra=openapi_body(CompletionRequest))
async def completions(request: Request) -> Response:
    """Complete one or several prompts."""
    state = server_state(request)
    body = await parse(request, CompletionRequest)
    headers = shapes.ignored_header(body)
    if body.stream:
        place = Place()
        return EventStream(_stream(state, body, place), sse_error, ping=comment_of(place), headers=headers)
    answer = await while_connected(request, _complete(state, body))
    return JSONResponse(answer, headers=headers)


def _requests(body: CompletionRequest) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt=prompt,
            max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
            stop=body.stops(),
            sampling=body.sampling(choice),
            logprobs=body.logprobs,
            ignore_eos=bool(body.ignore_eos),
            speculate=body.speculate,
            context_shift=bool(body.context_shift),
            lora=body.adapters(),
        )
        for prompt in body.prompts()
        for choice in range(body.n or 1)
    ]


async def _start(
    state: ServerState, body: CompletionRequest, place: Place | None = None
) -> tuple[LoadedModel, list[AsyncIterator[Event]]]:
    model = await state.pool.acquire(body.model, place=place)
    requests = _requests(body)
    output, param = output_of(body)
    if output is not None:
        checked = await state.checker.check(output, param)
        requests = [msgspec.structs.replace(r, constraint=checked) for r in requests]
    if body.suffix:
        requests = [await _filling(model, r, body.suffix) for r in requests]
    return model, [state.pool.generate(model, r) for r in requests]


async def _filling(model: LoadedModel, request: GenerationRequest, suffix: str) -> GenerationRequest:
    """The request as a gap between its prompt and `suffix`."""
    if not isinstance(request.prompt, str):
        raise InputFault("suffix needs a prompt of text, not of token ids.", "suffix")
    limit = request.max_tokens or DEFAULT_MAX_TOKENS
    prompt = await fim_prompt(model, FimGap(prefix=request.prompt, suffix=suffix), limit, may_shorten=False)
    filling = fim_request(prompt, max_tokens=limit, stop=request.stop, sampling=request.sampling)
    return msgspec.structs.replace(
        filling, logprobs=request.logprobs, ignore_eos=request.ignore_eos, constraint=request.constraint
    )


async def _echoes(model: LoadedModel, body: CompletionRequest) -> list[str]:
    """The prompts as text, one for each choice, when the client wants them back."""
    if not body.echo:
        return [""] * (len(body.prompts()) * (body.n or 1))
    assert model.runner is not None
    texts = []
    for prompt in body.prompts():
        if isinstance(prompt, str):
            text = prompt
        else:
            text = b"".join(await model.runner.detokenize(prompt)).decode("utf-8", "replace")
        texts.extend([text] * (body.n or 1))
    return texts


async def _complete(state: ServerState, body: CompletionRequest) -> dict[str, Any]:
    model, generations = await _start(state, body)
    texts = await _echoes(model, body)
    offsets = [len(t) for t in texts]
    logprobs: list[list[TokenLogprob]] = [[] for _ in texts]
    ends: dict[int, Done] = {}
    async for index, event in merge(generations):
        if isinstance(event, Delta):
            texts[index] += event.text
            logprobs[index].extend(event.logprobs)
        elif isinstance(event, Done):
            ends[index] = event
            state.metrics.finished(model.id, event)
    per_prompt = body.n or 1
    usages = [ends[i].usage for i in range(len(texts))]
    usage = shapes.usage_body(usages)
    usage["prompt_tokens"] = sum(u.prompt_tokens for u in usages[::per_prompt])
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return {
        "id": shapes.new_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [
            {
                "index": i,
                "text": text,
                "logprobs": _logprobs(logprobs[i], offsets[i]) if body.logprobs is not None else None,
                "finish_reason": ends[i].finish_reason,
            }
            for i, text in enumerate(texts)
        ],
        "usage": usage,
        "timings": shapes.timings_body(ends[0]),
    }


def _logprobs(entries: list[TokenLogprob], offset: int) -> dict[str, Any]:
    """The completion form of log probabilities: parallel lists."""
    tokens = [e.piece.decode("utf-8", "replace") for e in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [{piece.decode("utf-8", "replace"): value for _, piece, value in e.top} for e in entries],
        "text_offset": offsets,
    }


async def _stream(state: ServerState, body: CompletionRequest, place: Place) -> AsyncGenerator[bytes, None]:
    model, generations = await _start(state, body, place)
    echoes = await _echoes(model, body)
    writer = shapes.ChunkWriter("text_completion", shapes.new_id("cmpl"), body.model)
    offsets = [len(t) for t in echoes]
    if body.echo:
        for index, text in enumerate(echoes):
            yield writer.chunk(index, b'"text":' + msgspec.json.encode(text))
    ends: dict[int, Done] = {}
    async for index, event in merge(generations):
        if isinstance(event, Delta):
            probabilities = None
            if body.logprobs is not None:
                probabilities = _logprobs(list(event.logprobs), offsets[index])
                offsets[index] += sum(map(len, probabilities["tokens"]))
            yield writer.chunk(index, b'"text":' + msgspec.json.encode(event.text), None, probabilities)
        elif isinstance(event, Done):
            ends[index] = event
            state.metrics.finished(model.id, event)
            yield writer.chunk(index, b'"text":""', event.finish_reason)
    if body.wants_usage:
        yield writer.usage([ends[i].usage for i in sorted(ends)], shapes.timings_body(ends[0]))
    yield shapes.DONE
