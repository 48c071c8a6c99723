"""The model that `tessera serve --model` names: loaded while the server still imports its routes."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from devices.errors import TesseraError
from engine.library.types import ModelEntry
from engine.pool.pool import Pool

# Finding and placing a model takes less than a tenth of a second; the server answers soon where it does not.
PLACED_S: Final = 0.5

log = logging.getLogger(__name__)


class FirstModel:
    """Begins at once. `found` raises ModelNotFound or BadModelFile; a load that fails is logged."""

    def __init__(self, pool: Pool, entry: Callable[[str], Awaitable[ModelEntry]], name: str) -> None:
        self._name = name
        self._begun = asyncio.Event()
        self.found = asyncio.ensure_future(entry(name))
        self._load = asyncio.create_task(self._loaded(pool))

    async def _loaded(self, pool: Pool) -> None:
        try:
            await asyncio.shield(self.found)
        except TesseraError:  # who waits for it tells
            return
        try:
            await pool.acquire(self._name, on_progress=lambda _: self._begun.set())
        except TesseraError as error:
            log.error("model=%s is not loaded at the start: %s", self._name, error)  # noqa: TRY400 - as elsewhere

    async def with_runner(self) -> None:
        """Wait until a runner loads it and this process has nothing more to do for it, at most PLACED_S."""
        begun = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait((begun, self._load), timeout=PLACED_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()

    async def end(self) -> None:
        """Wait for nobody: the pool ends what it loads."""
        for task in (self._load, self.found):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, TesseraError):
            await asyncio.gather(self._load, self.found)
