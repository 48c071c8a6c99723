"""Collection service for the routes: search, pages, and the state of collections."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.api.collections import Collection, PageText, Passage, SearchAnswer, SearchRequest, SentTo
from engine.core.errors import InputFault, fact_of
from engine.core.ownership import is_own_program, may_see
from engine.core.paths import Paths
from engine.documents.collection_config import CollectionConfig
from engine.documents.errors import CollectionUnusable, NoCollection, NoDocument, NotAgreed
from engine.documents.reader_process import ocr_installed
from engine.documents.registry import NONE, Collections, EmbeddingDeferred, EmbeddingModel, OpenCollection
from engine.documents.search import RelevanceEstimate, Ways, evidence, find, spread, widened
from engine.documents.walk import is_there
from engine.library.embedding_prompts import RetrievalPrompts, retrieval_prompts
from engine.message_catalog import sentence
from engine.message_catalog.reasons import because
from engine.pool.pool import HERE, Pool
from engine.server.documents.questions import interleaved, parts_of
from engine.server.models import ServedModels

if TYPE_CHECKING:
    from engine.pool.loaded_model import LoadedModel

# Background embedding: it pauses while other requests run, and cancels its current batch for them.

# Interval of the checks for other requests. A step of the runner takes longer than this.
_LOOK_S: Final = 0.02
# The next message of a chat often follows soon, so background work waits this long after a response.
_PAUSE_S: Final = 1.0
_CHOICE_S: Final = 10.0


class _Usable(NamedTuple):
    capabilities: tuple[str, ...]
    prompts: RetrievalPrompts
    server: str


class Chosen(NamedTuple):
    """A model for a collection's text, and the URL of the other server that runs it ("": this computer)."""

    id: str
    server: str = HERE


