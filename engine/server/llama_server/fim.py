"""POST /infill (llama.cpp's editor plugins) and POST /v1/fim/completions (Mistral's protocol, used by Continue)."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, Field
from starlette.responses import Response

from engine.chat.fim import FimFile, FimGap
from engine.core.errors import InputFault
from engine.core.ownership import new_id
from engine.core.sampling import choose
from engine.core.types import Delta, Done, Event, GenerationRequest, SamplingParams, Started
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import HERE
from engine.server.body import Body, OptionalText, ignored_header, openapi_body, parse
from engine.server.fim import FimPrompt, fim_model, fim_prompt, fim_request
from engine.server.llama_server.stream import chosen_fields, ended, limited, sse
from engine.server.openai import stream
from engine.server.openai.errors import SHAPE, STREAM_SHAPE
from engine.server.openai.schemas import SamplingBody
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state

router = APIRouter()

# Users do not read longer completions before they accept them. Editors send their own limit.
DEFAULT_MAX_TOKENS: Final = 128
MAX_TEXT: Final = 8 << 20


class ExtraChunk(Body):
    """A chunk of another file."""

    text: Annotated[str, Field(max_length=MAX_TEXT)]
    filename: str | None = None


class InfillRequest(SamplingBody):
    """POST /infill, as in llama-server. `model` is optional: without it, a fill-in-the-middle model is selected."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"stream_options"})

    input_prefix: Annotated[OptionalText, Field(max_length=MAX_TEXT)] = ""
    input_suffix: Annotated[OptionalText, Field(max_length=MAX_TEXT)] = ""
    input_extra: Annotated[list[ExtraChunk], Field(max_length=1024)] | None = None
    prompt: Annotated[OptionalText, Field(max_length=MAX_TEXT)] = ""
    filename: str | None = None
    model: str | None = None
    n_predict: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    t_max_predict_ms: Annotated[float, Field(ge=0)] | None = None
    n_indent: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None
    cache_prompt: bool | None = None

    @property
    def max_tokens(self) -> int:
        """Maximum tokens; at least 1, even if the client only needs its prompt cached."""
        limit = self.n_predict if self.n_predict is not None else DEFAULT_MAX_TOKENS
        return max(limit if limit >= 0 else DEFAULT_MAX_TOKENS, 1)

    def gap(self) -> FimGap:
        """The gap to fill. `prompt` is the text on the cursor's line, after the prefix."""
        extra = tuple(FimFile(chunk.filename or "file", chunk.text) for chunk in self.input_extra or ())
        return FimGap(
            prefix=self.input_prefix + self.prompt, suffix=self.input_suffix, path=self.filename, extra=extra
        )


