"""System memory: its size, the free part for Tessera, and its maximum speed."""

import re

import msgspec

from devices.chips import apple_gpus
from devices.host import Host, fields, number, records, text
from devices.probes.cgroup_limits import memory_limit
from devices.types import SystemMemory

# An address-space limit below this is ignored: this process could not have started with an RLIMIT_AS of a few MiB.
MIN_ADDRESS_SPACE = 64 << 20
# Addresses that a runner takes in addition to the memory it uses: libraries, thread stacks, allocator arenas.
# Measured: log-archive.md, memory (VmPeak 428 MiB with 75 MiB resident).
ADDRESS_SPACE_OVERHEAD = 384 << 20

# CPU name pattern: maximum bandwidth of its memory controller, GB/s. DMI tables of about one laptop in twenty
# report a wrong bus width (linuxhw/DMI, 912 dumps of 2023-25: 2-4x too high, some 4x too low).
# Source: the vendors' data sheets: bus bits x fastest supported MT/s / 8.
BANDWIDTH_CEILINGS: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), ceiling)
    for pattern, ceiling in (
        (r"ryzen ai max\S* (?:pro )?4\d\d", 273.0),  # 256 bit LPDDR5X-8533
        (r"ryzen ai max", 256.0),  # 256 bit LPDDR5X-8000
        (r"ryzen ai [579] (?:hx |h )?(?:pro )?4\d\d", 136.5),  # 128 bit LPDDR5X-8533
        (r"ryzen ai [579] ", 128.0),  # 128 bit LPDDR5X-8000
        (r"ryzen [3579] (?:pro )?[78]\d4\d|ryzen [3579] (?:pro )?(?:h )?2\d\d\b", 120.0),  # 128 bit LPDDR5X-7500
        (r"ryzen .*(8[567]00G|9\d{3}X|7\d{3}X|9\d{3}\b|7\d{3}\b)", 102.4),  # dual-channel DDR5-6400
        (r"core\(tm\) ultra \d+ 2\d\dV", 136.5),  # Lunar Lake, 128 bit LPDDR5X-8533
        (r"core\(tm\) ultra (x?\d) 3\d\d", 153.6),  # Panther Lake, 128 bit LPDDR5X-9600
        (r"core\(tm\) ultra", 134.4),  # Meteor and Arrow Lake, 128 bit LPDDR5X-8400
        (r"i[3579]-1[234]\d{3}", 102.4),
        (r"x2 elite extreme|x2e-?9[46]", 228.0),  # 192 bit LPDDR5X-9523
        (r"snapdragon.*x2|x2 elite", 152.0),  # 128 bit LPDDR5X-9523
        (r"snapdragon|x1e|x1p|x elite", 135.0),
    )
)
# CPU name pattern: width of its memory controller in bits. Four modules of a desktop share two channels, but DMI
# lists the width of each. Source: the vendors' data sheets: channels x 64 bits. Servers are not limited here.
CONTROLLER_BITS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), bits)
    for pattern, bits in (
        # Intel's N series and Wildcat Lake, AMD's Mendocino
        (r"\bn\d{2,3}\b|core\(tm\) [3579] 3\d\d\b|ryzen [35] 7[35]20u|athlon \w+ 7[12]20[cu]", 64),
        (r"threadripper pro", 512),
        (r"threadripper|ryzen ai max", 256),
        (r"i[79]-\d{4,5}xe?\b|i7-(?:[345][89]|6[89])\d\d", 256),  # Core X and its predecessors
        (r"ryzen|athlon|core\(tm\)|pentium|celeron", 128),
    )
)
# Packages that are sold with only one memory configuration.
SOLDERED: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"ryzen ai max\S* (?:pro )?4\d\d", re.IGNORECASE), 273.0),
    (re.compile(r"ryzen ai max", re.IGNORECASE), 256.0),
    (re.compile(r"core\(tm\) ultra \d+ 2\d\dV", re.IGNORECASE), 136.5),
)


class MemoryBus(msgspec.Struct, frozen=True):
    """Memory according to DMI: width of all modules together, speed, installed bytes, all of it soldered."""

    bits: int | None = None
    speed_mts: int | None = None
    installed_bytes: int | None = None
    source: str = ""
    soldered: bool = False

    @property
    def bandwidth_gbs(self) -> float | None:
        """Peak bandwidth of the reported bus, GB/s."""
        if not self.bits or not self.speed_mts:
            return None
        return self.bits * self.speed_mts / 8 / 1000


