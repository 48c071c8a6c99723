"""Starts a runner for the server's first model in advance, while the server itself still starts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from devices.errors import TesseraError
from devices.llama_cpp_versions.folder import chosen_version
from engine.runner.process import RunnerProcess

# The engine of all but a few models.
ENGINE: Final = "llama"
# A runner that is not used for this long is ended to free its memory: the server may have started at login.
UNUSED_S: Final = 60.0

Starter = Callable[[str, str], Awaitable[RunnerProcess]]


class SpareRunner:
    """Holds at most one runner without a model. A pool starts runners with `take`. Use from one event loop."""

    def __init__(self, start: Starter = RunnerProcess.start, unused_s: float = UNUSED_S) -> None:
        self._start = start
        self._unused_s = unused_s
        self._starting: asyncio.Future[RunnerProcess] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._version: str | None = None

    def prepare(self) -> None:
        """Start it in the background. It is only for a server's first load; later loads start their own."""
        self._version = chosen_version()
        self._starting = asyncio.ensure_future(self._start(ENGINE, ""))
        self._starting.add_done_callback(_seen)
        self._timer = asyncio.get_running_loop().call_later(self._unused_s, self.end)

    async def take(self, engine: str, path: str) -> RunnerProcess:
        """Return the waiting runner if it can run this engine and version, else a new one. Raises: RunnerDied."""
        if engine != ENGINE or chosen_version(path) != self._version:  # it has loaded that version's libraries
            self.end()
        spare = self._starting
        if spare is None:
            return await self._start(engine, path)
        try:
            runner = await asyncio.shield(spare)
        except TesseraError:
            runner = None
        if self._starting is not spare:  # another load was faster
            return await self._start(engine, path)
        self._forget()
        return runner if runner is not None and runner.alive else await self._start(engine, path)

    def end(self) -> None:
        """End it, unless it was taken."""
        spare = self._starting
        self._forget()
        if spare is not None:
            spare.add_done_callback(_kill)

    def _forget(self) -> None:
        self._starting = None
        if self._timer is not None:
            self._timer.cancel()


def _seen(spare: "asyncio.Future[RunnerProcess]") -> None:
    """Mark a failed start as seen: the next load starts its own runner and reports its error."""
    if not spare.cancelled():
        spare.exception()


def _kill(spare: "asyncio.Future[RunnerProcess]") -> None:
    """Kill the runner; it has no model and nothing to save."""
    if not spare.cancelled() and spare.exception() is None:
        spare.result().kill()
