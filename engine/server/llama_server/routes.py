"""llama-server's routes besides OpenAI's: completion, properties, slots, chat template, tokens, resumable streams.

/tokenize and /detokenize also have vLLM's format, with `prompt`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.responses import Response

from engine.chat.query import ChatQuery
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.ownership import request_owner
from engine.core.sampling import choose, only_explicit
from engine.core.types import Event, GenerationRequest
from engine.core.version import __version__
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import HERE
from engine.server.body import Body, ignored_header, openapi_body, parse
from engine.server.llama_server.schemas import NativeRequest, PromptPart, TemplateRequest
from engine.server.llama_server.stream import CompletionAnswer, limited, sse
from engine.server.models import DEFAULT_NAME
from engine.server.openai import models
from engine.server.openai import routes as chat
from engine.server.openai.errors import SHAPE
from engine.server.openai.schemas import limit_of
from engine.server.openai.translate import output_of, to_query
from engine.server.sse import EventStream, merge, while_connected
from engine.server.state import ServerState, server_state
from engine.server.turn import chosen_model, prepare_turn

router = APIRouter(tags=["llama-server"])

MAX_PROMPTS = 64


@router.post("/completion", openapi_extra=openapi_body(NativeRequest))
@router.post("/completions", openapi_extra=openapi_body(NativeRequest), include_in_schema=False)
async def completion(request: Request) -> Response:
    """Complete a prompt, in llama-server's protocol."""
    state = server_state(request)
    body = await parse(request, NativeRequest)
    if body.n is not None and body.n > 1:
        raise InputFault("n: send the prompt several times in a list instead.", "n")
    if len(body.prompts()) > MAX_PROMPTS:
        raise InputFault(f"prompt: at most {MAX_PROMPTS} prompts fit one request.", "prompt")
    headers = ignored_header(body.ignored())
    if body.stream:
        return EventStream(_stream(state, body), SHAPE, headers=headers)
    answers = await while_connected(request, _complete_response(state, body))
    return JSONResponse(answers[0] if len(answers) == 1 else answers, headers=headers)


async def _start(
    state: ServerState, body: NativeRequest
) -> tuple[list[CompletionAnswer], list[AsyncIterator[Event]]]:
    model = await chosen_model(state, body.model)
    output, param = output_of(body)
    constraint, notes = (None, ()) if output is None else await state.checker.fit(output, param)
    limit = limit_of(body.n_predict, body.max_tokens)
    sampling = choose(await _sampling(model, body), state.models.recommended(model.id).plain)
    if model.facts is not None and model.facts.forwards:
        sampling = only_explicit(sampling)
    generations: list[AsyncIterator[Event]] = []
    for prompt in body.prompts():
        request = GenerationRequest(
            prompt=prompt if isinstance(prompt, str) else await _tokens(model, prompt),
            max_tokens=limit,
            sampling=sampling.params,
            logprobs=body.n_probs or None,
            constraint=constraint,
            cache_prompt=body.cache_prompt is not False,
            explicit=sampling.explicit,
            **body.common(),
        )
        generations.append(limited(state.pool.generate(model, request), body.t_max_predict_ms))
    answers = [CompletionAnswer(model, body, sampling, index, notes) for index in range(len(generations))]
    return answers, generations


async def _sampling(model: LoadedModel, body: NativeRequest) -> dict[str, Any]:
    """The request's sampling values, with `logit_bias` texts converted to this model's tokens."""
    assert model.runner is not None
    values = body.sampling()
    bias: dict[int, float] = {}
    for key, value in body.biases():
        ids = [key] if isinstance(key, int) else await model.runner.tokenize(key, add_special=False)
        bias |= dict.fromkeys(ids, value)
    return {**values, "logit_bias": bias} if bias else values


async def _tokens(model: LoadedModel, parts: list[PromptPart]) -> list[int]:
    """A mixed prompt as token ids. BOS is added only if the prompt starts with text."""
    assert model.runner is not None
    tokens: list[int] = []
    for index, part in enumerate(parts):
        tokens += [part] if isinstance(part, int) else await model.runner.tokenize(part, add_special=index == 0)
    return tokens


async def _complete_response(state: ServerState, body: NativeRequest) -> list[dict[str, Any]]:
    answers, generations = await _start(state, body)
    async for index, event in merge(generations):
        answers[index].feed(event)
    return [answer.end() for answer in answers]


async def _stream(state: ServerState, body: NativeRequest) -> AsyncGenerator[bytes, None]:
    answers, generations = await _start(state, body)
    async with aclosing(merge(generations)) as events:
        async for index, event in events:
            chunk = answers[index].feed(event)
            if chunk is not None:
                yield sse(chunk)
    for answer in answers:
        yield sse(answer.end(""))


@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(request: Request) -> Response:
    """OpenAI's route without the /v1 prefix, as in llama-server."""
    return await chat.chat_completions(request)


@router.get("/models", include_in_schema=False)
async def list_models(request: Request) -> dict[str, Any]:
    """OpenAI's route without the /v1 prefix, as in llama-server."""
    return await models.list_models(request)


def _template_query(body: TemplateRequest) -> ChatQuery:
    return msgspec.structs.replace(to_query(body), add_generation_prompt=body.add_generation_prompt is not False)


