"""POST /v1/chat/completions."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.chat.chat_pipeline import AnswerFinished, AnswerLogprobs, ChatEvent, PreparedChat, read
from engine.chat.types import ChatTemplate, ReasoningDelta, TextDelta
from engine.core.ownership import new_id
from engine.core.types import PromptProgress, Timings, TokenLogprob, Usage
from engine.pool.loaded_model import LoadedModel, QueueTicket
from engine.pool.pool import HERE
from engine.server.body import ignored_header, parse
from engine.server.models import LATEST
from engine.server.openai import stream
from engine.server.openai.errors import STREAM_SHAPE
from engine.server.openai.schemas import ChatRequest, CompletionRequest
from engine.server.openai.translate import to_query, with_preset
from engine.server.routing import EarlyRouter
from engine.server.sse import EventStream, comment_of, merge, while_connected
from engine.server.state import ServerState, server_state

if TYPE_CHECKING:
    from engine.server.documents.rag import AugmentedQuery, CollectionQuery
    from engine.server.openai.receipts import Claim

# Interval of load progress events for clients that requested them.
PROGRESS_S: Final = 0.25

router = EarlyRouter()


@router.post("/v1/chat/completions", body=ChatRequest)
async def chat_completions(request: Request) -> Response:
    """Chat completion."""
    state = server_state(request)
    body = await parse(request, ChatRequest)
    body.refuse_impossible()
    headers = ignored_header(body.ignored())
    rag = await _collection_query(request, body)
    if body.stream:
        ticket = QueueTicket()
        return EventStream(
            _stream(state, body, ticket, rag), STREAM_SHAPE, ping=comment_of(ticket), headers=headers
        )
    answer = await while_connected(request, _complete(state, body, rag))
    return JSONResponse(answer, headers=headers)


async def _collection_query(request: Request, body: ChatRequest) -> "CollectionQuery | None":
    """The collection that the request names. Raises: NoCollection."""
    if body.collection is None:
        return None
    from engine.server.documents.rag import CollectionQuery

    service = await server_state(request).collection_service()
    if isinstance(body.collection, str):
        return CollectionQuery(service, await asyncio.to_thread(service.allowed, body.collection))
    collection = body.collection
    live = await asyncio.to_thread(service.allowed, collection.id)
    return CollectionQuery(service, live, collection.mode, collection.passages, only=collection.only)


async def prepared(
    state: ServerState, body: ChatRequest, ticket: QueueTicket | None = None, rag: "CollectionQuery | None" = None
) -> tuple[LoadedModel, PreparedChat, "AugmentedQuery | None"]:
    """The loaded model of a request, and the prepared conversation. Raises: as the route."""
    preset = state.models.user_settings.preset(body.model.removesuffix(LATEST))
    query = with_preset(to_query(body), preset)
    aside = body.priority == "side"
    model = await state.pool.acquire(body.model, ticket=ticket, loads=not aside, only=HERE if aside else None)
    assert model.facts is not None
    grounded = None if rag is None else await rag.ground(model, query)
    query = query if grounded is None else grounded.query
    chat = await state.conversations.prepare(model.facts, query, state.models.recommended(model.id))
    return model, chat, grounded


class _Started(NamedTuple):
    """A running request: the event streams of its choices, and the data for its report."""

    model: LoadedModel
    chat: PreparedChat
    answers: list[AsyncIterator[ChatEvent]]
    grounded: "AugmentedQuery | None"
    claim: "Claim | None"

    async def report(self, ends: dict[int, AnswerFinished]) -> dict[str, Any]:
        """Tessera's report fields for these choices."""
        also = await self.claim.report() if self.claim is not None else None
        return stream.report((*self.chat.notes, *self.model.notes), ends, self.chat.sampling, also)


async def _start(
    state: ServerState, body: ChatRequest, ticket: QueueTicket | None = None, rag: "CollectionQuery | None" = None
) -> _Started:
    model, chat, grounded = await prepared(state, body, ticket, rag)
    claim = claimed(state, model, body, chat.template)
    answers: list[AsyncIterator[ChatEvent]] = []
    if grounded is not None and grounded.refusal:
        return _Started(model, chat, [_refused(grounded.refusal) for _ in range(body.n or 1)], grounded, claim)
    group = choice_group(body)
    for choice in range(body.n or 1):
        progress = bool(body.return_progress and body.stream)
        seeded = msgspec.structs.replace(chat.request.sampling, seed=body.sampling(choice).get("seed"))
        request = msgspec.structs.replace(chat.request, sampling=seeded, progress=progress, choice_of=group)
        events = state.pool.generate(model, request)
        answers.append(read(chat.answer(), events if claim is None else claim.watch(request, events)))
    return _Started(model, chat, answers, grounded, claim)


async def _refused(text: str) -> AsyncIterator[ChatEvent]:
    """An answer that no model gives."""
    yield TextDelta(text=text)
    yield AnswerFinished(finish_reason="stop", usage=Usage(), timings=Timings())


