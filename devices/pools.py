"""The physical memory of a machine as pools that are never counted twice."""

from devices.probes.gpu_linux import reserve_bytes
from devices.types import Device, Machine, Pool

RAM = "ram"


def pools(machine: Machine) -> tuple[Pool, ...]:
    """RAM the system manages, firmware carve-outs, VRAM. Together never more than RAM plus dedicated VRAM."""
    ram = machine.memory
    total = ram.total_bytes or 0
    capacity = min(total, ram.limit_bytes) if ram.limit_bytes is not None else total
    free = min(ram.available_bytes or 0, capacity)
    found = [Pool(RAM, "ram", capacity, free, reserve_bytes(ram))]
    spare = max(0, (ram.installed_bytes or total) - total)
    for device in machine.devices:
        memory = device.memory
        dedicated = memory.dedicated_bytes or 0
        if device.kind == "igpu" and dedicated:
            size = min(dedicated, spare)
            spare -= size
            used = min(memory.dedicated_used_bytes or 0, size)
            if size:
                found.append(Pool(pool_of(device), "carve_out", size, size - used, 0))
        elif device.kind == "dgpu" and memory.budget_bytes:
            size = memory.budget_bytes
            open_bytes = size if memory.available_bytes is None else min(size, memory.available_bytes)
            found.append(Pool(pool_of(device), "vram", size, open_bytes, vram_reserve_bytes(size)))
        elif device.kind == "remote" and memory.physical_bytes:
            free_there = (
                memory.available_bytes or 0
            )  # what its own ledger leaves: reserves are taken off over there
            found.append(Pool(pool_of(device), "remote", memory.physical_bytes, free_there, 0))
    return tuple(found)


def pool_of(device: Device) -> str:
    """The pool that belongs to one device alone; the CPU and NPUs have none."""
    if device.kind == "remote":
        return device.id
    prefix = "vram" if device.kind == "dgpu" else "carve_out"
    return f"{prefix}:{device.id}"


def vram_reserve_bytes(size: int) -> int:
    """VRAM left to the desktop and to what backends allocate beyond their buffers.

    Source: llama.cpp common/fit.cpp leaves 1 GiB a device; an eighth on small cards.
    """
    return min(1 << 30, size // 8)
