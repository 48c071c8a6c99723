"""A llama.cpp runner with some layers on workers: opens their tunnels, and ends when one is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from engine.core.errors import RunnerDied
from engine.core.types import GenerationRequest, ModelFacts
from engine.remotes.errors import RemoteFault
from engine.remotes.service import Remotes
from engine.remotes.session import Session
from engine.runner.pipes import BufferLog
from engine.runner.process import RunnerProcess
from engine.runner.protocol import Embedded, LoadSettings, Stats, layer_shares

# A runner whose worker is lost ends before its tunnel does: wait this long for the tunnel's reason.
REASON_S: Final = 1.5


class RemoteRunner:
    """Runner interface for the pool. `notes` describe the current state of its links."""

    def __init__(self, inner: RunnerProcess, remotes: Remotes) -> None:
        self._inner, self._remotes = inner, remotes
        self._sessions: list[Session] = []
        self._watching: list[asyncio.Task[None]] = []
        self._fault: RemoteFault | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id of the runner on this machine."""
        return self._inner.pid

    @property
    def alive(self) -> bool:
        """Whether the runner and all its links are alive."""
        return self._inner.alive and self._fault is None

    @property
    def active_requests(self) -> int:
        """Number of running generations and embeddings."""
        return self._inner.active_requests

    @property
    def died(self) -> RunnerDied | None:
        """Why the runner ended by itself; None after a lost link, which is not the model's fault."""
        return None if self._fault is not None else self._inner.died

    @property
    def buffers(self) -> BufferLog:
        """Memory that its backends allocated."""
        return self._inner.buffers

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions)

    async def load(
        self, settings: LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts:
        """Open the tunnels, then load. Raises: RemoteFault; as a runner."""
        names = list(dict.fromkeys(layers.remote for layers in settings.remotes))
        self._sessions = await self._remotes.open(names)
        self._watching = [asyncio.create_task(self._watch(session)) for session in self._sessions]
        endpoints = tuple(f"127.0.0.1:{session.port}" for session in self._sessions)
        args = msgspec.structs.replace(
            settings.engine_args, rpc=endpoints, tensor_split=layer_shares(settings.remotes)
        )
        try:
            return await self._inner.load(msgspec.structs.replace(settings, engine_args=args), on_progress)
        except RunnerDied as error:
            raise await self._reason(error) from error
        except BaseException:
            self._close()
            raise

    async def _watch(self, session: Session) -> None:
        await session.lost.wait()
        if self._fault is None:
            self._fault = session.fault
            self._inner.kill()
            self._close()

    async def _reason(self, error: RunnerDied) -> Exception:
        """The error to report for a runner's end: the worker's, if that was lost too."""
        waits = [asyncio.create_task(session.lost.wait()) for session in self._sessions]
        if waits and self._fault is None:
            await asyncio.wait(waits, timeout=REASON_S, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        fault = next((s.fault for s in self._sessions if s.fault is not None), self._fault)
        self._fault = fault
        self._close()
        return fault or error

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Any]:
        """Generate as a runner does. Raises: RemoteFault: a link was lost; as a runner."""
        try:
            async with contextlib.aclosing(self._inner.generate(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        except RunnerDied as error:
            raise await self._reason(error) from error

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text."""
        return await self._inner.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, token_ids: list[int]) -> list[bytes]:
        return await self._inner.detokenize(token_ids)

    async def embed(
        self,
        inputs: list[str | list[int]],
        *,
        normalize: bool = True,
        query: str | None = None,
        truncate: bool = False,
        quick: bool = False,
    ) -> Embedded:
        """Embed as a runner does. Raises: as `generate`."""
        try:
            return await self._inner.embed(inputs, normalize=normalize, query=query, truncate=truncate, quick=quick)
        except RunnerDied as error:
            raise await self._reason(error) from error

    async def stats(self) -> Stats:
        return await self._inner.stats()

    async def stop(self) -> None:
        """Stop the runner gracefully, then close its links."""
        await self._inner.stop()
        self._close()
        if self._closing is not None:
            await self._closing

    def kill(self) -> None:
        """Kill the runner and its links at once."""
        self._inner.kill()
        for session in self._sessions:
            session.kill()

    def _close(self) -> None:
        """Close the links once, in the background."""
        if self._closing is None and self._sessions:
            self._closing = asyncio.create_task(self._close_all())

    async def _close_all(self) -> None:
        for task in self._watching:
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(session.close() for session in self._sessions))