def choice_group(body: ChatRequest | CompletionRequest) -> str:
    """A new name for the choices of one prompt; empty if there is only one."""
    return new_id("choices") if (body.n or 1) > 1 else ""


def claimed(
    state: ServerState,
    model: LoadedModel,
    body: ChatRequest | CompletionRequest,
    template: ChatTemplate | None = None,
) -> "Claim | None":
    """The reproducibility tracker of a deterministic request. Raises: InputFault: a receipt is not possible."""
    if not body.deterministic and not body.receipt:
        return None
    from engine.server.openai.receipts import Claim

    return Claim(state, model, body, template)


async def _complete(state: ServerState, body: ChatRequest, rag: "CollectionQuery | None" = None) -> dict[str, Any]:
    started = await _start(state, body, rag=rag)
    model, _, answers, grounded, _ = started
    choices = [stream.ChoiceBuilder(body.custom_names()) for _ in answers]
    async for index, event in merge(answers):
        if body.shows_reasoning or not isinstance(event, ReasoningDelta):
            choices[index].take(event)
    ends = [choice.end for choice in choices if choice.end is not None]
    whole = {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": stream.fingerprint(model),
        "choices": [choice.body(i, logprobs=bool(body.logprobs)) for i, choice in enumerate(choices)],
        "usage": stream.usage_body([end.usage for end in ends]),
        "timings": stream.timings_body(ends[0]),
    }
    report = await started.report(dict(enumerate(ends)))
    if grounded is not None:
        report |= await grounded.checked(choices[0].text)
    return whole | stream.with_report(report)


async def _loading(
    starting: asyncio.Future[Any], ticket: QueueTicket, writer: stream.ChunkWriter, greeted: set[int]
) -> AsyncGenerator[bytes, None]:
    """Yields load progress until `starting` is done; closing it early cancels `starting`."""
    loading = False
    try:
        while not starting.done():
            await asyncio.wait((starting,), timeout=PROGRESS_S)
            if ticket.loading:
                loading = True
                yield writer.load_progress(ticket)
    except BaseException:
        starting.cancel()
        raise
    # send the role as soon as the load ends, before the prompt's first step is done
    if loading and starting.exception() is None:
        greeted.add(0)
        yield writer.chunk(0, stream.ROLE_DELTA)


async def _stream(  # noqa: C901, PLR0912 - one branch per kind of event
    state: ServerState, body: ChatRequest, ticket: QueueTicket, rag: "CollectionQuery | None" = None
) -> AsyncGenerator[bytes, None]:
    writer = stream.ChunkWriter("chat.completion.chunk", new_id("chatcmpl"), body.model)
    starting = asyncio.ensure_future(_start(state, body, ticket, rag))
    greeted: set[int] = set()
    if body.return_progress:
        async with aclosing(_loading(starting, ticket, writer, greeted)) as waiting:
            async for chunk in waiting:
                yield chunk
    started = await starting
    model, _, answers, grounded, _ = started
    writer.runs(model)
    if grounded is not None:
        yield writer.chunk(0, stream.EMPTY_DELTA, extra=grounded.report())
    texts: list[str] = []
    ends: dict[int, AnswerFinished] = {}
    custom = [stream.CustomCalls(body.custom_names()) for _ in answers]
    pending: dict[int, list[TokenLogprob]] = {}
    async for index, event in merge(answers):
        if isinstance(event, TextDelta):
            if grounded is not None and index == 0:
                texts.append(event.text)
            if index in greeted and index not in pending and not body.logprobs:
                yield writer.text(index, event.text)
                continue
        if isinstance(event, PromptProgress):
            yield writer.prefill_progress(event)
            continue
        if index not in greeted:
            greeted.add(index)
            yield writer.chunk(index, stream.ROLE_DELTA)
        if isinstance(event, ReasoningDelta) and not body.shows_reasoning:
            continue
        inners = custom[index].deltas(event)
        for inner in inners or ():
            yield writer.chunk(index, inner)
        if isinstance(event, AnswerLogprobs):
            pending.setdefault(index, []).extend(event.entries)
        elif isinstance(event, AnswerFinished):
            ends[index] = event
            if entries := pending.pop(index, None):
                yield writer.chunk(index, stream.EMPTY_DELTA, None, stream.chat_logprobs(entries))
            report = await started.report({index: event})
            if grounded is not None and index == 0:
                report |= await grounded.checked("".join(texts))
            yield writer.chunk(index, stream.EMPTY_DELTA, event.finish_reason, extra=report)
        elif inners is None:
            inner = stream.chat_delta(event)
            if inner:
                entries = pending.pop(index, [])
                yield writer.chunk(index, inner, None, stream.chat_logprobs(entries) if body.logprobs else None)
    if body.wants_usage:
        yield writer.usage([ends[i].usage for i in sorted(ends)], stream.timings_body(ends[0]))
    yield stream.DONE
