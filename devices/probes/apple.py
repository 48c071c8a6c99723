"""Apple Silicon: the GPU shares all RAM up to a wired limit; only Core ML reaches the Neural Engine."""

from devices import types
from devices.chips import GPU_CORES
from devices.host import Host, number
from devices.probes import fix_hints
from devices.probes.cpu import Cpu
from devices.probes.ram import gpu_cores
from devices.types import Device, Evidence, Memory, SystemMemory

# Metal's recommended working set is 67-78 % of RAM (M5 Max: 40.2 of 51.5 GB). Two thirds up to 36 GiB and three
# quarters above never exceed the reported values; the Metal backend's own figure replaces this after its test.
SMALL_BYTES, SMALL_FRAC, LARGE_FRAC = 36 << 30, 2 / 3, 3 / 4


def apple_devices(host: Host, cpu: Cpu, ram: SystemMemory) -> list[Device]:
    """GPU and Neural Engine of an Apple Silicon machine; empty on Intel ones."""
    if cpu.vendor != "Apple":
        return []
    limit, source = working_set_bytes(host, ram)
    count, available = gpu_cores(host), None
    cores = (Evidence("ioreg", GPU_CORES, str(count)),) if count is not None else ()
    if limit is not None and ram.available_bytes is not None:
        available = min(limit, ram.available_bytes)
    gpu = Device(
        id="gpu:apple",
        kind="igpu",
        vendor="Apple",
        name=f"{cpu.name} GPU",
        state="present",
        memory=Memory(
            physical_bytes=ram.total_bytes,
            shared_limit_bytes=limit,
            available_bytes=available,
            unified=True,
            bandwidth_gbs=ram.bandwidth_gbs,
            bandwidth_source=ram.bandwidth_source,
        ),
        arch="metal",
        driver="Metal",
        reason=types.NOT_TRIED,
        fix_hint=fix_hints.TRY,
        evidence=(source, *cores),
    )
    engine = Device(
        id="npu:apple",
        kind="npu",
        vendor="Apple",
        name="Apple Neural Engine",
        state="present",
        memory=Memory(physical_bytes=ram.total_bytes, unified=True),
        arch="ane",
        reason=types.CORE_ML_ONLY,
        fix_hint=fix_hints.NPU_RUNTIME["Apple"],
        evidence=(Evidence("sysctl", "machdep.cpu.brand_string", cpu.name, 0.9),),
    )
    return [gpu, engine]


def working_set_bytes(host: Host, ram: SystemMemory) -> tuple[int | None, Evidence]:
    """Bytes that the GPU may hold: the user's `iogpu.wired_limit_mb`, else a safe share of RAM."""
    total = ram.total_bytes
    wired = number(host.sysctl("iogpu.wired_limit_mb"))
    if wired and total:
        return min(wired << 20, total), Evidence("sysctl", "iogpu.wired_limit_mb", str(wired))
    if total is None:
        return None, Evidence("sysctl", "hw.memsize", "unknown", 0.0)
    frac = SMALL_FRAC if total <= SMALL_BYTES else LARGE_FRAC
    return int(total * frac), Evidence("sysctl", "hw.memsize", str(total), 0.7)
