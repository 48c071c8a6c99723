"""Once the computer rests: what plain and fused attention cost here for the heads of a model that is loaded.

Dispatch asks for it at the next load. A request ends the measurement at once; it is begun again at the next rest.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from devices.backends.cpu_kernels import ATTENTION
from devices.errors import TesseraError
from devices.memory_ledger import Amount
from engine.job_kinds.bench.attention import measure_attention, memory_bytes
from engine.jobs.job_types import ENDED
from engine.placement.cpu_choices import heads_of
from engine.placement.history import Heads, attention_key
from engine.placement.onnx import with_power
from engine.placement.placer import read_shape
from engine.placement.results import machine_key
from engine.placement.types import NO_OVERRIDES
from engine.pool.loaded_model import LoadedModel

if TYPE_CHECKING:
    from engine.server.state import ServerState

LOOK_S: Final = 2.0
# A person who reads an answer or thinks of the next question is not away yet.
IDLE_S: Final = 60.0
# Share of all processors' time that a resting computer's other programs take.
MOST_BUSY: Final = 0.15
# Turns that contradict each other, or faults: after so many tries this server leaves it.
TRIES: Final = 3
# A model of billions of parameters reads a layer of the stand-in's length within seconds on anything.
LONGEST_S: Final = 180.0

WATCH_S: Final = 0.1
OWNER: Final = "measuring attention"

log = logging.getLogger(__name__)


class IdleAttention:
    """Measures while nobody waits for anything, after `idle_s` seconds with processors at most `most_busy` busy."""

    def __init__(self, state: "ServerState", idle_s: float = IDLE_S, most_busy: float = MOST_BUSY) -> None:
        self._state = state
        self._idle_s = idle_s
        self._most_busy = most_busy
        self._tries: Counter[str] = Counter()

    async def run(self) -> None:
        """Until it is cancelled."""
        idle_for_s = 0.0
        while True:
            await asyncio.sleep(min(LOOK_S, self._idle_s))
            idle_for_s = 0.0 if self._busy() else idle_for_s + min(LOOK_S, self._idle_s)
            if idle_for_s < self._idle_s or not await asyncio.to_thread(self._is_idle):
                continue
            for model in self._state.pool.loaded:
                wanted = await asyncio.to_thread(self._wanted, model)
                if wanted is not None:
                    await self._measure(*wanted)
                    break
            idle_for_s = 0.0

    def _busy(self) -> bool:
        state = self._state
        return state.pool.busy or any(job.state not in {*ENDED, "paused"} for job in state.jobs.jobs())

    def _is_idle(self) -> bool:
        """No other program works, and no battery pays for it."""
        if with_power(NO_OVERRIDES).on_battery:
            return False
        usage = self._state.utilization
        samples = usage.last(max(1, int(self._idle_s))) if usage is not None else ()
        return bool(samples) and sum(s.cpu_frac for s in samples) <= self._most_busy * len(samples)

    def _wanted(self, model: LoadedModel) -> tuple[str, Heads, int] | None:
        """Key, heads and threads of a measurement that is missing for a model of this processor's own kernels."""
        settings, placed = model.settings, model.placement
        if placed is None or placed.backend != "cpu" or settings.embeddings or settings.remotes:
            return None
        if ATTENTION in settings.tiles:  # faster than either
            return None
        try:
            heads = heads_of(read_shape(settings.path))
        except (TesseraError, OSError):  # the file is gone; the next load reports it
            return None
        if heads is None:
            return None
        key = attention_key(machine_key(self._state.placer.machine_now()), heads, settings.n_threads)
        if self._state.placer.history.attention(key) is not None or self._tries[key] >= TRIES:
            return None
        return key, heads, settings.n_threads

    async def _measure(self, key: str, heads: Heads, threads: int) -> None:
        """Measure and keep it, unless somebody comes meanwhile."""
        task = asyncio.create_task(self._measured(key, heads, threads))
        ends = asyncio.get_running_loop().time() + LONGEST_S
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=WATCH_S)
                if self._busy() or asyncio.get_running_loop().time() > ends:
                    log.info("measuring attention is left for later")
                    break
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _measured(self, key: str, heads: Heads, threads: int) -> None:
        scratch, ledger = self._state.paths.cache / "stand-ins", self._state.placer.ledger
        try:
            await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(ledger.reserve, OWNER, {"cpu": Amount(memory_bytes(heads))}, OWNER)
            try:
                found = await measure_attention(heads, threads=threads, scratch=scratch)
            finally:
                ledger.release(OWNER)
        except (TesseraError, OSError) as error:
            self._tries[key] += 1
            log.info("attention could not be measured: %s", error)
            return
        if found is None:
            self._tries[key] += 1
            log.info("attention could not be measured: something else used the processors")
            return
        self._state.placer.history.record_attention(key, found)
        log.info("attention measured: %s", found)
