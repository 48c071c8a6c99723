"""Measures for placement while the computer is idle: the devices that could run a loaded model, and attention.

Placement uses the results. A request stops the measurement; it restarts at the next idle time. The comparison of
devices is a job, so that the user sees it and can cancel it; then this server does not start it again.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from devices.backends.cpu_kernels import ATTENTION
from devices.errors import TesseraError
from devices.memory_ledger import DeviceBytes
from engine.job_kinds.bench.attention import measure_attention, memory_bytes
from engine.job_kinds.measure.work import CompareOptions, Task
from engine.jobs.job_types import ENDED, JobKind
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
# A user who reads a response or types the next prompt is not idle yet.
IDLE_S: Final = 60.0
# Maximum share of CPU time that other programs may use on an idle computer.
MOST_BUSY: Final = 0.15
# Maximum number of failed or contradictory measurements before this server stops trying.
TRIES: Final = 3
# Any CPU computes a layer of a billion-parameter model at the benchmark's prompt length within seconds.
LONGEST_S: Final = 180.0

WATCH_S: Final = 0.1
OWNER: Final = "measuring attention"

log = logging.getLogger(__name__)


class IdleMeasuring:
    """Measures after `idle_s` seconds without requests in which the CPU load is at most `most_busy`."""

    def __init__(self, state: "ServerState", idle_s: float = IDLE_S, most_busy: float = MOST_BUSY) -> None:
        self._state = state
        self._idle_s = idle_s
        self._most_busy = most_busy
        self._tries: Counter[str] = Counter()

    async def run(self) -> None:
        """Run until cancelled."""
        idle_for_s = 0.0
        while True:
            await asyncio.sleep(min(LOOK_S, self._idle_s))
            idle_for_s = 0.0 if self._busy() else idle_for_s + min(LOOK_S, self._idle_s)
            if idle_for_s < self._idle_s or not await asyncio.to_thread(self._is_idle):
                continue
            for model in self._state.pool.loaded:
                if await self._compared(model):
                    break
                task = await asyncio.to_thread(self._wanted, model)
                if task is not None:
                    await self._measure(*task)
                    break
            idle_for_s = 0.0

    def _busy(self, own_job: str = "") -> bool:
        state = self._state
        others = (job for job in state.jobs.jobs() if job.id != own_job)
        return state.pool.busy or any(job.state not in {*ENDED, "paused"} for job in others)

    def _is_idle(self) -> bool:
        """Whether no other program uses the CPU and the computer is not on battery."""
        if with_power(NO_OVERRIDES).on_battery:
            return False
        usage = self._state.utilization
        samples = usage.last(max(1, int(self._idle_s))) if usage is not None else ()
        return bool(samples) and sum(s.cpu_frac for s in samples) <= self._most_busy * len(samples)

    async def _compared(self, model: LoadedModel) -> bool:
        """Compare the places for this model if that was not done yet; move it to a faster one. Whether it began."""
        state, service = self._state, self._state.bench_service
        if service is None or model.placement is None or self._tries[model.id] >= TRIES:
            return False
        try:
            if not await asyncio.to_thread(service.unmeasured, model.id):
                return False
        except TesseraError as error:  # a model of another server, or a file that is gone
            log.debug("model=%s is not compared: %s", model.id, error)
            return False
        title = f"Compare devices for {model.id}"
        job = state.jobs.start(JobKind.MEASURE, title, Task(what="compare", compare=CompareOptions(model=model.id)))
        has_left = False
        while not job.ended:
            await asyncio.sleep(WATCH_S)
            job = state.jobs.get(job.id)
            if not has_left and not job.ended and self._busy(job.id):
                log.info("model=%s: comparing devices is left for later", model.id)
                state.jobs.cancel(job.id)
                has_left = True
        if has_left:
            return True
        self._tries[model.id] += TRIES if job.state == "cancelled" else 1
        result = (job.result or {}).get("comparison", {})
        if job.state == "done" and result["after"] != result["before"]:
            log.info("model=%s moves from %s to %s", model.id, result["before"], result["after"])
            await state.pool.load_again(model)
        return True

    def _wanted(self, model: LoadedModel) -> tuple[str, Heads, int] | None:
        """(key, heads, threads) of the next missing measurement for a CPU model, or None."""
        settings, placed = model.settings, model.placement
        if placed is None or placed.backend != "cpu" or settings.embeddings or settings.remotes:
            return None
        if ATTENTION in settings.tiles:  # Tessera's CPU kernels are faster than both, so nothing to measure
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
        """Measure and store the result; stop if a request arrives."""
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
            await asyncio.to_thread(ledger.reserve, OWNER, {"cpu": DeviceBytes(memory_bytes(heads))}, OWNER)
            try:
                speed = await measure_attention(heads, threads=threads, scratch=scratch)
            finally:
                ledger.release(OWNER)
        except (TesseraError, OSError) as error:
            self._tries[key] += 1
            log.info("attention could not be measured: %s", error)
            return
        if speed is None:
            self._tries[key] += 1
            log.info("attention could not be measured: something else used the processors")
            return
        self._state.placer.history.record_attention(key, speed)
        log.info("attention measured: %s", speed)
