"""Connects the pool to the ledger: admits and measures loads, retries crashed ones with other settings."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from devices.errors import PoolExceeded, TesseraError
from devices.host import is_busy
from devices.memory_ledger import DeviceBytes
from devices.msgspec_lock import learned
from devices.process_memory import process_memory
from devices.types import Machine, ProcessMemory
from engine.core.errors import (
    BadModelFile,
    DeviceCheckFailed,
    FileRefused,
    NotEnoughMemory,
    RunnerDied,
    SelfCheckFailed,
    exhausted,
)
from engine.core.types import DeviceCheck
from engine.message_catalog.reasons import because
from engine.placement import onnx
from engine.placement.estimate import audit_key, exact_parts, ledger_amounts
from engine.placement.external import admit_external, kind_of
from engine.placement.fallbacks import (
    FLASH_ATTENTION,
    as_in_file,
    next_fallback,
    prefill_fallbacks,
    without_flash_attention,
    without_tiles,
)
from engine.placement.fault_workarounds import not_bad
from engine.placement.fit_report import claim, deterministic_owner, fit_report, offload_target, reserved_by_others
from engine.placement.history import FALLBACK_FIELDS
from engine.placement.placer import ENOUGH_TOKENS, LARGE_READ_BYTES, Placer, read_shape
from engine.placement.shape import ModelShape
from engine.placement.speed import Forecast, weights_read
from engine.placement.steps import death_key
from engine.placement.types import Fallback, FitReport, Placement
from engine.runner.engine_args import NO_ARGS
from engine.runner.pipes import BufferLog
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
T = TypeVar("T")
# llama.cpp's dry run starts when the first response has ended, or after this time without one: its child process
# would take a core from the first token.
ASKED_AFTER_S = 10.0
# Shortest response whose speed is recorded as the model's: people's first answers often have 20 to 60 tokens.
FEWEST_TOKENS = 16
# Below this share of the free memory a load is admitted by formulas: they are within a tenth.
PLENTY_FRAC = 0.5


class _Load(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted load. `device` holds all its layers, or is None: then its speed is not recorded."""

    settings: LoadSettings
    device: str | None = None
    backend: str = ""
    read_bytes: int = 0
    shape: ModelShape | None = None


