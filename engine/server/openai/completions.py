"""POST /v1/completions: text completion."""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.chat.fim import FimGap
from engine.chat.openai_forward import forward_text
from engine.core.errors import InputFault
from engine.core.ownership import new_id
from engine.core.sampling import Chosen, choose, only_explicit
from engine.core.types import Delta, Done, Event, GenerationRequest, ModelFacts, TokenLogprob
from engine.pool.loaded_model import LoadedModel, QueueTicket
from engine.pool.pool import HERE
from engine.server.body import ignored_header, parse
from engine.server.fim import asks_like_an_editor, fim_prompt, fim_request
from engine.server.openai import stream
from engine.server.openai.errors import STREAM_SHAPE
from engine.server.openai.routes import choice_group, claimed
from engine.server.openai.schemas import DEFAULT_MAX_TOKENS, CompletionRequest
from engine.server.openai.translate import output_of
from engine.server.routing import EarlyRouter
from engine.server.sse import EventStream, comment_of, merge, while_connected
from engine.server.state import ServerState, server_state

if TYPE_CHECKING:
    from engine.server.openai.receipts import Claim

router = EarlyRouter()


@router.post("/v1/completions", body=CompletionRequest)
async def completions(request: Request) -> Response:
    """Complete one or several prompts."""
    state = server_state(request)
    body = await parse(request, CompletionRequest)
    headers = ignored_header(body.ignored())
    if body.stream:
        ticket = QueueTicket()
        return EventStream(_stream(state, body, ticket), STREAM_SHAPE, ping=comment_of(ticket), headers=headers)
    answer = await while_connected(request, _complete(state, body))
    return JSONResponse(answer, headers=headers)


def requests_of(body: CompletionRequest, sampling: Chosen) -> list[GenerationRequest]:
    """One generation request per prompt and choice, without output constraints."""
    return [
        GenerationRequest(
            prompt=prompt,
            max_tokens=body.answer_limit,
            sampling=msgspec.structs.replace(sampling.params, seed=body.sampling(choice).get("seed")),
            logprobs=body.logprobs,
            prompt_logprobs=body.scores_prompt,
            cache_prompt=not body.scores_prompt,
            explicit=sampling.explicit,
            choice_of=group,
            **body.common(),
        )
        for prompt, group in ((each, choice_group(body)) for each in body.prompts())
        for choice in range(body.n or 1)
    ]


async def prepared(
    state: ServerState, body: CompletionRequest, ticket: QueueTicket | None = None
) -> tuple[LoadedModel, list[GenerationRequest], Chosen, tuple[str, ...]]:
    """The loaded model of a request, its generation requests, and notes. Raises: as the route."""
    aside = body.priority == "side"
    model = await state.pool.acquire(body.model, ticket=ticket, loads=not aside, only=HERE if aside else None)
    typing = asks_like_an_editor(model.facts, body.prompt)
    values = {"temperature": 0.0, **body.sampling()} if typing else body.sampling()
    sampling = choose(values, state.models.recommended(model.id).plain)
    if model.facts is not None and model.facts.forwards:
        sampling = only_explicit(sampling)
    requests = requests_of(body, sampling)
    if typing and model.facts is not None:
        requests = [_typed(body, r, model.facts) for r in requests]
    output, param = output_of(body)
    notes: tuple[str, ...] = ()
    if output is not None:
        checked, notes = await state.checker.fit(output, param)
        requests = [msgspec.structs.replace(r, constraint=checked) for r in requests]
    if body.suffix:
        requests = [await _filling(model, r, body.suffix) for r in requests]
    return model, requests, sampling, notes


def _typed(body: CompletionRequest, request: GenerationRequest, facts: ModelFacts) -> GenerationRequest:
    """The request of an editor that formats its prompts itself, as at /infill; its stop markers become text."""
    marked = not set(request.stop).isdisjoint(facts.fim.values())
    return msgspec.structs.replace(request, keep_special=marked, repeats=body.seed is not None)


class _Begun(msgspec.Struct, frozen=True):
    """Running generations; `notes` list constraints that are not enforced and fields not sent to another server."""

    model: LoadedModel
    answers: list[AsyncIterator[Event]]
    sampling: Chosen
    claim: "Claim | None"
    notes: tuple[str, ...]


async def _start(state: ServerState, body: CompletionRequest, ticket: QueueTicket | None = None) -> _Begun:
    model, requests, sampling, notes = await prepared(state, body, ticket)
    claim = claimed(state, model, body)
    kind = model.facts.forwards if model.facts is not None else ""
    notes += forward_text(requests[0], kind)[1] if kind else ()
    answers: list[AsyncIterator[Event]] = []
    for request in requests:
        events = state.pool.generate(model, request)
        answers.append(events if claim is None else claim.watch(request, events))
    return _Begun(model, answers, sampling, claim, notes)


