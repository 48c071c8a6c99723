"""Loads the model of `tessera serve --model` while the server still imports its routes."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from devices.errors import TesseraError
from engine.library.types import ModelEntry
from engine.pool.pool import Pool

# Finding and placing a model takes less than 0.1 s. The server does not wait longer than this.
PLACED_S: Final = 0.5

log = logging.getLogger(__name__)


class FirstModel:
    """Starts immediately. `found` raises ModelNotFound or BadModelFile; a failed load is logged."""

    def __init__(self, pool: Pool, entry: Callable[[str], Awaitable[ModelEntry]], name: str) -> None:
        self._name = name
        self._started = asyncio.Event()
        self.found = asyncio.ensure_future(entry(name))
        self._load = asyncio.create_task(self._loaded(pool))

    async def _loaded(self, pool: Pool) -> None:
        try:
            await asyncio.shield(self.found)
        except TesseraError:  # the code that awaits `found` reports it
            return
        try:
            await pool.acquire(self._name, on_progress=lambda _: self._started.set())
        except TesseraError as error:
            log.error("model=%s is not loaded at the start: %s", self._name, error)  # noqa: TRY400 - says all

    async def with_runner(self) -> None:
        """Wait until a runner loads the model and this process is free again, at most PLACED_S."""
        start = asyncio.ensure_future(self._started.wait())
        try:
            await asyncio.wait((start, self._load), timeout=PLACED_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            start.cancel()

    async def end(self) -> None:
        """Cancel without waiting for the load: the pool stops its runner."""
        for task in (self._load, self.found):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, TesseraError):
            await asyncio.gather(self._load, self.found)
