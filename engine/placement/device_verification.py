"""Compares devices with the CPU in detail: one model, every backend, with and without the risky features."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from devices.backends.openvino import BACKEND
from devices.msgspec_lock import learned
from devices.types import Device, Machine, Runtime
from engine.core.errors import BadModelFile, DeviceCheckFailed, RunnerDied, SelfCheckFailed
from engine.core.types import DeviceCheck
from engine.message_catalog.reasons import Reason, because
from engine.placement import openvino
from engine.placement.device_checks import DeviceChecks
from engine.placement.placer import read_shape
from engine.placement.shape import ModelShape
from engine.placement.speed import BACKENDS
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

CONTEXT = 512
CACHE_TYPES = ("f16", "q8_0")


class ComparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One compute method of a device compared with the CPU. `state`: right, wrong, failed (no load) or skipped."""

    device: str
    backend: str
    what: Reason = msgspec.field(name="what_detail")
    state: str
    reason: Reason | None = msgspec.field(default=None, name="reason_detail")
    check: DeviceCheck | None = None


def combinations(path: str, shape: ModelShape, name: str) -> list[tuple[Reason, LoadSettings]]:
    """Combinations to try on one backend device: attention, cache types, and layers left on the CPU."""
    layers = len(shape.layers)
    base = LoadSettings(path=path, n_ctx=CONTEXT, n_parallel=4, devices=(name,), n_gpu_layers=layers + 1)
    replace = msgspec.structs.replace
    rows = [(because("check_without_flash"), replace(base, flash_attn="off"))]
    for cache in CACHE_TYPES:
        what = because("check_flash") if cache == "f16" else because("check_flash_cache", cache=cache)
        rows.append((what, replace(base, flash_attn="on", type_k=cache, type_v=cache)))
    if layers > 1:
        half = replace(base, flash_attn="on", n_gpu_layers=layers // 2)
        rows.append((because("check_layers", layers=layers // 2, all_layers=layers), half))
    return rows


def comparable(device: Device, runtime: Runtime) -> bool:
    """Whether a device's runtime can be compared with the CPU's own kernels."""
    own = device.kind == "cpu" and runtime.backend != BACKEND
    return not own and runtime.state == "usable" and runtime.backend in BACKENDS


async def verify(
    path: str, machine: Machine, checks: DeviceChecks, on_row: Callable[[ComparedDevice], None]
) -> list[ComparedDevice]:
    """Compare every combination on every usable device and record the results for placement. Raises: BadModelFile.

    on_row: called with each row when it is available.
    """
    shape = read_shape(path)
    rows: list[ComparedDevice] = []
    with tempfile.TemporaryDirectory() as folder:
        fresh = DeviceChecks(None, Path(folder))
        for device in machine.devices:
            for runtime in device.runtimes:
                if not comparable(device, runtime):
                    continue
                tried = combinations(path, shape, runtime.device_name)
                if runtime.backend == BACKEND:
                    base = LoadSettings(path=path, n_ctx=CONTEXT)
                    tried = [(because("check_as_used"), openvino.settings_for(base, runtime, device))]
                for what, settings in tried:
                    row = ComparedDevice(device=device.id, backend=runtime.backend, what=what, state="skipped")
                    row = await _compared(row, settings, shape, machine, fresh, checks)
                    rows.append(row)
                    on_row(row)
    return rows


async def _compared(
    row: ComparedDevice,
    settings: LoadSettings,
    shape: ModelShape,
    machine: Machine,
    fresh: DeviceChecks,
    checks: DeviceChecks,
) -> ComparedDevice:
    to_load = await asyncio.to_thread(fresh.to_compare, settings, shape, machine)
    if to_load.reference_path is None:
        return msgspec.structs.replace(row, reason=because("no_reference"))
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(to_load)
    except SelfCheckFailed as error:
        numbers = error.numbers if isinstance(error, DeviceCheckFailed) else None
        check = msgspec.convert(numbers, learned(DeviceCheck)) if numbers else None
        words, _ = await asyncio.to_thread(checks.wrong_operations, settings)
        checks.record(settings, shape, machine, check, error.reason, words)
        reason = because("as_told", text=error.reason)
        if words:
            reason = because("check_wrong", why=error.reason, operations=words)
        return msgspec.structs.replace(row, state="wrong", reason=reason, check=check)
    except (RunnerDied, BadModelFile) as error:
        return msgspec.structs.replace(row, state="failed", reason=because("as_told", text=str(error)))
    finally:
        await runner.stop()
    checks.record(settings, shape, machine, facts.device_check)
    return msgspec.structs.replace(row, state="right", check=facts.device_check)
