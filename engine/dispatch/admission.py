"""The pool's door to the ledger: every load is admitted, measured and, if it crashes, tried another way."""

import asyncio
import logging

import msgspec

from engine.dispatch.placer import Placer
from engine.dispatch.types import Rung
from engine.errors import BadModelFile, EngineError, RunnerDied, SelfCheckFailed
from engine.runner.buffers import BufferLog
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
ENOUGH_TOKENS = 64


class LedgerAdmission:
    """Implements `engine.admission.Admission` over a Placer."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._reserved: dict[str, LoadSettings] = {}
        # Settings that failed, first to last, and then those that are tried now; until a token was generated.
        self._ladders: dict[str, list[LoadSettings]] = {}
        self._audits: set[asyncio.Task[None]] = set()

    async def reserve(self, model_id: str, settings: LoadSettings) -> None:
        """Set memory aside. Raises: NotEnoughMemory, BadModelFile."""
        await asyncio.to_thread(self._placer.admit, model_id, settings)
        self._reserved[model_id] = settings

    def attach(self, model_id: str, pid: int, buffers: BufferLog) -> None:
        """The model is loaded in this process: audit it, and remember how if the first way had failed."""
        self._placer.started(model_id, pid)
        tried = self._ladders.get(model_id)
        if tried:  # a write of a kilobyte, at once: the next crash may come before any task runs
            self._placer.worked(model_id, tried[0], tried[-1])
        task = asyncio.get_running_loop().create_task(
            self._loaded(model_id, pid, buffers, self._reserved.get(model_id))
        )
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    async def _loaded(self, model_id: str, pid: int, buffers: BufferLog, settings: LoadSettings | None) -> None:
        if settings is not None:
            await asyncio.to_thread(self._placer.refine, model_id, settings)
        await asyncio.to_thread(self._placer.loaded, model_id, pid, buffers.bytes())

    def proven(self, model_id: str) -> None:
        """What is remembered of the ladder stays as it is: these settings also generate."""
        self._ladders.pop(model_id, None)

    def observed(self, model_id: str, tokens: int, decode_s: float) -> None:
        """Learn how fast this machine really decodes; short answers say little."""
        if tokens >= ENOUGH_TOKENS:
            self._placer.observed(model_id, (tokens - 1) / decode_s)

    def answered(self, model_id: str, tokens: int, depth: float, at_once: int) -> None:
        """Learn how the model is used."""
        self._placer.answered(model_id, tokens, depth, at_once)

    async def unloading(self, model_id: str, kept_bytes: int) -> None:
        """Audit the model once more, after its use."""
        await asyncio.to_thread(self._placer.unloading, model_id, kept_bytes)

    def release(self, model_id: str) -> None:
        """The model's memory is free again."""
        self._placer.gone(model_id)

    async def retry(self, model_id: str, settings: LoadSettings, error: EngineError) -> Rung | None:
        """What to try after a failed load or first token; None when the file is at fault or nothing is left.

        A file that llama.cpp refuses on the processor is broken; on a GPU the backend may be. Where the check after
        the load fails on the processor, only its kernels for rewritten weights may be at fault.
        """
        if isinstance(error, SelfCheckFailed) and not settings.devices and settings.repack:
            plain = msgspec.structs.replace(settings, repack=False)
            self._ladders.setdefault(model_id, [settings]).append(plain)
            return Rung(settings=plain, change="use the weights as the file has them")
        if not isinstance(error, RunnerDied) and not (isinstance(error, BadModelFile) and settings.devices):
            self._ladders.pop(model_id, None)
            return None
        tried = self._ladders.setdefault(model_id, [settings])
        rung = await asyncio.to_thread(self._placer.after_failure, model_id, settings, tuple(tried))
        if rung is None:
            del self._ladders[model_id]
            self._placer.nothing_worked(model_id)
        else:
            tried.append(rung.settings)
        return rung