class MemoryAdmission:
    """Memory decisions for the pool: the ledger decides, and the history records how loads perform."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._ledger = placer.ledger
        self._history = placer.history
        self._checks = placer.resources.checks
        self._loads: dict[str, _Load] = {}
        # Settings that failed, in order, followed by those being tried; stored until a token was generated.
        self._tried: dict[str, list[LoadSettings]] = {}
        # The same settings, for runners that died in a long prompt.
        self._died: dict[str, list[LoadSettings]] = {}
        self._audits: set[asyncio.Task[None]] = set()
        self._unanswered: dict[str, asyncio.Event] = {}

    async def reserve(self, model_id: str, settings: LoadSettings, placement: Placement | None = None) -> None:
        """Reserve memory. Raises: as `reserve_now`."""
        await uninterrupted(asyncio.to_thread(self.reserve_now, model_id, settings, placement))

    def reserve_now(self, model_id: str, settings: LoadSettings, placement: Placement | None = None) -> None:
        """Reserve the memory of a load with these settings, computed unless `placement` has it. Blocks.

        If memory is plentiful the formulas decide at once; otherwise llama.cpp makes a dry run first.
        Raises: NotEnoughMemory: with needed, available and the three cheapest options. BadModelFile.
        InputFault: llama.cpp rejects the raw engine arguments.
        """
        self._loads[model_id] = _Load(settings=settings)
        external = kind_of(settings)
        if external is not None and external.need is not None:
            admit_external(model_id, settings, self._placer.machine_now(), self._ledger)
            return
        machine = self._placer.machine_now()
        if onnx.is_folder(settings.path):
            onnx.admit(model_id, settings, machine, self._ledger)
            return
        shape = read_shape(settings.path)
        if external is None and settings.engine_args != NO_ARGS:
            self._placer.try_engine_args(settings)
        gpu, backend = offload_target(settings, machine)
        if placement is not None and placement.settings == settings:
            need, run = placement.need, None
        else:
            need, run = self._placer.need(shape, settings, machine), None
        free = self._ledger.available("cpu", machine, exclude=model_id)
        if settings.remotes or (external is None and gpu is None and need.total_bytes > PLENTY_FRAC * free):
            run = self._placer.dry_run(settings)
            need = self._placer.need(shape, settings, machine, run)

        def report() -> FitReport:
            measured = (settings, run) if run else None
            return fit_report(model_id, shape, settings, machine, self._ledger, gpu=gpu, measured=measured)

        key = audit_key(shape, backend if settings.external is None else settings.external.name)
        claim(model_id, need, key, machine, self._ledger, None if settings.remotes else report)
        whole = (
            external is None and not settings.remotes and (gpu is None or settings.n_gpu_layers > len(shape.layers))
        )
        self._loads[model_id] = _Load(
            settings=settings,
            device=(gpu or "cpu") if whole else None,
            backend=backend,
            read_bytes=weights_read(shape),
            shape=shape,
        )
        log.info("admitted model=%s device=%s bytes=%d", model_id, gpu or "cpu", need.total_bytes)

    async def widen(self, model_id: str, settings: LoadSettings) -> None:
        """Reserve the memory of the context for deterministic requests. Raises: NotEnoughMemory."""
        if _in_llama_cpp(settings):
            await uninterrupted(asyncio.to_thread(self._widen_now, model_id, settings))

    def _widen_now(self, model_id: str, settings: LoadSettings) -> None:
        machine = self._placer.machine_now()
        device = offload_target(settings, machine)[0] or "cpu"
        parts = exact_parts(read_shape(settings.path), settings)
        try:
            self._ledger.reserve(
                deterministic_owner(model_id), {device: DeviceBytes(sum(parts.values()))}, parts=parts
            )
        except PoolExceeded as error:
            raise NotEnoughMemory(error.needed_bytes, error.available_bytes, device) from error
        if model_id not in self._loads:  # released meanwhile
            self._ledger.release(deterministic_owner(model_id))

    def widened(self, model_id: str) -> None:
        """Record that the context for deterministic requests exists: its memory is the process's now."""
        self._ledger.attach_to(deterministic_owner(model_id), model_id)

    async def shortage(
        self, model_id: str, settings: LoadSettings, copied: LoadSettings | None
    ) -> PoolExceeded | None:
        """Memory that a loaded model lacks for these settings; None if it fits.

        `copied`: settings whose caches are temporarily copied to main memory; None: to disk, or not at all.
        """
        return await asyncio.to_thread(self._placer.shortage, model_id, settings, copied)

    async def resized(self, model_id: str, settings: LoadSettings) -> None:
        """Record the new context size of a loaded model."""
        await asyncio.to_thread(self._resized_now, model_id, settings)

    def _resized_now(self, model_id: str, settings: LoadSettings, pid: int | None = None) -> None:
        load = self._loads.get(model_id)
        if load is not None:
            self._loads[model_id] = msgspec.structs.replace(load, settings=settings)
        need = self._placer.need_of(settings)
        self._ledger.refine(model_id, ledger_amounts(need), need.resident_bytes, need.by_purpose(), pid=pid)
        exact = deterministic_owner(model_id)
        reservation = next((r for r in self._ledger.reservations() if r.owner == exact), None)
        if reservation is not None:
            parts = exact_parts(read_shape(settings.path), settings)
            self._ledger.refine(
                exact, {device: DeviceBytes(sum(parts.values())) for device in reservation.amounts}, None, parts
            )

    async def largest_context(self, model_id: str, settings: LoadSettings, limit: int) -> int:
        """The largest context, up to `limit`, that fits this model in its available memory."""
        return await asyncio.to_thread(self._placer.largest_context, model_id, settings, limit)

    def others(self, model_id: str) -> list[tuple[str, int]]:
        """Other owners of memory and their bytes, largest first."""
        return sorted(reserved_by_others(self._ledger, model_id).items(), key=lambda row: -row[1])

    def started(self, model_id: str, pid: int) -> None:
        """Record the process of a load that begins: free memory becomes less while it reads."""
        self._ledger.attach(model_id, pid)

    def attach(self, model_id: str, pid: int, buffers: BufferLog) -> None:
        """Record the process of a loaded model, audit it, and store its settings if an earlier attempt failed.

        `buffers` is what its log says it allocated.
        """
        load, measured = self._loads.get(model_id), process_memory(pid)
        self._ledger.attach(model_id, pid, measured)
        external = kind_of(load.settings) if load is not None else None
        if external is not None:
            if external.is_measured:
                self._ledger.record_measured(model_id)
            return
        tried = self._tried.get(model_id)
        if tried:  # write the kilobyte immediately: the next crash may come before any task runs
            first, used = tried[0], tried[-1]
            changes = {f: getattr(used, f) for f in FALLBACK_FIELDS if getattr(used, f) != getattr(first, f)}
            self._history.remember(model_id, changes)
        if load is not None and load.settings.expert_bytes:
            return  # experts are loaded as they are used: the current size does not predict the later one
        answer = asyncio.Event()
        self._unanswered[model_id] = answer
        task = asyncio.get_running_loop().create_task(
            self._audit_later(model_id, pid, buffers, load, measured, answer)
        )
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    async def _audit_later(
        self,
        model_id: str,
        pid: int,
        buffers: BufferLog,
        load: _Load | None,
        measured: ProcessMemory | None,
        answer: asyncio.Event,
    ) -> None:
        """Audit a load after its first response. `measured` is what its process held when the load ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answer.wait(), ASKED_AFTER_S)
        if self._unanswered.get(model_id) is answer:  # otherwise it was unloaded or reloaded
            del self._unanswered[model_id]
            try:
                await asyncio.to_thread(self._audit, model_id, pid, buffers, load, measured)
            except (TesseraError, OSError) as error:
                if exhausted(error) is None:
                    raise
                log.warning("the memory of %s stays as predicted, it could not be looked at: %s", model_id, error)

    def _audit(
        self, model_id: str, pid: int, buffers: BufferLog, load: _Load | None, measured: ProcessMemory | None
    ) -> None:
        """Compare the memory that llama.cpp reports with the memory of the process.

        Both are of the load's first context, which may have grown for the first response. Meanwhile the model may
        have been loaded again in another process, whose reservation stays as it is.
        """
        if load is not None:
            self._refine(model_id, load.settings, pid)
        if measured is not None:
            granted = max(load.settings.kv_cells, load.settings.n_ctx) if load is not None else 0
            self._ledger.record_measured(model_id, measured, buffers.bytes(granted), pid=pid)
        now = self._loads.get(model_id)
        if load is not None and now is not None and now.settings != load.settings:
            self._resized_now(model_id, now.settings, pid)

    def _refine(self, model_id: str, settings: LoadSettings, pid: int) -> None:
        """Replace the reservation by formulas with llama.cpp's own numbers."""
        if not _in_llama_cpp(settings):
            return
        machine = self._placer.machine_now()
        gpu, _ = offload_target(settings, machine)
        run = self._placer.dry_run(settings) if gpu is None or settings.remotes else None
        if run is not None:
            need = self._placer.need(read_shape(settings.path), settings, machine, run)
            self._ledger.refine(model_id, ledger_amounts(need), need.resident_bytes, need.by_purpose(), pid=pid)

    def proven(self, model_id: str) -> None:
        """Record that a token was generated with these settings: the stored fallback stays as it is."""
        self._tried.pop(model_id, None)
        self._died.pop(model_id, None)

    def observed(self, model_id: str, tokens: int, decode_s: float, depth: float) -> None:
        """Record a decode speed measured on this machine, on average after `depth` tokens.

        It replaces the forecast at the next placement if one device holds the whole model. For a model so large
        that memory speed decides, it also shows how fast the device reads. While other programs use the CPU, a
        speed on it means little and is not recorded.
        """
        load = self._loads.get(model_id)
        if load is not None and load.settings.remotes:
            self._placer.learn_spread(load.settings, tokens, decode_s)
            return
        if load is None or load.device is None or load.settings.expert_bytes or tokens < FEWEST_TOKENS:
            return
        if load.device == "cpu" and is_busy():
            return
        self._correct(model_id, load, (tokens - 1) / decode_s, depth)
        if load.read_bytes < LARGE_READ_BYTES or tokens < ENOUGH_TOKENS:
            return
        self._history.record_speed(load.device, load.backend, load.read_bytes, (tokens - 1) / decode_s)

    def _correct(self, model_id: str, load: _Load, tok_s: float, depth: float) -> None:
        device = self._placer.machine_now().device(load.device or "")
        if device is None or load.shape is None or kind_of(load.settings) is not None:
            return
        seconds = Forecast(load.shape, load.settings, ((device, load.backend, 1.0),), None).decode_s(depth)
        self._history.record_correction(device.id, load.backend, model_id, tok_s * seconds)

    def answered(self, model_id: str, tokens: int, depth: float, at_once: int) -> None:
        """Record a response of `tokens`, on average after `depth` others, as one of `at_once` requests.

        The use of a model decides its settings at the next load.
        """
        self._history.record_use(model_id, tokens, depth, at_once)
        if model_id in self._unanswered:
            self._unanswered[model_id].set()

    async def unloading(self, model_id: str, cached_bytes: int) -> None:
        """Record the memory of a model's process after use, before it is unloaded.

        `cached_bytes` is the part that stored prefixes take.
        """
        load = self._loads.get(model_id)
        if load is not None:
            external = kind_of(load.settings)
            if load.settings.expert_bytes or (external is not None and not external.is_measured):
                return
        await asyncio.to_thread(self._ledger.record_measured, model_id, moment="unload", cached_bytes=cached_bytes)

    def release(self, model_id: str) -> None:
        """Free the model's reservation."""
        self._unanswered.pop(model_id, None)
        self._history.flush()
        self._loads.pop(model_id, None)
        self._ledger.release(model_id)
        self._ledger.release(deterministic_owner(model_id))

    async def to_load(self, settings: LoadSettings) -> LoadSettings:
        """The settings with the CPU reference, if this device was not compared yet. Computed once per file."""
        if (
            not settings.devices or settings.remotes or settings.external is not None
        ):  # a model split over machines is split because it does not fit here
            return settings
        return await asyncio.to_thread(self._to_compare, settings)

    def _to_compare(self, settings: LoadSettings) -> LoadSettings:
        machine = self._placer.machine_now()
        return self._checks.to_compare(settings, read_shape(settings.path), machine)

    async def compared(self, settings: LoadSettings, check: DeviceCheck | None) -> None:
        """Record a successful load, with the device comparison `check`; None: not compared.

        A device that computes the same as the CPU is not compared again until something changes.
        """
        if check is not None:
            await asyncio.to_thread(self._record, settings, check)

    def _record(
        self, settings: LoadSettings, check: DeviceCheck | None, wrong_because: str = "", operations: str = ""
    ) -> None:
        shape, machine = read_shape(settings.path), self._placer.machine_now()
        self._checks.record(settings, shape, machine, check, wrong_because, operations)

    def _sound(self, model_id: str, settings: LoadSettings, error: SelfCheckFailed) -> Fallback | None:
        """Record that these settings compute wrong results; return the next ones without such a record."""
        numbers = error.numbers if isinstance(error, DeviceCheckFailed) else None
        check = msgspec.convert(numbers, learned(DeviceCheck)) if numbers else None
        words, kinds = self._checks.wrong_operations(settings)
        self._record(settings, check, error.reason, words)
        if kinds and FLASH_ATTENTION not in kinds and settings.flash_attn != "off":
            # Flash attention is not the cause, so the same device without it would be wrong too.
            plain = without_flash_attention(settings)
            self._record(plain, check, error.reason, words)
        fallback = self._placer.sound(model_id, settings, read_shape(settings.path))
        if fallback is not None and words:
            change = because("wrong_operations", operations=words, devices=settings.devices, change=fallback.change)
            return msgspec.structs.replace(fallback, change=change)
        return fallback

    async def retry(self, model_id: str, settings: LoadSettings, error: TesseraError) -> Fallback | None:
        """The settings to try after a failed load or first token; None if the file is at fault or nothing is left.

        A file that llama.cpp rejects on the CPU is broken; on a GPU the backend may be at fault. If the check after
        the load fails on the CPU, Tessera's prompt kernels or those for repacked weights may be at fault. A device
        whose results differ from the CPU's is tried without the faulty feature, as long as there is an alternative.
        """
        if settings.remotes:
            return None
        if isinstance(error, FileRefused):
            self._tried.pop(model_id, None)
            return None
        if isinstance(error, SelfCheckFailed) and settings.devices:
            return await asyncio.to_thread(self._sound, model_id, settings, error)
        if isinstance(error, SelfCheckFailed) and (settings.tiles or settings.repack):
            plain = without_tiles(settings) if settings.tiles else as_in_file(settings)
            self._tried.setdefault(model_id, [settings]).append(plain.settings)
            return plain
        if not isinstance(error, RunnerDied) and not (isinstance(error, BadModelFile) and settings.devices):
            self._tried.pop(model_id, None)
            return None
        tried = self._tried.setdefault(model_id, [settings])
        fallback = await asyncio.to_thread(self._next, settings, tuple(tried))
        if fallback is None:
            del self._tried[model_id]
            self._history.remember(model_id, {})  # the next load starts without a stored fallback
        else:
            log.warning("model=%s failed, next: %s", model_id, fallback.change.kind)
            tried.append(fallback.settings)
        return fallback

    async def after_prefill_death(self, model_id: str, settings: LoadSettings, depth: int) -> Fallback | None:
        """Choose and store the settings to try after a runner died at `depth` tokens; None if none is left."""
        return await asyncio.to_thread(self._after_prefill_death, model_id, settings, depth)

    def _after_prefill_death(self, model_id: str, settings: LoadSettings, depth: int) -> Fallback | None:
        if settings.remotes or settings.external is not None:
            return None
        tried = self._died.setdefault(model_id, [settings])
        machine = self._placer.machine.now()
        untried = [
            fallback
            for fallback in prefill_fallbacks(settings, machine)
            if fallback.settings not in tried and not self._was_left(model_id, settings, fallback.settings, machine)
        ]
        if settings.devices:
            may_try = self._may_try(settings.path, machine)
            untried = [fallback for fallback in untried if may_try(fallback.settings)]
        if not untried:
            self._died.pop(model_id)
            return None
        first, chosen = tried[0], untried[0]
        tried.append(chosen.settings)
        changed = (f for f in FALLBACK_FIELDS if getattr(chosen.settings, f) != getattr(first, f))
        changes = {field: getattr(chosen.settings, field) for field in changed}
        self._history.record_death(death_key(model_id, first, machine), depth, changes)
        log.warning("model=%s died at %d tokens of a prompt, next: %s", model_id, depth, chosen.change.kind)
        return chosen

    def _was_left(self, model_id: str, settings: LoadSettings, other: LoadSettings, machine: Machine) -> bool:
        """Whether the device of other settings is one that earlier deaths of this model have led away from."""
        death = self._history.death(death_key(model_id, other, machine))
        return other.devices != settings.devices and death is not None and "devices" in death.changes

    def _next(self, settings: LoadSettings, tried: tuple[LoadSettings, ...]) -> Fallback | None:
        """The next fallback that is not known to fail. Reads the model's header only if a device computes."""
        machine = self._placer.machine.now()
        if not settings.devices or settings.external is not None:
            return next_fallback(settings, machine, tried)
        return next_fallback(settings, machine, tried, self._may_try(settings.path, machine))

    def _may_try(self, path: str, machine: Machine) -> Callable[[LoadSettings], bool]:
        """Whether a fallback is neither forbidden by a known fault nor known to compute wrong results here."""
        shape = read_shape(path)
        allowed = not_bad(self._placer.resources.fault_rules.now(), shape, machine)

        def may_try(settings: LoadSettings) -> bool:
            verdict = self._checks.verdict(settings, shape, machine)
            return allowed(settings) and not (verdict is not None and verdict.wrong)

        return may_try


async def uninterrupted(work: Awaitable[T]) -> T:
    """Await `work`; if the caller is cancelled, wait for the end of `work` first, which what follows may undo."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        task.exception()  # read, so that it is not reported as lost
        raise


def _in_llama_cpp(settings: LoadSettings) -> bool:
    """Whether one of Tessera's runners loads it with llama.cpp, which reports its memory."""
    return settings.external is None and not onnx.is_folder(settings.path)
