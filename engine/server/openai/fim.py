"""POST /infill (llama.cpp's editors) and POST /v1/fim/completions (Mistral's protocol, which Continue speaks)."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final, cast

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, Field
from starlette.responses import Response

from engine.chat.fim import FimFile, FimGap
from engine.pool import LoadedModel
from engine.server.body import Body, openapi_body, parse
from engine.server.errors import sse_error
from engine.server.fim import FimPrompt, fim_model, fim_prompt, fim_request
from engine.server.openai import shapes
from engine.server.openai.schemas import SamplingBody
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state
from engine.types import Delta, Done, Event, GenerationRequest, SamplingParams, Started

router = APIRouter()

# A completion longer than this is no longer read before it is accepted. Editors send their own limit.
DEFAULT_MAX_TOKENS: Final = 128
MAX_TEXT: Final = 8 << 20
_STOP_TYPES: Final = {"length": "limit", "stop": "eos", "cancelled": "limit", "error": "none"}


class ExtraChunk(Body):
    """A piece of another file."""

    text: Annotated[str, Field(max_length=MAX_TEXT)]
    filename: str = "file"


class InfillRequest(SamplingBody):
    """POST /infill, as llama-server takes it. `model` may be left out: then a model that can fill gaps serves."""

    input_prefix: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    input_suffix: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    input_extra: Annotated[list[ExtraChunk], Field(max_length=1024)] | None = None
    prompt: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    filename: str | None = None
    model: str | None = None
    n_predict: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    t_max_predict_ms: Annotated[float, Field(ge=0)] | None = None
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None
    # Prefixes are always cached here.
    cache_prompt: bool | None = None
    n_indent: int | None = None

    @property
    def max_tokens(self) -> int:
        """At least one token is generated, even where a client only wants its prompt cached."""
        wanted = self.n_predict if self.n_predict is not None else DEFAULT_MAX_TOKENS
        return max(wanted if wanted >= 0 else DEFAULT_MAX_TOKENS, 1)

    def gap(self) -> FimGap:
        """The gap: `prompt` is what stands on the cursor's line, after the prefix."""
        extra = tuple(FimFile(chunk.filename, chunk.text) for chunk in self.input_extra or ())
        return FimGap(
            prefix=self.input_prefix + self.prompt, suffix=self.input_suffix, path=self.filename, extra=extra
        )


class FimCompletionRequest(SamplingBody):
    """POST /v1/fim/completions."""

    model: str
    prompt: Annotated[str, Field(max_length=MAX_TEXT)]
    suffix: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(
        default=None, validation_alias=AliasChoices("random_seed", "seed")
    )


def _sampling(body: SamplingBody) -> SamplingParams:
    """Without a wish the likeliest completion: an editor asks again and again and wants the same answer."""
    sampling = body.sampling()
    return sampling if body.temperature is not None else msgspec.structs.replace(sampling, temperature=0.0)


@router.post("/infill", openapi_extra=openapi_body(InfillRequest))
async def infill(request: Request) -> Response:
    """Fill a gap in a file, as llama.vim and llama.vscode ask for it."""
    state = server_state(request)
    body = await parse(request, InfillRequest)
    headers = {"x-tessera-ignored": ", ".join(body.ignored())} if body.ignored() else {}
    if body.stream:
        return EventStream(_infill_stream(state, body), sse_error, headers=headers)
    return JSONResponse(await while_connected(request, _infill(state, body)), headers=headers)


async def _infill_start(
    state: ServerState, body: InfillRequest
) -> tuple[LoadedModel, FimPrompt, GenerationRequest]:
    model = await fim_model(state, body.model)
    prompt = await fim_prompt(model, body.gap(), body.max_tokens, may_shorten=True)
    request = fim_request(prompt, max_tokens=body.max_tokens, stop=body.stops(), sampling=_sampling(body))
    return model, prompt, request


async def _timed(events: AsyncIterator[Event], limit_ms: float | None) -> AsyncGenerator[Event, None]:
    """The events; with a limit none of the text that comes later than that after the first."""
    begun = 0.0
    # Leaving early must end the generation now, not when the collector gets to it.
    async with aclosing(cast("AsyncGenerator[Event, None]", events)) as source:
        async for event in source:
            if isinstance(event, Delta):
                begun = begun or time.monotonic()
                if limit_ms and (time.monotonic() - begun) * 1000 > limit_ms:
                    return
            yield event


async def _infill(state: ServerState, body: InfillRequest) -> dict[str, Any]:
    model, prompt, request = await _infill_start(state, body)
    text, started, done = "", Started(prompt_tokens=len(prompt.token_ids), cached_tokens=0), None
    async with aclosing(_timed(state.pool.generate(model, request), body.t_max_predict_ms)) as events:
        async for event in events:
            if isinstance(event, Started):
                started = event
            elif isinstance(event, Delta):
                text += event.text
            else:
                done = event
    if done is not None:
        state.metrics.finished(model.id, done)
    return _chosen({"content": "" if body.n_predict == 0 else text, **_ended(model, prompt, started, done)}, body)


