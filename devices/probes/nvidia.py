"""Reads from nvidia-smi what sysfs lacks: VRAM, compute capability, driver. Does not wake a sleeping GPU."""

from msgspec.structs import replace

from devices.host import Host, number
from devices.types import Device, Evidence, Memory, SystemMemory

QUERY = "pci.bus_id,name,memory.total,memory.used,compute_cap,driver_version"
COMMAND = ("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
TIMEOUT_S = 5.0


def with_nvidia_smi(host: Host, devices: tuple[Device, ...], ram: SystemMemory) -> tuple[Device, ...]:
    """`devices` with NVIDIA's own figures, joined by PCI address. Does not wake a sleeping GPU."""
    nvidia = [d for d in devices if d.vendor == "NVIDIA" and d.state == "present"]
    if not nvidia or all(d.asleep for d in nvidia):
        return devices
    listed = _listed(host)
    return tuple(_filled(d, listed.get(_short(d.pci or "")), ram) if d in nvidia else d for d in devices)


def _short(address: str) -> str:
    """An address without its domain, whose width differs between sysfs and nvidia-smi."""
    return address.lower().partition(":")[2]


def _listed(host: Host) -> dict[str, list[str]]:
    done = host.run(COMMAND, TIMEOUT_S)
    if done.returncode != 0:
        return {}
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return {_short(row[0]): row for row in rows if len(row) == 6}


def _readable(cell: str) -> str:
    """A cell; empty if it is what nvidia-smi prints for values it cannot read: "[N/A]", "[Unknown Error]"."""
    return "" if cell.startswith("[") else cell


def _filled(device: Device, row: list[str] | None, ram: SystemMemory) -> Device:
    if row is None:
        return device
    total, used = number(row[2]), number(row[3])
    capability = row[4].replace(".", "")
    if total is None or device.kind == "igpu":  # shared memory: GB10 reports "[N/A]", others their carve-out
        memory = device.memory
    else:
        vram, used_bytes = total << 20, (used or 0) << 20
        memory = Memory(vram, vram, min(used_bytes, vram), None, None, max(0, vram - used_bytes), unified=False)
    if device.kind == "igpu":
        memory = replace(memory, physical_bytes=ram.total_bytes, unified=True)
    return replace(
        device,
        name=_readable(row[1]) or device.name,
        memory=memory,
        arch=f"sm_{capability}" if capability.isdecimal() else device.arch,
        driver_version=_readable(row[5]) or device.driver_version,
        evidence=(*device.evidence, Evidence(COMMAND[0], QUERY, ", ".join(row[1:]))),
    )
