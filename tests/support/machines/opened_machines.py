"""Recorded machines as if kernels were installed: GPU backends opened their GPUs, and memory is free."""

import copy
from functools import cache

from msgspec.structs import replace

from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import Machine
from tests.support.machines.machines import machines

GIB = 1 << 30
OWN = {"AMD": "rocm", "NVIDIA": "cuda", "Apple": "metal", "Qualcomm": "opencl", "Intel": "sycl"}
FREE = 0.9


@cache
def _recordings():
    return machines()


def names() -> list[str]:
    """Ids of all recorded machines."""
    return list(_recordings())


def opened(name: str, *, own: bool = True, without: tuple[str, ...] = ()) -> Machine:
    """The machine with Vulkan, and with vendor backends if `own`, on every GPU with a working driver."""
    found = recorded_report(RecordedHost(_recordings()[name]))
    reports: dict[str, list[dict]] = {}
    gpus = [d for d in found.devices if d.kind in {"igpu", "dgpu"} and d.state not in {"failed", "driver_missing"}]
    for index, device in enumerate(gpus):
        total = device.memory.budget_bytes or 8 * GIB
        backends = [*(["vulkan"] if device.vendor != "Apple" else []), *([OWN[device.vendor]] if own else [])]
        for backend in backends:
            if backend not in without:
                kind = "igpu" if device.kind == "igpu" else "gpu"
                reports.setdefault(backend, []).append(
                    {
                        "name": f"{backend}{index}",
                        "description": device.name,
                        "kind": kind,
                        "device_id": device.pci,
                        "total_bytes": total,
                        "free_bytes": int(FREE * total),
                    }
                )
    recording = copy.deepcopy(_recordings()[name])
    recording["backends"] = [
        {"backend": backend, "library": f"{backend}.so", "state": "usable", "devices": devices}
        for backend, devices in reports.items()
    ]
    return _with_free_memory(recorded_report(RecordedHost(recording)))


def _with_free_memory(machine: Machine) -> Machine:
    ram = machine.memory
    free = int(FREE * (ram.limit_bytes or ram.total_bytes or 0))
    devices = tuple(
        replace(d, memory=replace(d.memory, available_bytes=int(FREE * (d.memory.budget_bytes or free))))
        for d in machine.devices
    )
    return replace(machine, memory=replace(ram, available_bytes=free), devices=devices)


def with_ram(machine: Machine, gib: int) -> Machine:
    """The machine with `gib` GiB of memory."""
    total = gib * GIB
    devices = tuple(
        d
        if d.kind == "dgpu"
        else replace(
            d, memory=replace(d.memory, physical_bytes=total, shared_limit_bytes=total, dedicated_bytes=None)
        )
        for d in machine.devices
    )
    ram = replace(machine.memory, total_bytes=total, installed_bytes=total, limit_bytes=None)
    return _with_free_memory(replace(machine, memory=ram, devices=devices))


def with_card(machine: Machine, name: str, gib: int) -> Machine:
    """The machine with its graphics card replaced by one of this name and memory."""
    size = gib * GIB
    devices = []
    for device in machine.devices:
        if device.kind == "dgpu":
            runtimes = tuple(replace(r, description=name) for r in device.runtimes)
            memory = replace(device.memory, physical_bytes=size, dedicated_bytes=size, bandwidth_gbs=None)
            device = replace(device, name=name, runtimes=runtimes, memory=memory)  # noqa: PLW2901
        devices.append(device)
    from devices.chips import with_chips

    return _with_free_memory(with_chips(replace(machine, devices=tuple(devices))))
