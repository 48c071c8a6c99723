"""What a load takes, wherever it runs: the one call of everybody who judges loads."""

from devices.backends.openvino import BACKEND
from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.placement import openvino, rpc_layers
from engine.placement.estimate import shared_out
from engine.placement.fit import need_at
from engine.placement.fit_report import machine_isa
from engine.placement.shape import ModelShape
from engine.placement.types import WORKERS, DryRun, Need
from engine.remotes.registry import RemoteRegistry
from engine.runner.protocol import LoadSettings


def audit_key(shape: ModelShape, backend: str) -> str:
    """Loads whose predictions err alike."""
    return f"{shape.architecture}|{backend}"


def load_need(
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    remotes: RemoteRegistry | None = None,
    run: DryRun | None = None,
) -> Need:
    """What a load with these settings takes on each device; measured by `run` where there is one."""
    if settings.remotes and remotes is not None:
        return rpc_layers.need(shape, settings, machine, remotes, run)
    return need_on(shape, settings, machine, ledger, *offload_target(settings, machine), run)


def need_on(
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    gpu: str | None,
    backend: str,
    run: DryRun | None = None,
) -> Need:
    """The same where this machine holds all layers: those on a GPU go to `gpu`."""
    measured = (settings, run) if run else None
    correction = ledger.audits.correction(audit_key(shape, backend))
    need = need_at(shape, settings, machine_isa(machine), gpu, measured, correction)
    return openvino.need(need) if backend == BACKEND else shared_out(need, shape, settings, machine, gpu)


def offload_target(settings: LoadSettings, machine: Machine) -> tuple[str | None, str]:
    """Device id and backend that layers go to with these settings; None and `cpu` when nothing is offloaded."""
    if not settings.devices or settings.n_gpu_layers == 0:
        return None, "cpu"
    if settings.remotes:
        return rpc_layers.devices_of(settings, machine)[0], "rpc"
    if settings.engine_args.rpc and not settings.engine_args.devices:
        return WORKERS, "rpc"
    for device in machine.devices:
        for runtime in device.runtimes:
            if runtime.device_name == settings.devices[0]:
                # The CPU and NPUs have no memory of their own to count.
                return (device.id if device.kind in {"igpu", "dgpu"} else None), runtime.backend
    return None, "cpu"