@router.post("/apply-template", openapi_extra=openapi_body(TemplateRequest))
async def apply_template(request: Request) -> Response:
    """The rendered prompt of a conversation, without running it."""
    body = await parse(request, TemplateRequest)
    turn = await prepare_turn(server_state(request), body.model, _template_query(body))
    return JSONResponse({"prompt": turn.chat.rendered.prompt}, headers=ignored_header(body.ignored()))


@router.post("/v1/chat/completions/input_tokens", openapi_extra=openapi_body(TemplateRequest))
@router.post("/chat/completions/input_tokens", openapi_extra=openapi_body(TemplateRequest), include_in_schema=False)
async def chat_input_tokens(request: Request) -> Response:
    """Exact number of tokens of a conversation's prompt."""
    body = await parse(request, TemplateRequest)
    turn = await prepare_turn(server_state(request), body.model, _template_query(body))
    payload = {"object": "response.input_tokens", "input_tokens": await turn.prompt_tokens()}
    return JSONResponse(payload, headers=ignored_header(body.ignored()))


def _loaded(state: ServerState, name: str | None) -> LoadedModel | None:
    """The loaded model of that name, or the most recently used one. Does not load a model."""
    candidates = [m for m in state.pool.loaded if name is None or m.id == name]
    return max(candidates, key=lambda m: m.last_used, default=None)


@router.get("/props")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """Properties of a model; without `model`, of the most recently used one. Does not load a model."""
    state = server_state(request)
    loaded = _loaded(state, (await state.models.known(model)).id if model else None)
    entry = await state.models.known(loaded.id if loaded else model or DEFAULT_NAME)
    facts = loaded.facts if loaded else None
    settings = loaded.settings if loaded else state.models.settings(entry)
    defaults = msgspec.structs.asdict(choose({}, state.models.recommended_for(entry).plain).params)
    return {
        "default_generation_settings": {"n_ctx": await state.contexts.largest(entry.id), "params": defaults},
        "n_ctx_loaded": state.contexts.loaded(entry.id),
        "total_slots": settings.n_parallel,
        "model_alias": entry.id,
        "model_path": entry.path.name,
        "modalities": {"vision": "vision" in entry.capabilities, "audio": False},
        "chat_template": (facts.chat_template if facts else entry.chat_template) or "",
        "bos_token": facts.bos if facts else "",
        "eos_token": facts.eos if facts else "",
        "build_info": f"tessera {__version__}",
        "is_sleeping": loaded is None,
    }


@router.get("/slots")
async def slots(request: Request, model: str | None = None, fail_on_no_slot: int = 0) -> list[dict[str, Any]]:
    """The slots of each loaded model and which are busy, without their contents."""
    state = server_state(request)
    model_id = (await state.models.known(model)).id if model else None
    slots: list[dict[str, Any]] = []
    for loaded in state.pool.loaded:
        if model_id is not None and loaded.id != model_id:
            continue
        assert loaded.runner is not None
        assert loaded.facts is not None
        stats = await asyncio.wait_for(loaded.runner.stats(), 5)
        slots += [
            {"id": slot, "model": loaded.id, "n_ctx": loaded.facts.n_ctx, "is_processing": slot < stats.active}
            for slot in range(loaded.settings.n_parallel)
        ]
    if fail_on_no_slot and slots and all(slot["is_processing"] for slot in slots):
        raise NoSlot
    return slots


class NoSlot(EnvironmentFault):
    """All slots are busy, and the client requested an error in that case."""

    code = "no_slot_available"

    def __init__(self) -> None:
        super().__init__("No slot is free.")


class TokenizeRequest(Body):
    """POST /tokenize. Without `model`: the most recently used. `priority` "side" never uses another server."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    priority: Literal["interactive", "side"] | None = None


class DetokenizeRequest(Body):
    """POST /detokenize. Without `model`: the most recently used one."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 22)]


@router.post("/tokenize", openapi_extra=openapi_body(TokenizeRequest))
@router.post("/v1/tokenize", openapi_extra=openapi_body(TokenizeRequest), include_in_schema=False)
async def tokenize(request: Request) -> Response:
    """Text to token ids."""
    body = await parse(request, TokenizeRequest)
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InputFault("content: the text to tokenize is missing.", "content")
    only = HERE if body.priority == "side" else None
    model = await chosen_model(server_state(request), body.model, only)
    assert model.runner is not None
    assert model.facts is not None
    # By default, llama-server adds no BOS and vLLM does.
    special = body.add_special if body.add_special is not None else body.add_special_tokens
    special = special if special is not None else body.prompt is not None
    tokens = await model.runner.tokenize(text, add_special=special, parse_special=body.parse_special is not False)
    answer: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": model.facts.largest_ctx}
    if body.with_pieces:
        pieces = await model.runner.detokenize(tokens)
        answer["tokens"] = [{"id": t, "piece": _piece(p)} for t, p in zip(tokens, pieces, strict=True)]
    return JSONResponse(answer, headers=ignored_header(body.ignored()))


def _piece(piece: bytes) -> str | list[int]:
    """Text, or the byte values if it is not complete UTF-8."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
@router.post("/v1/detokenize", openapi_extra=openapi_body(DetokenizeRequest), include_in_schema=False)
async def detokenize(request: Request) -> Response:
    """Token ids to text."""
    body = await parse(request, DetokenizeRequest)
    model = await chosen_model(server_state(request), body.model)
    assert model.runner is not None
    text = b"".join(await model.runner.detokenize(body.tokens)).decode("utf-8", "replace")
    return JSONResponse({"content": text, "prompt": text}, headers=ignored_header(body.ignored()))


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
