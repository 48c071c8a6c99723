"""The pool's door to the ledger: every load is admitted, measured and, if it crashes, tried another way."""

import asyncio
import logging

from engine.dispatch.placer import Placer
from engine.dispatch.types import Rung
from engine.errors import BadModelFile, EngineError, RunnerDied
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
ENOUGH_TOKENS = 64


class LedgerAdmission:
    """Implements `engine.pool.Admission` over a Placer."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._tried: dict[str, list[LoadSettings]] = {}
        self._audits: set[asyncio.Task[None]] = set()

    async def reserve(self, model_id: str, settings: LoadSettings) -> None:
        """Set memory aside. Raises: NotEnoughMemory, BadModelFile."""
        await asyncio.to_thread(self._placer.admit, model_id, settings)
        self._tried.setdefault(model_id, []).append(settings)

    def attach(self, model_id: str, pid: int) -> None:
        """The model is loaded in this process: audit it, and remember how if the first way had failed."""
        self._placer.started(model_id, pid)
        tried = self._tried.pop(model_id, [])
        task = asyncio.get_running_loop().create_task(self._loaded(model_id, pid, tried))
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    async def _loaded(self, model_id: str, pid: int, tried: list[LoadSettings]) -> None:
        if len(tried) > 1:
            await asyncio.to_thread(self._placer.worked, model_id, tried[0], tried[-1])
        if tried:
            await asyncio.to_thread(self._placer.refine, model_id, tried[-1])
        await asyncio.to_thread(self._placer.loaded, model_id, pid, {})

    def observed(self, model_id: str, tokens: int, decode_s: float) -> None:
        """Learn how fast this machine really decodes; short answers say little."""
        if tokens >= ENOUGH_TOKENS:
            self._placer.observed(model_id, (tokens - 1) / decode_s)

    def release(self, model_id: str) -> None:
        """The model's memory is free again."""
        self._placer.gone(model_id)

    async def retry(self, model_id: str, settings: LoadSettings, error: EngineError) -> Rung | None:
        """What to try after a failed load; None when the file is at fault or nothing is left.

        A file that llama.cpp refuses on the processor is broken; on a GPU the backend may be.
        """
        if not isinstance(error, RunnerDied) and not (isinstance(error, BadModelFile) and settings.devices):
            self._tried.pop(model_id, None)
            return None
        tried = tuple(self._tried.get(model_id, ()))
        rung = await asyncio.to_thread(self._placer.after_failure, model_id, settings, tried)
        if rung is None:
            self._tried.pop(model_id, None)
        return rung
