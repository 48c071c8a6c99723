"""Vectors made beside everything else: they wait while anybody else is served, and give way at once."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from devices.errors import TesseraError
from engine.core.errors import fact_of
from engine.documents.collection_config import Definition
from engine.documents.errors import NotAgreed
from engine.documents.registry import NONE, EmbeddingModel, NotNow
from engine.library.embedding_prompts import RetrievalPrompts, retrieval_prompts
from engine.message_catalog.reasons import because
from engine.pool.pool import HERE, Pool
from engine.server.models import ServedModels

if TYPE_CHECKING:
    from engine.pool.loaded_model import LoadedModel

# How often it is looked whether somebody wants the processor; a step of the runner takes longer than this.
_LOOK_S: Final = 0.02
# The next turn of a chat comes soon after the last: an answer's end is no pause yet.
_PAUSE_S: Final = 1.0
_CHOICE_S: Final = 10.0


class _Usable(NamedTuple):
    capabilities: tuple[str, ...]
    prompts: RetrievalPrompts
    server: str


class Chosen(NamedTuple):
    """A model for a collection's text, and the address of the other server that runs it (empty: this machine)."""

    id: str
    server: str = HERE


class SideWork:
    """Chooses the embedding model and makes vectors with it. `model` and `embed` are called from threads."""

    def __init__(self, pool: Pool, models: ServedModels, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._served = models
        self._loop = loop
        self._closed = threading.Event()
        self._asked = 0
        self._busy_until = 0.0
        self._models: tuple[float, dict[str, _Usable]] = (0.0, {})

    def close(self) -> None:
        """Make no more vectors; who waits for some gets an error."""
        self._closed.set()

    # ------------------------------------------------------------------ choosing

    async def choose(self, wanted: str, capability: str, agreed: Mapping[str, str]) -> Chosen | None:
        """`wanted`, else a local model: one that is loaded, else the smallest that can; None: there is none.

        Raises: NotAgreed: `wanted` runs on another server than the one that was agreed to.
        """
        if wanted == NONE:
            return None
        models = await self._usable()
        if wanted:
            found = models.get(wanted)
            if found is not None and found.server and agreed.get(wanted) != found.server:
                raise NotAgreed(wanted, found.server)
            return None if found is None else Chosen(wanted, found.server)
        able = [id_ for id_, usable in models.items() if capability in usable.capabilities and not usable.server]
        loaded = {m.id for m in self._pool.loaded}
        best = next((m for m in able if m in loaded), able[0] if able else None)
        return None if best is None else Chosen(best)

    async def _usable(self) -> dict[str, _Usable]:
        """The models that are there, from small to large."""
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

    def model(self, definition: Definition) -> EmbeddingModel | None:
        """The embedding model of a collection. Raises: NotNow."""
        try:
            found: EmbeddingModel | None = self._run(self._embedding_model(definition))
        except NotAgreed as error:
            raise NotNow(fact_of(error)) from error
        return found

    async def _embedding_model(self, definition: Definition) -> EmbeddingModel | None:
        chosen = await self.choose(definition.embedding_model, "embedding", definition.agreed)
        if chosen is None:
            return None
        return EmbeddingModel(chosen.id, (await self._prompts(chosen.id)).passage, chosen.server)

    async def _prompts(self, model: str) -> RetrievalPrompts:
        usable = (await self._usable()).get(model)
        return usable.prompts if usable is not None else RetrievalPrompts()

    async def floor(self, model: str) -> float:
        """The cosine of unrelated texts by this model."""
        return (await self._prompts(model)).floor

    # ------------------------------------------------------------------ making

    def embed(self, model: EmbeddingModel, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each passage, float32 of (width,). Raises: NotNow."""
        read = [model.passage_prefix + text for text in texts]
        try:
            found: Sequence[Any] = self._run(self._beside(Chosen(model.id, model.server), read))
        except TesseraError as error:
            raise NotNow(because("cannot_embed", model=model.id, why=fact_of(error) or str(error))) from error
        return found

    async def question(self, model: Chosen, text: str) -> Any:
        """The vector of a question that somebody waits for; side work gives way to it."""
        self._asked += 1
        try:
            prompts = await self._prompts(model.id)
            return (await self._embedded(model, [prompts.question + text]))[0]
        finally:
            self._asked -= 1

    async def vectors(self, model: Chosen, texts: Sequence[str]) -> Sequence[Any]:
        """Vectors that somebody waits for, of texts to compare with each other: all are read as passages."""
        self._asked += 1
        try:
            prompts = await self._prompts(model.id)
            return await self._embedded(model, [prompts.passage + text for text in texts])
        finally:
            self._asked -= 1

    def _run(self, work: Any) -> Any:
        if self._closed.is_set():
            work.close()
            raise NotNow
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if self._closed.is_set():
                    future.cancel()
                    raise NotNow from None

    async def _beside(self, model: Chosen, texts: Sequence[str]) -> Sequence[Any]:
        while not self._closed.is_set():
            if not self._wanted(model.id):
                task = asyncio.create_task(self._embedded(model, texts, quick=True))
                while not task.done() and not self._wanted(model.id):
                    await asyncio.wait((task,), timeout=_LOOK_S)
                if task.done():
                    return task.result()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TesseraError):
                    await task
            await asyncio.sleep(_LOOK_S)
        raise NotNow

    def _wanted(self, model: str) -> bool:
        """Somebody else wants the processor, or wanted it a moment ago."""
        others = any(m.loading or m.waiting or (m.ready and not m.idle) for m in self._pool.models if m.id != model)
        now = time.monotonic()
        if others or self._asked:
            self._busy_until = now + (_PAUSE_S if others else 0.0)
        return now < self._busy_until or bool(self._asked)

    async def _embedded(self, model: Chosen, texts: Sequence[str], *, quick: bool = False) -> Sequence[Any]:
        """Their vectors; `quick`: in 8 bits, where that is faster."""
        loaded: LoadedModel = await self._pool.acquire(model.id, only=model.server)
        assert loaded.runner is not None
        answer = await loaded.runner.embed(list(texts), truncate=True, quick=quick)
        loaded.last_used = time.monotonic()
        return [np.frombuffer(vector, "<f4") for vector in answer.vectors]