class SideWork:
    """Selects the embedding model and computes vectors. `model` and `embed` are called from threads."""

    def __init__(self, pool: Pool, models: ServedModels, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._served = models
        self._loop = loop
        self._closed = threading.Event()
        self._num_requests = 0
        self._busy_until = 0.0
        self._models: tuple[float, dict[str, _Usable]] = (0.0, {})

    def close(self) -> None:
        """Stop computing vectors; waiting callers get an error."""
        self._closed.set()

    # ------------------------------------------------------------------ model selection

    async def choose(
        self, requested: str, capability: str, agreed: Mapping[str, str], used: str = ""
    ) -> Chosen | None:
        """`requested`, else a local model: the `used` one, a loaded one, or the smallest; None if there is none.

        Raises: NotAgreed: `requested` runs on a server that the user did not agree to.
        """
        if requested == NONE:
            return None
        models = await self._usable()
        if requested:
            model = models.get(requested)
            if model is not None and model.server and agreed.get(requested) != model.server:
                raise NotAgreed(requested, model.server)
            return None if model is None else Chosen(requested, model.server)
        able = [id_ for id_, usable in models.items() if capability in usable.capabilities and not usable.server]
        loaded = {m.id for m in self._pool.loaded}
        best = used if used in able else next((m for m in able if m in loaded), able[0] if able else None)
        return None if best is None else Chosen(best)

    async def _usable(self) -> dict[str, _Usable]:
        """The available models, smallest first."""
        at, models = self._models
        if time.monotonic() - at > _CHOICE_S:
            entries = await self._served.entries()
            usable = [e for e in entries if e.details is not None and e.state == "online"]
            usable.sort(key=lambda e: sum(f.size_bytes for f in e.files))
            models = {
                e.id: _Usable(e.details.capabilities, retrieval_prompts(e), self._served.server_of(e.id))
                for e in usable
                if e.details is not None
            }
            self._models = time.monotonic(), models
        return models

    def model(self, definition: CollectionConfig, used: str) -> EmbeddingModel | None:
        """The embedding model of a collection. Raises: EmbeddingDeferred."""
        try:
            model: EmbeddingModel | None = self._run(self._embedding_model(definition, used))
        except NotAgreed as error:
            raise EmbeddingDeferred(fact_of(error)) from error
        return model

    async def _embedding_model(self, definition: CollectionConfig, used: str) -> EmbeddingModel | None:
        chosen = await self.choose(definition.embedding_model, "embedding", definition.agreed, used)
        if chosen is None:
            return None
        return EmbeddingModel(chosen.id, (await self._prompts(chosen.id)).passage, chosen.server)

    async def _prompts(self, model: str) -> RetrievalPrompts:
        usable = (await self._usable()).get(model)
        return usable.prompts if usable is not None else RetrievalPrompts()

    async def floor(self, model: str) -> float:
        """The typical cosine of unrelated texts with this model."""
        return (await self._prompts(model)).floor

    # ------------------------------------------------------------------ embedding

    def embed(self, model: EmbeddingModel, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each passage, float32 of (width,). Raises: EmbeddingDeferred."""
        read = [model.passage_prefix + text for text in texts]
        try:
            vectors: Sequence[Any] = self._run(self._beside(Chosen(model.id, model.server), read))
        except TesseraError as error:
            raise EmbeddingDeferred(
                because("cannot_embed", model=model.id, why=fact_of(error) or str(error))
            ) from error
        return vectors

    async def questions(self, model: Chosen, texts: Sequence[str]) -> Sequence[Any]:
        """The vectors of queries that a client waits for; background work pauses meanwhile."""
        self._num_requests += 1
        try:
            prompts = await self._prompts(model.id)
            return await self._embedded(model, [prompts.question + text for text in texts])
        finally:
            self._num_requests -= 1

    async def vectors(self, model: Chosen, texts: Sequence[str]) -> Sequence[Any]:
        """Vectors that a client waits for, of texts to compare with each other: all are embedded as passages."""
        self._num_requests += 1
        try:
            prompts = await self._prompts(model.id)
            return await self._embedded(model, [prompts.passage + text for text in texts])
        finally:
            self._num_requests -= 1

    def _run(self, work: Any) -> Any:
        if self._closed.is_set():
            work.close()
            raise EmbeddingDeferred
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if self._closed.is_set():
                    future.cancel()
                    raise EmbeddingDeferred from None

    async def _beside(self, model: Chosen, texts: Sequence[str]) -> Sequence[Any]:
        while not self._closed.is_set():
            if not self._is_cpu_needed(model.id):
                task = asyncio.create_task(self._embedded(model, texts, quick=True))
                while not task.done() and not self._is_cpu_needed(model.id):
                    await asyncio.wait((task,), timeout=_LOOK_S)
                if task.done():
                    return task.result()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TesseraError):
                    await task
            await asyncio.sleep(_LOOK_S)
        raise EmbeddingDeferred

    def _is_cpu_needed(self, model: str) -> bool:
        """Whether another request needs the CPU, or needed it just now."""
        others = any(m.loading or m.waiting or (m.ready and not m.idle) for m in self._pool.models if m.id != model)
        now = time.monotonic()
        if others or self._num_requests:
            self._busy_until = now + (_PAUSE_S if others else 0.0)
        return now < self._busy_until or bool(self._num_requests)

    async def _embedded(self, model: Chosen, texts: Sequence[str], *, quick: bool = False) -> Sequence[Any]:
        """The vectors of `texts`; `quick` computes in int8 where that is faster."""
        loaded: LoadedModel = await self._pool.acquire(model.id, only=model.server)
        assert loaded.runner is not None
        answer = await loaded.runner.embed(list(texts), truncate=True, quick=quick)
        loaded.last_used = time.monotonic()
        return [np.frombuffer(vector, "<f4") for vector in answer.vectors]


T = TypeVar("T")
log = logging.getLogger(__name__)
# A reranker reads each candidate with the question, which takes about 10 ms on a CPU of 2020.
_RERANKED: Final = 20
# A search waits this long for the reranker and then keeps the order of the unread hits: the model may be large or
# not loaded yet, or the computer busy. The next search finds the model loaded.
_RERANK_S: Final = 4.0
# Candidates that are read at once, the best first.
_AT_ONCE: Final = 4
# Separator between the passages in a page's text.
BREAK: Final = "\n\n"


class CollectionService:
    """One per server, opened at the first use of collections. Call all methods from the event loop."""

    def __init__(self, paths: Paths, pool: Pool, models: ServedModels, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._models = models
        self.side_work = SideWork(pool, models, loop)
        self.collections = Collections(paths, self.side_work)

    def start(self) -> None:
        """Update all collections and start watching their files."""
        self.collections.start()

    def close(self) -> None:
        """Stop all work on collections. Blocks until the threads have ended."""
        self.side_work.close()
        self.collections.close()

    # ------------------------------------------------------------------ access control

    def allowed(self, key: str) -> OpenCollection:
        """A collection that the current request may query.

        Raises: NoCollection, also if it lacks access; only the user's own programs get the names of the others.
        """
        try:
            live = self.collections.live(key)
        except NoCollection:
            if is_own_program.get():
                raise
            raise NoCollection(key) from None
        shared = live.definition.open and may_see(live.definition.owner)
        if not shared and not is_own_program.get():
            raise NoCollection(key)
        return live

    # ------------------------------------------------------------------ consent for remote models

    def agreement(self, definition: CollectionConfig, *, allows: bool) -> CollectionConfig:
        """The definition with the servers that its text may be sent to.

        Raises: NotAgreed: a model runs on a server that the user has not agreed to, neither before nor with
        `allows`.
        """
        away = self._away(definition)
        if not allows and (strange := self._strange(definition)):
            raise NotAgreed(*strange[0])
        return replace(definition, agreed=away)

    def _away(self, definition: CollectionConfig) -> dict[str, str]:
        """The collection's models that other servers run, with their URLs."""
        model_ids = dict.fromkeys((definition.embedding_model, definition.reranker))
        servers = {model: self._models.server_of(model) for model in model_ids if model not in ("", NONE)}
        return {model: server for model, server in servers.items() if server}

    def _strange(self, definition: CollectionConfig) -> list[tuple[str, str]]:
        """The remote models that the user has not agreed to."""
        return [(m, server) for m, server in self._away(definition).items() if definition.agreed.get(m) != server]

    # ------------------------------------------------------------------ search

    async def search(self, live: OpenCollection, request: SearchRequest) -> SearchAnswer:
        began = time.monotonic()
        live.asked_at = began
        # open the index of an idle collection in a thread
        await asyncio.to_thread(live.store.fact, "embedding_model")
        notes: list[str] = []
        questions = (request.query, *parts_of(request.query))
        vectors: list[Any] = [None]
        if request.ways != "words":
            vectors = await self.question_vectors(live, questions, notes)
        vector = vectors[0]
        if request.ways == "meaning" and vector is None:
            raise InputFault(f"ways: {notes[0]}", "ways")
        reranker = await self._reranker(live.definition, notes)
        used: Ways = "words" if vector is None else request.ways
        floor = await self.side_work.floor(live.store.fact("embedding_model"))
        queries = list(zip_longest(questions, vectors))
        limit = max(request.limit, _RERANKED)
        hits, estimate = await asyncio.to_thread(_look, live, queries, used, limit, floor)
        reranked_by = ""
        if reranker:
            try:
                ranked = await self._reranked(reranker, request.query, hits[:limit])
                most = min(limit, len(hits))
                if len(ranked) < most:
                    notes.append(
                        f"{reranker.id} read {len(ranked)} of {most} passages in {_RERANK_S:g} s; "
                        "the others are not reranked"
                    )
                if ranked:
                    hits, reranked_by = spread([*ranked, *hits[len(ranked) :]]), reranker.id
            except TesseraError as error:
                notes.append(f"{reranker.id} could not rerank: {error}")
        passages = await asyncio.to_thread(self._passages, live, hits, request.limit)
        counts = await asyncio.to_thread(live.store.counts)
        if self.collections.is_reading(live):
            notes.append(sentence(because("reading_now", done=live.progress.done, files=live.progress.files)))
        if vector is not None and counts.embedded < counts.chunks:
            notes.append(f"{counts.chunks - counts.embedded} of {counts.chunks} passages have no vector yet")
        return SearchAnswer(
            passages=passages,
            found=estimate.found,
            coverage=estimate.coverage,
            cosine=estimate.cosine,
            ways=used,
            reranked_by=reranked_by,
            seconds=round(time.monotonic() - began, 4),
            notes=tuple(notes),
        )

    async def beginnings(self, live: OpenCollection, limit: int) -> tuple[Passage, ...]:
        """The first passages of the first documents, as a description of them if no word of a query matches."""
        return await asyncio.to_thread(lambda: self._passages(live, live.store.first_chunks(limit), limit))

    async def question_vectors(self, live: OpenCollection, questions: Sequence[str], notes: list[str]) -> list[Any]:
        """The unit vectors of queries by the collection's embedding model; [None] and a note if there is none."""
        model = live.store.fact("embedding_model")
        if live.definition.embedding_model == NONE or not model:
            notes.append(sentence(live.embedding_problem or because("nothing_embedded")))
            return [None]
        try:
            vectors = await self.side_work.questions(self.maker(live), questions)
        except TesseraError as error:
            notes.append(sentence(because("cannot_embed_question", model=model, why=str(error))))
            live.pending = True  # if the model was removed, another one embeds all passages
            return [None]
        return [vector / (np.linalg.norm(vector) or 1.0) for vector in vectors]

    @staticmethod
    def maker(live: OpenCollection) -> Chosen:
        """The collection's embedding model, with the server that the user agreed to if it is remote."""
        model = live.store.fact("embedding_model")
        return Chosen(model, live.definition.agreed.get(model, HERE))

    async def _reranker(self, definition: CollectionConfig, notes: list[str]) -> Chosen | None:
        try:
            chosen = await self.side_work.choose(definition.reranker, "rerank", definition.agreed)
        except NotAgreed as error:
            notes.append(str(error))
            return None
        if chosen is None and definition.reranker not in ("", NONE):
            notes.append(f"{definition.reranker} is not available, so the passages are not reranked")
        return chosen

    async def _reranked(self, model: Chosen, question: str, hits: list[Passage]) -> list[Passage]:
        """The first hits that the reranker read in time, in its order."""
        late = time.monotonic() + _RERANK_S
        ranked: list[Passage] = []
        loaded = await _in_time(self._pool.acquire(model.id, only=model.server), _RERANK_S)
        if loaded is None:
            return ranked
        assert loaded.runner is not None
        for at in range(0, len(hits), _AT_ONCE):
            some = hits[at : at + _AT_ONCE]
            texts: list[str | list[int]] = [f"{hit.heading}\n{hit.text}" for hit in some]
            try:
                async with asyncio.timeout(late - time.monotonic()):  # ends the work, too
                    answer = await loaded.runner.embed(texts, query=question, truncate=True)
            except TimeoutError:
                break
            scores = (float(np.frombuffer(row, "<f4")[0]) for row in answer.vectors)
            ranked += (replace(hit, relevance=score) for hit, score in zip(some, scores, strict=True))
        return sorted(ranked, key=lambda hit: -(hit.relevance or 0.0))

    def _passages(self, live: OpenCollection, hits: list[Passage], limit: int) -> tuple[Passage, ...]:
        """The first `limit` hits with their neighbours on the page, each text once."""
        used_ids: set[int] = set()
        passages: list[Passage] = []
        for hit in hits:
            page = live.store.chunks_of(hit.document, hit.page)
            if len(passages) == limit:
                break
            if hit.id in used_ids or all(chunk.id != hit.id for chunk in page):
                continue
            chunks = widened(page, hit.id, used_ids)
            used_ids.update(chunk.id for chunk in chunks)
            text = BREAK.join(chunk.text for chunk in chunks)
            start, _ = _spans(page)[chunks[0].id]
            cosine = None if hit.cosine is None else round(hit.cosine, 4)
            place = {"start": start, "end": start + len(text), "line": chunks[0].line, "text": text}
            passages.append(replace(hit, **place, score=round(hit.score, 6), cosine=cosine))
        return tuple(passages)

    # ------------------------------------------------------------------ display

    def page(self, live: OpenCollection, document: int, number: int, passage: int | None) -> PageText:
        """A page's text with the position of a passage. Raises: NoDocument."""
        row = live.store.document(document)
        pages = {page: (label, problem) for page, label, problem in live.store.pages(document)} if row else {}
        if row is None or number not in pages:
            raise NoDocument(f"{live.definition.name} has no page {number} of document {document}.", "page")
        chunks = live.store.chunks_of(document, number)
        start, end = _spans(chunks).get(passage or 0, (0, 0))
        label, problem = pages[number]
        return PageText(
            path=row.path,
            title=row.title,
            number=number,
            label=label,
            text=BREAK.join(chunk.text for chunk in chunks),
            problem=problem,
            start=start,
            end=end,
            num_pages=row.pages,
        )

    def all_shown(self) -> tuple[Collection, ...]:
        """All collections whose index can be opened."""
        collections = []
        for live in self.collections.all():
            with contextlib.suppress(CollectionUnusable):  # it may be removed meanwhile
                collections.append(self.shown(live))
        return tuple(collections)

    def shown(self, live: OpenCollection) -> Collection:
        definition, counts, progress = live.definition, live.store.counts(), live.progress
        problems = [because("not_there", path=source) for source in definition.sources if not is_there(source)]
        problems += [because("remote_not_agreed", model=m, server=s) for m, s in self._strange(definition)]
        problems += [live.unseen] if live.unseen else []
        missing = counts.chunks - counts.embedded
        if missing and live.embedding_problem and live.embedding_problem not in problems:
            problems.append(live.embedding_problem)
        if definition.follow and self.collections.follower.problem:
            problems.append(self.collections.follower.problem)
        embeds = missing and definition.embedding_model != NONE and not live.embedding_problem
        state = "reading" if self.collections.is_reading(live) else "embedding" if embeds else "ready"
        return msgspec.convert(
            {
                **{
                    n: getattr(definition, n)
                    for n in CollectionConfig.__struct_fields__
                    if n not in ("facts", "agreed")
                },
                **asdict(counts),
                "state": state,
                "ocr_installed": ocr_installed(),
                "files": progress.files,
                "files_done": progress.done,
                "current": progress.current,
                "index_bytes": live.store.size_bytes(),
                "embedded_by": live.store.fact("embedding_model") if counts.embedded else "",
                "sent_to": [SentTo(model=model, server=server) for model, server in definition.agreed.items()],
                "problem_details": tuple(problems),
            },
            learned(Collection),
        )


_late: set[asyncio.Future[Any]] = set()


async def _in_time(work: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """The result of `work` if it ends within `seconds`, else None. It continues then, so a load is not lost."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return task.result()
    _late.add(task)
    task.add_done_callback(_ended_late)
    return None


def _ended_late(task: asyncio.Future[Any]) -> None:
    _late.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.info("a reranker that was too late failed: %s", task.exception())


def _look(
    live: OpenCollection, parts: Sequence[tuple[str, Any | None]], ways: Ways, limit: int, floor: float
) -> tuple[list[Passage], RelevanceEstimate]:
    """The hits of a question and of its parts in alternation; `parts` is the question, then the parts."""
    rankings = [spread(find(live.store, live.vectors, text, vector, ways, limit, floor)) for text, vector in parts]
    estimate = evidence(live.store, parts[0][0], rankings[0])
    return spread(interleaved(rankings, lambda hit: hit.id)), estimate


def _spans(chunks: Sequence[Passage]) -> dict[int, tuple[int, int]]:
    """Start and end of each passage in the page's text."""
    spans, at = {}, 0
    for chunk in chunks:
        spans[chunk.id] = at, at + len(chunk.text)
        at += len(chunk.text) + len(BREAK)
    return spans