class FimCompletionRequest(SamplingBody):
    """POST /v1/fim/completions. A stream always ends with usage."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"stream_options"})

    model: str
    prompt: Annotated[str, Field(max_length=MAX_TEXT)]
    suffix: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(
        default=None, validation_alias=AliasChoices("random_seed", "seed")
    )


def _common(body: SamplingBody) -> dict[str, Any]:
    """Fields shared by all generation requests. Raises: InputFault: more than one choice is requested.

    Editors send a request per keystroke, so without a seed latency matters more than identical output.
    """
    if body.n is not None and body.n > 1:
        raise InputFault("n: a gap is filled once; ask again for another completion.", "n")
    return {**body.common(), "repeats": body.seed is not None}


def _sampling(state: ServerState, model: LoadedModel, body: SamplingBody) -> SamplingParams:
    """Sampling; greedy by default, because an editor repeats its requests and expects the same completion."""
    values = {"temperature": 0.0, **body.sampling()}
    return choose(values, state.models.recommended(model.id).plain).params


@router.post("/infill", openapi_extra=openapi_body(InfillRequest))
async def infill(request: Request) -> Response:
    """Fill a gap in a file, for llama.vim and llama.vscode."""
    state = server_state(request)
    body = await parse(request, InfillRequest)
    headers = ignored_header(body.ignored())
    if body.stream:
        return EventStream(_infill_stream(state, body), SHAPE, headers=headers)
    return JSONResponse(await while_connected(request, _infill(state, body)), headers=headers)


async def _infill_start(
    state: ServerState, body: InfillRequest
) -> tuple[LoadedModel, FimPrompt, GenerationRequest]:
    model = await fim_model(state, body.model)
    prompt = await fim_prompt(model, body.gap(), body.max_tokens, may_shorten=True)
    request = fim_request(
        prompt,
        max_tokens=body.max_tokens,
        sampling=_sampling(state, model, body),
        cache_prompt=body.cache_prompt is not False,
        **_common(body),
    )
    return model, prompt, request


def _limited(
    state: ServerState, body: InfillRequest, model: LoadedModel, request: GenerationRequest
) -> AsyncGenerator[Event, None]:
    return limited(state.pool.generate(model, request), body.t_max_predict_ms, body.n_indent or 0)


async def _infill(state: ServerState, body: InfillRequest) -> dict[str, Any]:
    model, prompt, request = await _infill_start(state, body)
    text, num_tokens, done = "", 0, None
    started = Started(prompt_tokens=len(prompt.token_ids), cached_tokens=0)
    async with aclosing(_limited(state, body, model, request)) as events:
        async for event in events:
            if isinstance(event, Started):
                started = event
            elif isinstance(event, Delta):
                text += event.text
                num_tokens += len(event.token_ids)
            elif isinstance(event, Done):
                done = event
    end = ended(model, started, done, truncated=prompt.truncated, num_tokens=num_tokens)
    return chosen_fields({"content": "" if body.n_predict == 0 else text, **end}, body.response_fields)


async def _infill_stream(state: ServerState, body: InfillRequest) -> AsyncGenerator[bytes, None]:
    model, prompt, request = await _infill_start(state, body)
    started, num_tokens, done = Started(prompt_tokens=len(prompt.token_ids), cached_tokens=0), 0, None
    # The first chunk has the number of cached tokens, because a client that cancels never gets the last one.
    first: dict[str, Any] = {}
    async with aclosing(_limited(state, body, model, request)) as events:
        async for event in events:
            if isinstance(event, Started):
                started = event
                first = {"tokens_evaluated": event.prompt_tokens, "tokens_cached": event.cached_tokens}
            elif isinstance(event, Delta):
                num_tokens += len(event.token_ids)
                if event.text and body.n_predict != 0:
                    yield sse({"content": event.text, "stop": False, **first})
                    first = {}
            elif isinstance(event, Done):
                done = event
    end = ended(model, started, done, truncated=prompt.truncated, num_tokens=num_tokens)
    yield sse(chosen_fields({"content": "", **end}, body.response_fields))


@router.post("/v1/fim/completions", openapi_extra=openapi_body(FimCompletionRequest))
async def fim_completions(request: Request) -> Response:
    """Fill a gap; responses have the format of chat completions."""
    state = server_state(request)
    body = await parse(request, FimCompletionRequest)
    headers = ignored_header(body.ignored())
    if body.stream:
        return EventStream(_fim_stream(state, body), STREAM_SHAPE, headers=headers)
    return JSONResponse(await while_connected(request, _fim(state, body)), headers=headers)


async def _fim_start(state: ServerState, body: FimCompletionRequest) -> tuple[LoadedModel, AsyncIterator[Event]]:
    aside = body.priority == "side"
    model = await state.pool.acquire(body.model, loads=not aside, only=HERE if aside else None)
    limit = body.max_tokens or DEFAULT_MAX_TOKENS
    gap = FimGap(prefix=body.prompt, suffix=body.suffix or "")
    prompt = await fim_prompt(model, gap, limit, may_shorten=False)
    request = fim_request(prompt, max_tokens=limit, sampling=_sampling(state, model, body), **_common(body))
    return model, state.pool.generate(model, request)


async def _fim(state: ServerState, body: FimCompletionRequest) -> dict[str, Any]:
    model, events = await _fim_start(state, body)
    text, done = "", None
    async for event in events:
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Done):
            done = event
    assert done is not None
    message = {"role": "assistant", "content": text}
    return {
        "id": new_id("fim"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": stream.fingerprint(model),
        "choices": [{"index": 0, "message": message, "finish_reason": done.finish_reason}],
        "usage": stream.usage_body([done.usage]),
        "timings": stream.timings_body(done),
    }


async def _fim_stream(state: ServerState, body: FimCompletionRequest) -> AsyncGenerator[bytes, None]:
    model, events = await _fim_start(state, body)
    writer = stream.ChunkWriter("chat.completion.chunk", new_id("fim"), body.model, model)
    yield writer.chunk(0, stream.ROLE_DELTA)
    async for event in events:
        if isinstance(event, Delta):
            yield writer.chunk(0, stream.delta(event.text))
        elif isinstance(event, Done):
            yield writer.chunk(0, stream.EMPTY_DELTA, event.finish_reason)
            yield writer.usage([event.usage], stream.timings_body(event))
    yield stream.DONE
