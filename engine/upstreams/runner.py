"""Presents a model of an upstream as a runner, so that the pool can use it like a local one."""

import struct
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from engine.chat.chat_pipeline import AnswerLogprobs
from engine.chat.openai_forward import ForwardedChat, forward_text, server_kind
from engine.chat.types import AnswerEvent, TextDelta
from engine.core.errors import InputFault, RunnerDied
from engine.core.types import Delta, Done, Event, GenerationRequest, ModelFacts, Started, Timings, Usage
from engine.message_catalog import sentence
from engine.message_catalog.reasons import because
from engine.runner.pipes import BufferLog
from engine.runner.protocol import Embedded, LoadSettings, Stats
from engine.upstreams.error_mapping import refusal
from engine.upstreams.errors import UpstreamFault, UpstreamRefusesKey, UpstreamUnreachable
from engine.upstreams.link import OK, UpstreamLink, encode
from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.stream import ChatReader
from engine.upstreams.types import ASSUMED_CONTEXT, Health, UpstreamModel

# Parts of another server's response.
Piece = Event | AnswerEvent | AnswerLogprobs


class UpstreamRunner:
    """The runner interface of the pool and the routes, over the network."""

    def __init__(self, link: UpstreamLink, model: str, registry: UpstreamRegistry) -> None:
        self._link, self._model, self._registry = link, model, registry
        self._stopped = False
        self._generated = 0
        self.active_requests = 0
        self.buffers = BufferLog()
        self.facts: ModelFacts | None = None

    @property
    def pid(self) -> int | None:
        """None: there is no local process."""
        return None

    @property
    def died(self) -> RunnerDied | None:
        """None: the end of another server shows only on a request."""
        return None

    @property
    def alive(self) -> bool:
        """Whether requests can be sent and the address is unchanged; only a request shows whether it replies."""
        return not self._stopped and self._link.upstream in self._registry.saved.upstreams

    async def load(
        self, settings: LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts:
        """Check that the upstream is there and has the model. Raises: UpstreamFault, InputFault."""
        del on_progress
        name, url = self._link.upstream.name, self._link.upstream.url
        health = await self._link.look()
        if health.state == "refused":
            raise UpstreamRefusesKey(name, sentence(health.reason))
        if health.state == "unreachable":
            raise UpstreamUnreachable(name, url, health.reason)
        if health.state != "ok":
            raise UpstreamFault(name, because("upstream_not_well", upstream=name, url=url, why=health.reason))
        listed = self._registry.model(name, self._model)
        if listed is None and health.models:
            there = tuple(m.name for m in health.models[:8])
            raise InputFault(because("upstream_no_model", upstream=name, model=self._model, there=there), "model")
        self.facts = facts_of(listed or UpstreamModel(name=self._model), health.kind, settings)
        return self.facts

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Stream the response; leaving early disconnects, and the upstream stops. Raises: as `refusal`."""
        chat = isinstance(request, ForwardedChat)
        kind = self.facts.forwards if self.facts is not None else ""
        body = _chat_body(request) if isinstance(request, ForwardedChat) else forward_text(request, kind)[0]
        body |= {"model": self._model, "stream": True}
        if server_kind(kind).streams_usage:
            body["stream_options"] = {"include_usage": True}
        salted = server_kind(kind).is_salted
        if request.owner and salted:
            body["cache_salt"] = request.owner
        reader = ChatReader(self._link.upstream.name)
        clock = _Clock()
        self.active_requests += 1
        try:
            path = "/v1/chat/completions" if chat else "/v1/completions"
            client, headers = self._link.client, await self._link.headers()
            async with client.request("POST", path, encode(body), headers) as answer:
                if answer.status != OK:
                    raise refusal(self._link.upstream.name, answer.status, await answer.read(), self._model)
                yield Started(prompt_tokens=0, cached_tokens=0)
                async with aclosing(answer.chunks()) as chunks:
                    async for chunk in chunks:
                        for event in reader.feed(chunk):
                            clock.tick()
                            yield event if chat else _plain(event)
                        if reader.fault is not None:
                            raise reader.fault
                for event in reader.end():
                    yield event
        except UpstreamUnreachable as error:
            self._stopped = True  # the next request checks again, and may take another route
            self._registry.saw(error.upstream, Health(state="unreachable", at=time.time(), reason=error.reason))
            raise
        finally:
            self.active_requests -= 1
        usage = reader.usage if reader.usage.completion_tokens else Usage(completion_tokens=reader.chunks)
        if request.owner and not salted:  # all of Tessera's requests share one cache there
            usage = msgspec.structs.replace(usage, cached_tokens=0)
        self._generated += usage.completion_tokens
        yield Done(finish_reason=reader.finish_reason or "stop", usage=usage, timings=clock.timings())

    async def count(self, request: ForwardedChat) -> int:
        """Tokens of a conversation. Raises: InputFault: this kind of server does not count."""
        if self.facts is not None and self.facts.forwards == "tessera":
            body = {"model": self._model, "messages": request.body["messages"]}
            answer = await self._link.post("/v1/messages/count_tokens", body)
            return int(answer["input_tokens"])
        chat = {"messages": request.body["messages"]}
        if self.facts is not None and server_kind(self.facts.forwards).counts_rendered:
            rendered = await self._link.post("/apply-template", {"model": self._model, **chat})
            chat = {"content": str(rendered["prompt"]), "add_special": True}
        return len(await self._tokens(chat))

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text, by the upstream's tokenizer. Raises: InputFault: it does not return them."""
        del parse_special
        return await self._tokens(
            {"content": text, "prompt": text, "add_special": add_special, "add_special_tokens": add_special}
        )

    async def _tokens(self, content: dict[str, Any]) -> list[int]:
        if self.facts is None or not server_kind(self.facts.forwards).counts_tokens:
            raise InputFault(f"{self._link.upstream.name} does not tell how it counts tokens.", "model")
        answer = await self._link.post("/tokenize", {"model": self._model, **content})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        return [t for t in tokens if isinstance(t, int)] if isinstance(tokens, list) else []

    async def detokenize(self, token_ids: list[int]) -> list[bytes]:
        """Not available for another server's tokens. Raises: InputFault."""
        del token_ids
        raise InputFault(f"{self._link.upstream.name} does not tell the text of single tokens.", "tokens")

    async def embed(
        self,
        inputs: list[str | list[int]],
        *,
        normalize: bool = True,
        query: str | None = None,
        truncate: bool = False,
        quick: bool = False,
    ) -> Embedded:
        """Embeddings, or scores for `query`. Raises: as `refusal`."""
        del normalize, truncate, quick
        self.active_requests += 1
        try:
            if query is not None:
                body: dict[str, Any] = {"model": self._model, "query": query, "documents": inputs}
                answer = await self._link.post("/v1/rerank", body)
                rows = [[float(r["relevance_score"])] for r in sorted(answer["results"], key=lambda r: r["index"])]
            else:
                body = {"model": self._model, "input": inputs, "encoding_format": "float"}
                answer = await self._link.post("/v1/embeddings", body)
                rows = [r["embedding"] for r in sorted(answer["data"], key=lambda r: r["index"])]
        finally:
            self.active_requests -= 1
        vectors = [struct.pack(f"<{len(row)}f", *row) for row in rows]
        counted = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        shares = [counted] + [0] * (len(inputs) - 1)
        return Embedded(id=0, width=len(rows[0]) if rows else 0, vectors=vectors, token_counts=shares)

    async def stats(self) -> Stats:
        """Counters of the requests sent from here."""
        generated = self._generated
        return Stats(id=0, steps=generated, generated_tokens=generated, active=self.active_requests)

    async def stop(self) -> None:
        """Stop sending requests to it."""
        self._stopped = True

    def kill(self) -> None:
        """Stop sending requests to it; never waits."""
        self._stopped = True


class _Clock:
    """Times of one response as observed here."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._first = self._last = 0.0

    def tick(self) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last

    def timings(self) -> Timings:
        ttft = self._first - self._started_at if self._first else 0.0
        return Timings(prefill_s=ttft, ttft_s=ttft, decode_s=self._last - self._first)


def _plain(event: AnswerEvent | AnswerLogprobs) -> Event | AnswerEvent | AnswerLogprobs:
    return Delta(text=event.text) if isinstance(event, TextDelta) else event


def _chat_body(request: ForwardedChat) -> dict[str, Any]:
    body = dict(request.body)
    if request.sampling.seed is not None:
        body["seed"] = request.sampling.seed
    return body


def facts_of(listed: UpstreamModel, kind: str, settings: LoadSettings) -> ModelFacts:
    """Known facts about a model that a server of this kind runs."""
    n_ctx = listed.n_ctx or max(settings.n_ctx, ASSUMED_CONTEXT)
    return ModelFacts(
        architecture="remote",
        description=f"{listed.name} ({kind})",
        n_params=0,
        size_bytes=0,
        n_vocab=0,
        n_ctx=n_ctx,
        n_ctx_train=n_ctx,
        n_parallel=1,
        n_embd=0,
        chat_template=None,
        bos="",
        eos="",
        add_bos=False,
        fim={},
        metadata={},
        capabilities=listed.capabilities,
        backend="remote",
        forwards=kind,
    )
