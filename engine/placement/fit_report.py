"""Computes the memory need of a load on any placement, and the full report on whether it fits this machine."""

from collections.abc import Callable, Mapping

import msgspec

from devices.errors import PoolExceeded
from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.core.errors import NotEnoughMemory
from engine.message_catalog.reasons import Reason, because
from engine.placement import rpc_layers
from engine.placement.estimate import largest_context, ledger_amounts, need_at, need_on, overdraft
from engine.placement.shape import ModelShape
from engine.placement.types import WORKERS, DryRun, FitOption, FitReport, MemoryEstimate
from engine.remotes.registry import RemoteRegistry
from engine.runner.expert_tensors import least_bytes, stacks
from engine.runner.protocol import LoadSettings

NUM_OPTIONS = 3


def load_need(
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    remotes: RemoteRegistry | None = None,
    run: DryRun | None = None,
) -> MemoryEstimate:
    """Memory need of a load with these settings on each device; measured by `run` if given."""
    if settings.remotes and remotes is not None:
        return rpc_layers.need(shape, settings, machine, remotes, run)
    return need_on(shape, settings, machine, ledger, *offload_target(settings, machine), run)


def offload_target(settings: LoadSettings, machine: Machine) -> tuple[str | None, str]:
    """Device id and backend that layers go to with these settings; None and `cpu` if nothing is offloaded."""
    if not settings.devices or settings.n_gpu_layers == 0:
        return None, "cpu"
    if settings.remotes:
        return rpc_layers.devices_of(settings, machine)[0], "rpc"
    if settings.engine_args.rpc and not settings.engine_args.devices:
        return WORKERS, "rpc"
    for device in machine.devices:
        for runtime in device.runtimes:
            if runtime.device_name == settings.devices[0]:
                # The CPU and NPUs have no separate memory to count.
                return (device.id if device.kind in {"igpu", "dgpu"} else None), runtime.backend
    return None, "cpu"


def fit_report(
    name: str,
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    *,
    gpu: str | None = None,
    measured: tuple[LoadSettings, DryRun] | None = None,
    correction: float = 1.0,
    on_disk: bool = True,
) -> FitReport:
    """Compare a load with the free memory of `machine` and the reservations in `ledger`.

    `measured` is a dry run and the settings it was made with. A model that is not `on_disk` must still be
    downloaded: then a smaller quantization is chosen instead of created.
    """
    isa = machine.isa

    def estimate(at: LoadSettings) -> MemoryEstimate:
        return need_at(shape, at, isa, gpu, measured, correction)

    def fits(need: MemoryEstimate) -> bool:
        return overdraft(ledger, need, name) is None

    need = estimate(settings)
    others = reserved_by_others(ledger, name)
    fit = fits(need)
    ways: tuple[FitOption, ...] = ()
    if not fit:
        from engine.placement.savings import fit_options

        ways = fit_options(shape, settings, estimate, fits, others, name, on_disk=on_disk)
    limit = shape.context_train or max(settings.n_ctx, 1 << 17)
    smallest = settings
    if settings.expert_bytes:  # a longer context reduces the memory for experts
        least = least_bytes(stacks(shape.tensors, shape.experts), shape.experts)
        smallest = msgspec.structs.replace(settings, expert_bytes=min(least, settings.expert_bytes))
    return FitReport(
        model=name,
        fits=fit,
        need=need,
        available_bytes={d: ledger.available(d, machine, exclude=name) for d in need.devices},
        largest_context=largest_context(smallest, limit, lambda at: fits(estimate(at))),
        fit_options=ways,
        notes=_notes(shape, settings),
    )


def deterministic_owner(model_id: str) -> str:
    """Owner of the memory for a model's deterministic requests, in the ledger."""
    return f"{model_id} (deterministic)"


def reserved_by_others(ledger: Ledger, model_id: str) -> dict[str, int]:
    """Bytes that each other model has reserved, for both of its contexts."""
    bytes_by_model: dict[str, int] = {}
    for row in ledger.reservations():
        model = row.owner.removesuffix(deterministic_owner(""))
        bytes_by_model[model] = bytes_by_model.get(model, 0) + row.predicted_bytes
    bytes_by_model.pop(model_id, None)
    return bytes_by_model


def claim(
    owner: str,
    need: MemoryEstimate,
    key: str,
    machine: Machine,
    ledger: Ledger,
    report: Callable[[], FitReport] | None,
) -> None:
    """Reserve the memory of a load; `key` groups loads with similar prediction errors.

    Raises: NotEnoughMemory: what `report` says is missing; without `report`, what the ledger lacks.
    """

    def reserve() -> None:
        ledger.reserve(owner, ledger_amounts(need), key, need.resident_bytes, need.by_purpose())

    try:
        reserve()
    except PoolExceeded as error:
        lacking = report() if report is not None else None
        if lacking is not None and not lacking.fits:
            raise refusal(lacking, {d.id: d.name for d in machine.devices}) from error
        try:
            reserve()  # another load may have returned its memory since
        except PoolExceeded as last:
            raise NotEnoughMemory(last.needed_bytes, last.available_bytes, last.pool) from last


def refusal(report: FitReport, device_names: Mapping[str, str]) -> NotEnoughMemory:
    """The error for a load that does not fit: needed and available memory, and the cheapest options."""
    device = max(report.need.devices, key=lambda d: report.need.device_bytes(d) - report.available_bytes.get(d, 0))
    return NotEnoughMemory(
        report.need.device_bytes(device),
        report.available_bytes.get(device, 0),
        device_names.get(device, device),
        tuple(way.change for way in report.fit_options[:NUM_OPTIONS]),
    )


def _notes(shape: ModelShape, settings: LoadSettings) -> tuple[Reason, ...]:
    notes = []
    if shape.context_train and settings.n_ctx > shape.context_train:
        notes.append(because("beyond_training", tokens=shape.context_train))
    if not shape.layers:
        notes.append(because("no_layers"))
    return tuple(notes)