def linux_bus(host: Host) -> MemoryBus:
    """The bus from udev's database, which republishes the DMI table that only root may read."""
    modules = table_modules(host)
    if modules:
        return _bus(modules, "SMBIOS memory devices")
    source = "/run/udev/data/+dmi:id"
    listed = fields(text(host, source).replace("E:", ""), "=")
    if not any(key.startswith("MEMORY_DEVICE_") for key in listed):
        source = "udevadm info /sys/class/dmi/id"
        if host.listdir("/sys/class/dmi/id"):
            output = host.run(["udevadm", "info", "--query=property", "/sys/class/dmi/id"], 2.0).stdout
            listed = fields(output, "=")
    return _bus(
        [
            {
                name: number(listed.get(f"MEMORY_DEVICE_{slot}_{name}"))
                for name in ("DATA_WIDTH", "SPEED_MTS", "CONFIGURED_SPEED_MTS", "SIZE")
            }
            | {"SOLDERED": int(_is_soldered(listed, slot))}
            for slot in range(64)
            if number(listed.get(f"MEMORY_DEVICE_{slot}_SIZE"))
        ],
        source,
    )


def _is_soldered(listed: dict[str, str], slot: int) -> bool:
    kind, form = (listed.get(f"MEMORY_DEVICE_{slot}_{name}", "") for name in ("TYPE", "FORM_FACTOR"))
    return kind.startswith("LPDDR") or form.lower() == "row of chips"


def table_modules(host: Host) -> list[dict[str, int | None]]:
    """Memory modules from the SMBIOS table itself, if this user may read it."""
    return [
        {
            "DATA_WIDTH": number(module.get("data_width_bits")),
            "SPEED_MTS": number(module.get("speed_mts")),
            "SIZE": number(module.get("size_bytes")),
            "SOLDERED": number(module.get("soldered")),
        }
        for module in records(host.api("memory_modules"))
        if number(module.get("size_bytes"))
    ]


def _bus(modules: list[dict[str, int | None]], source: str) -> MemoryBus:
    if not modules:
        return MemoryBus()
    widths = [m["DATA_WIDTH"] for m in modules]
    speeds = [s for m in modules if (s := m.get("CONFIGURED_SPEED_MTS") or m.get("SPEED_MTS"))]
    return MemoryBus(
        bits=sum(w for w in widths if w) if all(widths) else None,
        speed_mts=min(speeds) if len(speeds) == len(modules) else None,
        installed_bytes=sum(m["SIZE"] or 0 for m in modules),
        source=source,
        soldered=all(m.get("SOLDERED") for m in modules),
    )


def controller_bits(cpu_name: str) -> int | None:
    """Width of the CPU's memory controller; None if it is unknown."""
    return next((bits for pattern, bits in CONTROLLER_BITS if pattern.search(cpu_name)), None)


def _within_controller(bus: MemoryBus, cpu_name: str) -> MemoryBus:
    """The bus, not wider than the CPU's memory controller.

    A narrower bus of soldered memory counts as unknown: some firmware lists half of its width or less.
    """
    widest = controller_bits(cpu_name)
    if widest is None or bus.bits is None or bus.bits == widest:
        return bus
    if bus.bits < widest:
        return msgspec.structs.replace(bus, bits=None) if bus.soldered else bus
    return msgspec.structs.replace(bus, bits=widest)


def clamped_bandwidth(bus: MemoryBus, cpu_name: str) -> tuple[float | None, str]:
    """Bandwidth in GB/s and its source, never above the limit of the CPU's controller."""
    reported = bus.bandwidth_gbs
    ceiling = next((gbs for pattern, gbs in BANDWIDTH_CEILINGS if pattern.search(cpu_name)), None)
    if reported is None:
        soldered = next((gbs for pattern, gbs in SOLDERED if pattern.search(cpu_name)), None)
        return soldered, "published for the CPU; its memory is soldered" if soldered else ""
    if ceiling is not None and reported > ceiling:
        return ceiling, f"limit of the CPU; {bus.source} claims {reported:.0f} GB/s"
    if reported > 1000 and ceiling is None:
        return None, ""
    return reported, f"{bus.source}: {bus.bits} bit at {bus.speed_mts} MT/s"


def system_memory(host: Host, cpu_name: str) -> SystemMemory:
    """RAM of `host`, including container and address-space limits."""
    if host.system == "linux":
        return _linux(host, cpu_name)
    if host.system == "windows":
        return _windows(host, cpu_name)
    return _macos(host, cpu_name) if host.system == "macos" else SystemMemory()


