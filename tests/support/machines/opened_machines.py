"""Recorded machines as if kernels were installed: GPU backends opened their GPUs, and memory is free."""

import copy
import re
from functools import cache

from msgspec.structs import replace

from devices.chips import LINK
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


def assembled(processor: str, cores: int, gib: int, gbs: float, *gpus: tuple) -> Machine:
    """A computer of these parts and so many fast cores, with Vulkan on each GPU and its memory free.

    `gpus`: name, GiB, PCI id, target, and GB/s of the card's link if it is not as usual. The instruction sets are
    those of a 7950X or, without AVX-512, an i9-14900HX.
    """
    from devices.chips import with_chips
    from devices.probes.gpu_ids import gpu_id
    from devices.types import CoreCounts, Device, Evidence, Memory, Runtime

    wide = re.search(r"Ryzen (?:AI|\d 7|\d 9|\d 8)|1165G7|EPYC 9|AI MAX", processor)
    base = opened("simpledrm-card0" if wide else "nv-hybrid-addw4", own=False)
    counts = CoreCounts(cores, cores, cores, 0, cores, cores, threads=cores)
    ram = replace(
        base.memory, total_bytes=gib * GIB, installed_bytes=gib * GIB, limit_bytes=None, bandwidth_gbs=gbs,
        bandwidth_source="dmi",
    )  # fmt: skip
    shared = Memory(physical_bytes=gib * GIB, unified=True, bandwidth_gbs=gbs, bandwidth_source="dmi")
    devices = [replace(base.devices[0], name=processor, cores=counts, memory=replace(shared, unified=False))]
    for index, (name, size, pci_id, target, *link) in enumerate(gpus):
        vendor = {"1002": "AMD", "8086": "Intel", "10de": "NVIDIA"}[pci_id[:4]]
        pci, total = f"0000:0{index + 1}:00.0", size * GIB
        runtime = Runtime("vulkan", f"Vulkan{index}", index, total, total, "usable", description=name)
        known = gpu_id(*(int(part, 16) for part in pci_id.split(":")))
        integrated = known.integrated if known else vendor == "Intel"
        memory = Memory(physical_bytes=total, dedicated_bytes=total)
        if integrated:
            memory = replace(shared, shared_limit_bytes=total)
        devices.append(
            Device(
                pci, "igpu" if integrated else "dgpu", vendor, name, "usable", memory, pci=pci, pci_id=pci_id,
                arch=target, runtimes=(runtime,),
                evidence=tuple(Evidence("sysfs", LINK, str(speed)) for speed in link),
            )
        )  # fmt: skip
    return with_chips(_with_free_memory(replace(base, memory=ram, devices=tuple(devices))))
