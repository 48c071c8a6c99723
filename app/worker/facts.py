"""Information that a worker reports about this computer: devices, free memory and bandwidth."""

from typing import Any, Final

from devices.child import run_child
from devices.child_command import child_command
from devices.types import Device, Machine
from engine.core.errors import EnvironmentFault
from engine.core.paths import user_paths
from engine.core.version import __version__
from engine.placement.resources import Resources, open_resources
from engine.placement.speed import effective_gbs
from engine.remotes.llama_cpp_build import kernel_name
from engine.remotes.types import RemoteDevice, RemoteFacts

DESCRIBE_S: Final = 30.0


class NoDevices(EnvironmentFault):
    """llama.cpp's libraries do not start on this computer."""

    code = "no_devices"


class FactsOf:
    """Queries devices once, and free memory each time. Blocks. `memory_bytes` limits the CPU's memory."""

    def __init__(self, host: str, memory_bytes: int | None = None) -> None:
        self._resources: Resources = open_resources(user_paths())
        self._host = host
        self._memory_bytes = memory_bytes
        outcome = run_child(child_command("engine.runner.llama.rpc_worker", "describe"), DESCRIBE_S)
        if outcome.answer is None or not outcome.answer.get("devices"):
            raise NoDevices(f"llama.cpp's libraries do not start here: {outcome.reason}")
        self._served: list[dict[str, Any]] = outcome.answer["devices"]
        self._session_bytes = int(outcome.answer["held_bytes"])

    def now(self, held_bytes: int = 0) -> RemoteFacts:
        """Device information with current free memory; `held_bytes` of sessions count against `memory_bytes`."""
        machine = self._resources.machine.now()
        return RemoteFacts(
            host=self._host,
            version=__version__,
            kernel=kernel_name(),
            devices=tuple(self._device(served, machine, held_bytes) for served in self._served),
            session_bytes=self._session_bytes,
        )

    def _device(self, served: dict[str, Any], machine: Machine, held_bytes: int) -> RemoteDevice:
        device = self._matching(served["name"], machine)
        free, total = int(served["free_bytes"]), int(served["total_bytes"])
        if device is not None:
            free = self._resources.ledger.available(device.id, machine)
            total = device.memory.physical_bytes or total
        if served["kind"] == "cpu" and self._memory_bytes is not None:
            total = min(total, self._memory_bytes)
            free = min(free, max(0, self._memory_bytes - held_bytes))
        return RemoteDevice(
            name=served["name"],
            description=served["description"],
            kind=served["kind"],
            total_bytes=total,
            free_bytes=free,
            gbs=self._gbs(device),
        )

    def _matching(self, name: str, machine: Machine) -> Device | None:
        by_runtime = next((d for d in machine.devices if any(r.device_name == name for r in d.runtimes)), None)
        return by_runtime or (machine.device("cpu") if name == "CPU" else None)

    def _gbs(self, device: Device | None) -> float:
        if device is None:
            return 0.0
        backends = [r.backend for r in device.runtimes if r.state == "usable"] or ["cpu"]
        history = self._resources.history
        return max(history.speed_gbs(device.id, b) or effective_gbs(device, b) for b in backends)