async def _filling(model: LoadedModel, request: GenerationRequest, suffix: str) -> GenerationRequest:
    """The request as a fill-in-the-middle gap between its prompt and `suffix`."""
    if not isinstance(request.prompt, str):
        raise InputFault("suffix needs a prompt of text, not of token ids.", "suffix")
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    prompt = await fim_prompt(model, FimGap(prefix=request.prompt, suffix=suffix), limit, may_shorten=False)
    filling = fim_request(prompt, max_tokens=limit, stop=request.stop, sampling=request.sampling)
    changes = {"prompt": filling.prompt, "stop": filling.stop, "keep_special": True, "prompt_logprobs": False}
    return msgspec.structs.replace(request, **changes)


async def _echoes(model: LoadedModel, body: CompletionRequest) -> list[str]:
    """The prompts as text, one per choice, if the client requested them with `echo`."""
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
    started = await _start(state, body)
    model, claim = started.model, started.claim
    texts = await _echoes(model, body)
    offsets = [0 if body.scores_prompt else len(t) for t in texts]
    logprobs: list[list[TokenLogprob]] = [[] for _ in texts]
    ends: dict[int, Done] = {}
    async for index, event in merge(started.answers):
        if isinstance(event, Delta):
            texts[index] += event.text
            logprobs[index] += [*event.prompt_logprobs, *event.logprobs]
        elif isinstance(event, Done):
            ends[index] = event
    also = await claim.report() if claim is not None else None
    per_prompt = body.n or 1
    usages = [ends[i].usage for i in range(len(texts))]
    usage = stream.usage_body(usages)
    usage["prompt_tokens"] = sum(u.prompt_tokens for u in usages[::per_prompt])
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": stream.fingerprint(model),
        "choices": [
            {
                "index": i,
                "text": text,
                "logprobs": _logprobs(logprobs[i], offsets[i], text) if body.logprobs is not None else None,
                "finish_reason": ends[i].finish_reason,
            }
            for i, text in enumerate(texts)
        ],
        **stream.with_report(stream.report(started.notes, ends, started.sampling, also)),
        "usage": usage,
        "timings": stream.timings_body(ends[0]),
    }


def _logprobs(entries: list[TokenLogprob], offset: int, text: str) -> dict[str, Any]:
    """Log probabilities in completion format: parallel lists. Tokens that are not in `text` (BOS) have no width."""
    tokens = [e.piece.decode("utf-8", "replace") for e in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token) if text.startswith(token, offset) else 0
    values = [None if math.isnan(e.logprob) else stream.finite(e.logprob) for e in entries]
    tops: list[dict[str, float | None]]
    tops = [{piece.decode("utf-8", "replace"): stream.finite(v) for _, piece, v in e.top} for e in entries]
    for token, value, top in zip(tokens, values, tops, strict=True):
        top.setdefault(token, value)  # the chosen token is always listed
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": [None if value is None else top for value, top in zip(values, tops, strict=True)],
        "text_offset": offsets,
    }


async def _stream(state: ServerState, body: CompletionRequest, ticket: QueueTicket) -> AsyncGenerator[bytes, None]:
    started = await _start(state, body, ticket)
    model, claim = started.model, started.claim
    echoes = await _echoes(model, body)
    writer = stream.ChunkWriter("text_completion", new_id("cmpl"), body.model, model)
    texts = list(echoes)
    if body.echo and not body.scores_prompt:
        for index, text in enumerate(echoes):
            yield writer.chunk(index, b'"text":' + msgspec.json.encode(text))
    ends: dict[int, Done] = {}
    async for index, event in merge(started.answers):
        if isinstance(event, Delta):
            probabilities, text = None, event.text
            if event.prompt_logprobs:  # with log probabilities, the prompt arrives with the first token
                text = echoes[index] + text
            begin = 0 if event.prompt_logprobs else len(texts[index])
            texts[index] += event.text
            if body.logprobs is not None:
                entries = [*event.prompt_logprobs, *event.logprobs]
                probabilities = _logprobs(entries, begin, texts[index])
            yield writer.chunk(index, b'"text":' + msgspec.json.encode(text), None, probabilities)
        elif isinstance(event, Done):
            ends[index] = event
            also = await claim.report() if claim is not None else None
            report = stream.report(started.notes, {index: event}, started.sampling, also)
            yield writer.chunk(index, b'"text":""', event.finish_reason, extra=report)
    if body.wants_usage:
        yield writer.usage([ends[i].usage for i in sorted(ends)], stream.timings_body(ends[0]))
    yield stream.DONE