def _linux(host: Host, cpu_name: str) -> SystemMemory:
    info = fields(text(host, "/proc/meminfo"))
    total, available = (_kib(info.get(key)) for key in ("MemTotal", "MemAvailable"))
    if available is None:
        parts = [_kib(info.get(key)) for key in ("MemFree", "Buffers", "Cached")]
        available = sum(p for p in parts if p is not None) if parts[0] is not None else None
    if total is not None and available is not None:
        # Free pages of the contiguous memory allocator are not available to a driver that pins its buffers.
        available = min(available - min(available, _kib(info.get("CmaFree")) or 0), total)
    limit = memory_limit(host)
    bus = _within_controller(linux_bus(host), cpu_name)
    gbs, source = clamped_bandwidth(bus, cpu_name)
    limit_bytes, limit_source = None, ""
    if limit is not None and (total is None or limit.limit_bytes < total):
        limit_bytes, limit_source = limit.limit_bytes, limit.source
        available = min(available, limit.free_bytes) if available is not None else limit.free_bytes
    space = number(host.api("address_space_limit"))
    if space is not None and space >= MIN_ADDRESS_SPACE and (limit_bytes is None or space < limit_bytes):
        limit_bytes, limit_source = space, "ulimit -v"
        ceiling = max(0, space - ADDRESS_SPACE_OVERHEAD)
        available = min(available, ceiling) if available is not None else ceiling
    installed = bus.installed_bytes
    if installed is not None and total is not None and not total <= installed <= 4 * total:
        installed = None  # a virtual machine or a wrong table
    return SystemMemory(
        total_bytes=total,
        installed_bytes=installed,
        available_bytes=available,
        limit_bytes=limit_bytes,
        limit_source=limit_source,
        bus_bits=bus.bits,
        speed_mts=bus.speed_mts,
        bandwidth_gbs=gbs,
        bandwidth_source=source,
    )


def _kib(value: str | None) -> int | None:
    match = re.fullmatch(r"([0-9]{1,15})(?: kB)?", value or "", re.ASCII)
    return int(match[1]) * 1024 if match else None


def _windows(host: Host, cpu_name: str) -> SystemMemory:
    status = next(iter(records([host.api("memory_status")])), {})
    total, available = number(status.get("total")), number(status.get("available"))
    commit = number(status.get("commit_available"))
    if available is not None and commit is not None:
        available = min(available, commit)
    if total is not None and available is not None:
        available = min(available, total)
    installed = number(status.get("installed"))
    bus = _within_controller(_bus(table_modules(host), "SMBIOS memory devices"), cpu_name)
    gbs, source = clamped_bandwidth(bus, cpu_name)
    return SystemMemory(
        total_bytes=total,
        installed_bytes=installed or bus.installed_bytes,
        available_bytes=available,
        bus_bits=bus.bits,
        speed_mts=bus.speed_mts,
        bandwidth_gbs=gbs,
        bandwidth_source=source,
    )


def _macos(host: Host, cpu_name: str) -> SystemMemory:
    total = number(host.sysctl("hw.memsize"))
    page = number(host.sysctl("hw.pagesize")) or 16384
    names = ("vm.page_free_count", "vm.page_purgeable_count", "vm.page_pageable_external_count")
    pages = [number(host.sysctl(name)) for name in names]
    available = sum(p for p in pages if p is not None) * page if pages[0] is not None else None
    if total is not None and available is not None:
        available = min(available, total)
    gbs, source = apple_bandwidth(cpu_name, gpu_cores(host))
    return SystemMemory(
        total_bytes=total,
        installed_bytes=total,
        available_bytes=available,
        bandwidth_gbs=gbs,
        bandwidth_source=source,
    )


def apple_bandwidth(cpu_name: str, cores: int | None) -> tuple[float | None, str]:
    """Apple's published bandwidth of a chip; if there are two variants, by the GPU's cores, else the lower one."""
    sizes = apple_gpus(cpu_name)
    size = next((row for row in sizes if row.units == cores), sizes[0] if sizes else None)
    return (size.bandwidth_gbs, f"published for the {size.name}") if size is not None else (None, "")


def gpu_cores(host: Host) -> int | None:
    """Cores of Apple's GPU, from its driver's registry."""
    output = host.run(["ioreg", "-rd1", "-c", "AGXAccelerator"], 2.0).stdout
    match = re.search(r'"gpu-core-count" = ([0-9]{1,3})\b', output, re.ASCII)
    return int(match[1]) if match else None
