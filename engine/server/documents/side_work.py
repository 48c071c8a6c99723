"""Vectors made beside everything else: they wait while anybody else is served, and give way at once."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.documents.registry import NONE, NotNow
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.loaded_model import LoadedModel
    from engine.server.state import ServerState

# How often it is looked whether somebody wants the processor; a step of the runner takes longer than this.
_LOOK_S: Final = 0.02
# The next turn of a chat comes soon after the last: an answer's end is no pause yet.
_PAUSE_S: Final = 1.0
_CHOICE_S: Final = 10.0


class SideWork:
    """Chooses the embedding model and makes vectors with it. `model` and `embed` are called from threads."""

    def __init__(self, state: "ServerState", loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._loop = loop
        self._closed = threading.Event()
        self._asked = 0
        self._busy_until = 0.0
        self._models: tuple[float, dict[str, tuple[str, ...]]] = (0.0, {})

    def close(self) -> None:
        """Make no more vectors; who waits for some is told."""
        self._closed.set()

    # ------------------------------------------------------------------ choosing

    async def choose(self, wanted: str, capability: str) -> str | None:
        """The model's id: `wanted`, else one that is loaded, else the smallest that can; None: there is none."""
        if wanted == NONE:
            return None
        at, models = self._models
        if time.monotonic() - at > _CHOICE_S:
            entries = await self._state.models.entries()
            usable = [e for e in entries if e.details is not None and e.state == "online"]
            usable.sort(key=lambda e: sum(f.size_bytes for f in e.files))
            models = {e.id: e.details.capabilities for e in usable if e.details is not None}
            self._models = time.monotonic(), models
        if wanted:
            return wanted if wanted in models else None
        able = [model for model, capabilities in models.items() if capability in capabilities]
        loaded = {m.id for m in self._state.pool.loaded}
        return next((m for m in able if m in loaded), able[0] if able else None)

    def model(self, wanted: str) -> str | None:
        """The embedding model of a collection."""
        found: str | None = self._run(self.choose(wanted, "embedding"))
        return found

    # ------------------------------------------------------------------ making

    def embed(self, model: str, texts: Sequence[str]) -> Sequence[Any]:
        """A vector for each text, float32 of (width,). Raises: NotNow."""
        try:
            found: Sequence[Any] = self._run(self._beside(model, texts))
        except EngineError as error:
            raise NotNow(f"{model} cannot embed: {error}") from error
        return found

    async def question(self, model: str, text: str) -> Any:
        """The vector of a question that somebody waits for; side work gives way to it."""
        self._asked += 1
        try:
            return (await self._embedded(model, [text]))[0]
        finally:
            self._asked -= 1

    async def vectors(self, model: str, texts: Sequence[str]) -> Sequence[Any]:
        """Vectors that somebody waits for."""
        self._asked += 1
        try:
            return await self._embedded(model, texts)
        finally:
            self._asked -= 1

    def _run(self, work: Any) -> Any:
        if self._closed.is_set():
            work.close()
            raise NotNow("")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if self._closed.is_set():
                    future.cancel()
                    raise NotNow("") from None

    async def _beside(self, model: str, texts: Sequence[str]) -> Sequence[Any]:
        while not self._closed.is_set():
            if not self._wanted(model):
                task = asyncio.create_task(self._embedded(model, texts))
                while not task.done() and not self._wanted(model):
                    await asyncio.wait((task,), timeout=_LOOK_S)
                if task.done():
                    return task.result()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineError):
                    await task
            await asyncio.sleep(_LOOK_S)
        raise NotNow("")

    def _wanted(self, model: str) -> bool:
        """Somebody else wants the processor, or wanted it a moment ago."""
        others = any(
            m.loading or m.waiting or (m.ready and not m.idle) for m in self._state.pool.known if m.id != model
        )
        now = time.monotonic()
        if others or self._asked:
            self._busy_until = now + (_PAUSE_S if others else 0.0)
        return now < self._busy_until or bool(self._asked)

    async def _embedded(self, model: str, texts: Sequence[str]) -> Sequence[Any]:
        loaded: LoadedModel = await self._state.pool.acquire(model)
        assert loaded.runner is not None
        answer = await loaded.runner.embed(list(texts), truncate=True)
        loaded.last_used = time.monotonic()
        return [np.frombuffer(vector, "<f4") for vector in answer.vectors]
