"""Measures for placement while the computer is idle: the devices that could run a loaded model, and attention.

It also compares long texts on a device with the CPU, once for each device, driver and kind of model, and the
batches that the time of a load was too short for.

Placement uses the results. A request stops the measurement; it restarts at the next idle time. The comparison of
devices is a job, so that the user sees it and can cancel it; then this server does not start it again.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from devices.child_command import child_command
from devices.errors import TesseraError
from devices.memory_ledger import DeviceBytes
from devices.msgspec_lock import learned
from engine.core.types import DeviceCheck
from engine.job_kinds.bench.attention import measure_attention, memory_bytes
from engine.job_kinds.measure.work import CompareOptions, Task
from engine.jobs.job_types import ENDED, JobKind
from engine.message_catalog import sentence
from engine.placement.cpu_choices import heads_of
from engine.placement.device_checks import CHECKED_SEQUENCES
from engine.placement.estimate import ledger_amounts
from engine.placement.fallbacks import without_flash_attention
from engine.placement.history import Heads, attention_key
from engine.placement.memory_admission import uninterrupted
from engine.placement.onnx import with_power
from engine.placement.placer import read_shape
from engine.placement.quarantine import disable
from engine.placement.results import machine_key
from engine.placement.shape import ModelShape
from engine.placement.speed import weights_read
from engine.placement.types import NO_OVERRIDES
from engine.pool.loaded_model import LoadedModel
from engine.runner.protocol import LoadSettings
from engine.server.canary import (
    TOKEN_BYTES_PER_S,
    comparable,
    idle_threads,
    output_while_idle,
    wrong_answers,
)

if TYPE_CHECKING:
    from engine.server.state import ServerState

LOOK_S: Final = 2.0
PIECE: Final = 256
# A user who reads a response or types the next prompt is not idle yet.
IDLE_S: Final = 60.0
# Maximum share of CPU time that other programs may use on an idle computer.
MOST_BUSY: Final = 0.15
# Maximum number of failed or contradictory measurements before this server stops trying.
TRIES: Final = 3
# Any CPU computes a layer of a billion-parameter model at the benchmark's prompt length within seconds.
LONGEST_S: Final = 180.0

WATCH_S: Final = 0.1
# The longest text that is compared with the CPU. Faults in public threads began at up to 7,000 tokens. A large
# model gets a shorter one, which the CPU should read in this time.
DEEPEST: Final = 7500
LEAST_DEPTH: Final = 1200
DEEP_S: Final = 240.0
DEEP_LIMIT_S: Final = 900.0
# Memory for the rows of both computations, over the whole vocabulary.
DEEP_BYTES: Final = 512 << 20
DEEP_OWNER: Final = "comparing long texts"
OWNER: Final = "measuring attention"

log = logging.getLogger(__name__)


class IdleMeasuring:
    """Measures after `idle_s` seconds without requests in which the CPU load is at most `most_busy`."""

    def __init__(self, state: "ServerState", idle_s: float = IDLE_S, most_busy: float = MOST_BUSY) -> None:
        self._state = state
        self._idle_s = idle_s
        self._most_busy = most_busy
        self._tries: Counter[str] = Counter()
        # Loads whose device has yet to compute long texts; they stay while memory has no space for a second copy.
        # With the seconds since the epoch at which they began.
        self._deep: dict[str, tuple[LoadSettings, float]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        idle_for_s = 0.0
        while True:
            await asyncio.sleep(min(LOOK_S, self._idle_s))
            idle_for_s = 0.0 if self._busy() else idle_for_s + min(LOOK_S, self._idle_s)
            if idle_for_s < self._idle_s or not await asyncio.to_thread(self._is_idle):
                continue
            for model in self._state.pool.loaded:
                used, (noted_settings, _) = model.settings, self._deep.get(model.id, (None, 0.0))
                if used.devices and used.n_gpu_layers and used != noted_settings:
                    self._deep[model.id] = used, time.time() - (time.monotonic() - model.loaded_at)
            if await self._checked_one():
                idle_for_s = 0.0
                continue
            for model in self._state.pool.loaded:
                if await self._compared(model):
                    break
                task = await asyncio.to_thread(self._next_measurement, model)
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

    async def _checked_one(self) -> bool:
        """Compare long texts of one load with the CPU. Return True if that began."""
        for model_id, (settings, begun_at) in list(self._deep.items()):
            shape = await asyncio.to_thread(self._unchecked, model_id, settings)
            if shape is None:
                del self._deep[model_id]
            elif await self._check_deep(model_id, settings, shape, begun_at):
                return True
        return False

    def _unchecked(self, model_id: str, settings: LoadSettings) -> ModelShape | None:
        """The shape of a model whose device did not compute long texts yet; None if there is nothing to do.

        After a resume nothing is known of a loaded model's device, so it is compared without a new load.
        """
        if self._tries[DEEP_OWNER + model_id] >= TRIES or not comparable(settings):
            return None
        placer = self._state.placer
        try:
            shape = read_shape(settings.path)
        except (TesseraError, OSError):  # the file is gone
            return None
        verdict = placer.resources.checks.verdict(settings, shape, placer.machine_now())
        return shape if verdict is None or not (verdict.wrong or verdict.deep_at) else None

    async def _check_deep(self, model_id: str, settings: LoadSettings, shape: ModelShape, begun_at: float) -> bool:
        """Return True if it started; False if memory has no space for a second copy of the model now."""
        placer, state = self._state.placer, self._state
        depth = deep_length(settings, shape)
        parallel = min(CHECKED_SEQUENCES, settings.n_parallel)
        small = msgspec.structs.replace(settings, n_ctx=depth + PIECE, kv_cells=0, n_parallel=parallel)
        amounts = ledger_amounts(await asyncio.to_thread(placer.need_of, small))
        host = amounts.get("cpu", DeviceBytes(0))
        more = DeviceBytes(host.anonymous_bytes + DEEP_BYTES, host.mapped_bytes + shape.file_bytes)
        amounts = {**amounts, "cpu": more}
        try:
            await asyncio.to_thread(placer.ledger.reserve, DEEP_OWNER, amounts, DEEP_OWNER)
        except TesseraError as error:
            log.debug("model=%s: long texts wait for memory: %s", model_id, error)
            return False
        try:
            answer = await self._deep_answer(settings, depth)
        finally:
            placer.ledger.release(DEEP_OWNER)
        if answer is None:
            return True
        machine = await asyncio.to_thread(placer.machine_now)
        checks, name = placer.resources.checks, ", ".join(settings.devices)
        if "done" not in answer:
            self._tries[DEEP_OWNER + model_id] += 1
            log.info("model=%s: long texts were not compared: %s", model_id, answer.get("error"))
        elif "wrong" not in answer:
            log.info("model=%s: %s computes %d tokens and an answer like the CPU", model_id, name, depth)
            await asyncio.to_thread(checks.record_deep, settings, shape, machine)
        else:
            why = answer.get("reason") or f"{answer['nats']:.2g} nats from the CPU"
            reason = f"{name} computes {answer['wrong']} wrongly ({why})"
            log.warning("model=%s: %s", model_id, reason)
            check = msgspec.convert(answer["check"], learned(DeviceCheck)) if "check" in answer else None
            # Flash attention is not the cause, so the same device without it would be wrong too.
            affected = [settings, without_flash_attention(settings)] if answer.get("in_products") else [settings]
            rules = []
            for one in affected:
                await asyncio.to_thread(checks.record_deep, one, shape, machine, reason, check)
                with contextlib.suppress(OSError):  # on failure it is found again
                    rules.append(await asyncio.to_thread(disable, placer.resources, machine, one, shape, sentence))
            if state.canary is not None:
                nats, rule = float(answer.get("nats", 0.0)), next(iter(rules), "")
                wrong = wrong_answers(
                    model_id, settings, since=begun_at, reason=reason, rule=rule, tokens=depth, nats=nats
                )
                await asyncio.to_thread(state.canary.report, wrong, reason)
            model = state.pool.get(model_id)
            if model is not None and model.settings == settings:
                model.pending = ("device",)
                await state.pool.load_again(model)
        return True

    async def _deep_answer(self, settings: LoadSettings, depth: int) -> dict[str, Any] | None:
        """The child's result; None if a request arrived, or if it took too long."""
        threads = idle_threads()
        settings = msgspec.structs.replace(
            settings, n_threads=threads, n_threads_batch=threads, reference_path=None
        )
        words = (str(os.getpid()), msgspec.json.encode(settings).decode(), str(depth))
        command = child_command("engine.runner.llama.deep_check_child", *words)
        ended = await output_while_idle(command, settings.path, self._busy, DEEP_LIMIT_S)
        if ended is None:
            log.info("comparing long texts is left for later")
            return None
        output, code = ended
        try:
            return dict(msgspec.json.decode(output))
        except (msgspec.DecodeError, ValueError):  # the device took the process with it
            return {"error": f"the process ended with {code}"}

    async def _compared(self, model: LoadedModel) -> bool:
        """Compare the places for this model if that was not done yet; move it to a faster one.

        Return True if that began.
        """
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

    def _next_measurement(self, model: LoadedModel) -> tuple[str, Heads, int] | None:
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
        amounts = {"cpu": DeviceBytes(memory_bytes(heads))}
        try:
            try:
                await uninterrupted(asyncio.to_thread(ledger.reserve, OWNER, amounts, OWNER))
                speed = await measure_attention(heads, threads=threads, scratch=scratch)
            finally:
                ledger.release(OWNER)
        except (TesseraError, OSError) as error:
            self._tries[key] += 1
            log.info("attention could not be measured: %s", error)
            return
        if speed is None:
            self._tries[key] += 1
            log.info("attention could not be measured: something else used the CPUs")
            return
        self._state.placer.history.record_attention(key, speed)
        log.info("attention measured: %s", speed)


def deep_length(settings: LoadSettings, shape: ModelShape) -> int:
    """Number of tokens of the long text for comparing a device with the CPU."""
    readable = int(DEEP_S * TOKEN_BYTES_PER_S / max(1, weights_read(shape)))
    least = max(LEAST_DEPTH, shape.sliding_window + PIECE, int(2.5 * settings.n_ubatch))
    most = min(max(settings.n_ctx, settings.max_ctx) - PIECE, DEEPEST)
    return max(2 * PIECE, min(most, max(least, readable)))