def _ended(model: LoadedModel, prompt: FimPrompt, started: Started, done: Done | None) -> dict[str, Any]:
    """What llama-server tells at the end, in its own words and milliseconds."""
    generated = done.usage.completion_tokens if done else 0
    times = done.timings if done else None
    decode_ms = times.decode_s * 1000 if times else 0.0
    prompt_ms = times.prefill_s * 1000 if times else 0.0
    fresh = started.prompt_tokens - started.cached_tokens
    return {
        "stop": True,
        "model": model.id,
        "tokens_predicted": generated,
        "tokens_evaluated": started.prompt_tokens,
        "tokens_cached": started.cached_tokens,
        "truncated": prompt.truncated,
        "stop_type": "word" if done and done.stop else _STOP_TYPES[done.finish_reason] if done else "limit",
        "stopping_word": (done.stop if done else None) or "",
        "timings": {
            "cache_n": started.cached_tokens,
            "prompt_n": fresh,
            "prompt_ms": round(prompt_ms, 3),
            "prompt_per_second": round(fresh / prompt_ms * 1000, 2) if prompt_ms else 0.0,
            "predicted_n": generated,
            "predicted_ms": round(decode_ms, 3),
            "predicted_per_second": round(max(generated - 1, 0) / decode_ms * 1000, 2) if decode_ms else 0.0,
        },
    }


def _chosen(answer: dict[str, Any], body: InfillRequest) -> dict[str, Any]:
    """Only the fields asked for; "a/b" names b inside a and comes back under that name."""
    if not body.response_fields:
        return answer
    chosen = {}
    for name in body.response_fields:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


async def _infill_stream(state: ServerState, body: InfillRequest) -> AsyncGenerator[bytes, None]:
    model, prompt, request = await _infill_start(state, body)
    started, done = Started(prompt_tokens=len(prompt.token_ids), cached_tokens=0), None
    # The first piece tells how much of the prompt was cached: a client that cancels never sees the end.
    first: dict[str, Any] = {}
    async with aclosing(_timed(state.pool.generate(model, request), body.t_max_predict_ms)) as events:
        async for event in events:
            if isinstance(event, Started):
                started = event
                first = {"tokens_evaluated": event.prompt_tokens, "tokens_cached": event.cached_tokens}
            elif isinstance(event, Delta):
                if event.text and body.n_predict != 0:
                    yield _sse({"content": event.text, "stop": False, **first})
                    first = {}
            else:
                done = event
                state.metrics.finished(model.id, done)
    yield _sse(_chosen({"content": "", **_ended(model, prompt, started, done)}, body))


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


@router.post("/v1/fim/completions", openapi_extra=openapi_body(FimCompletionRequest))
async def fim_completions(request: Request) -> Response:
    """Fill a gap; answers have the shape of chat completions."""
    state = server_state(request)
    body = await parse(request, FimCompletionRequest)
    headers = {"x-tessera-ignored": ", ".join(body.ignored())} if body.ignored() else {}
    if body.stream:
        return EventStream(_fim_stream(state, body), sse_error, headers=headers)
    return JSONResponse(await while_connected(request, _fim(state, body)), headers=headers)


async def _fim_start(state: ServerState, body: FimCompletionRequest) -> tuple[LoadedModel, AsyncIterator[Event]]:
    model = await state.pool.acquire(body.model)
    limit = body.max_tokens or DEFAULT_MAX_TOKENS
    gap = FimGap(prefix=body.prompt, suffix=body.suffix or "")
    prompt = await fim_prompt(model, gap, limit, may_shorten=False)
    request = fim_request(prompt, max_tokens=limit, stop=body.stops(), sampling=_sampling(body))
    return model, state.pool.generate(model, request)


async def _fim(state: ServerState, body: FimCompletionRequest) -> dict[str, Any]:
    model, events = await _fim_start(state, body)
    text, done = "", None
    async for event in events:
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Done):
            done = event
            state.metrics.finished(model.id, event)
    assert done is not None
    message = {"role": "assistant", "content": text}
    return {
        "id": shapes.new_id("fim"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "choices": [{"index": 0, "message": message, "finish_reason": done.finish_reason}],
        "usage": shapes.usage_body([done.usage]),
        "timings": shapes.timings_body(done),
    }


async def _fim_stream(state: ServerState, body: FimCompletionRequest) -> AsyncGenerator[bytes, None]:
    model, events = await _fim_start(state, body)
    writer = shapes.ChunkWriter("chat.completion.chunk", shapes.new_id("fim"), body.model)
    yield writer.chunk(0, shapes.ROLE_DELTA)
    async for event in events:
        if isinstance(event, Delta):
            yield writer.chunk(0, shapes.delta(event.text))
        elif isinstance(event, Done):
            state.metrics.finished(model.id, event)
            yield writer.chunk(0, shapes.EMPTY_DELTA, event.finish_reason)
            yield writer.usage([event.usage], shapes.timings_body(event))
    yield shapes.DONE
