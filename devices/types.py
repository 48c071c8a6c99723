"""Facts about a machine: devices, their memory, the backends that can use them, and the evidence."""

from typing import Final, Literal

import msgspec
from msgspec.structs import force_setattr

System = Literal["linux", "windows", "macos", "unknown"]
# "remote": a device of another computer, which holds layers through a tunnel.
Kind = Literal["cpu", "igpu", "dgpu", "npu", "remote"]
State = Literal["usable", "present", "driver_missing", "no_permission", "failed", "unknown"]
BackendState = Literal["usable", "no_device", "not_built", "failed"]
PoolKind = Literal["ram", "carve_out", "vram", "remote"]
Severity = Literal["error", "warning", "advice"]


class Evidence(msgspec.Struct, frozen=True):
    """The source of a fact: `source` is a path, command or registry key; `confidence_frac` is 0 to 1."""

    source: str
    key: str
    value: str
    confidence_frac: float = 1.0


class Memory(msgspec.Struct, frozen=True):
    """Memory that a device can use, in bytes. None means unknown, never zero.

    `physical_bytes` is the pool that the device uses (installed RAM for a unified device, VRAM otherwise).
    `dedicated_bytes` is VRAM, or the firmware carve-out of an integrated GPU. `shared_limit_bytes` is the
    system RAM that the driver lets the device map (GTT, DXGI shared memory). `available_bytes` is free now,
    clamped to what physically exists. `budget_bytes`, derived from these, is the maximum for this device:
    dedicated plus shared, clamped to what physically exists.
    """

    physical_bytes: int | None = None
    dedicated_bytes: int | None = None
    dedicated_used_bytes: int | None = None
    shared_limit_bytes: int | None = None
    shared_used_bytes: int | None = None
    available_bytes: int | None = None
    unified: bool = False
    bandwidth_gbs: float | None = None
    bandwidth_source: str = ""
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        parts = [b for b in (self.dedicated_bytes, self.shared_limit_bytes) if b is not None]
        total = sum(parts) if parts else self.physical_bytes
        if total is not None and self.physical_bytes is not None:
            total = min(total, self.physical_bytes)
        force_setattr(self, "budget_bytes", total)


class Runtime(msgspec.Struct, frozen=True):
    """One backend's view of one device, as its own library reported it in a child process (bytes).

    `matrix_units` and `int_dot`: whether it computes with those; None if the backend does not report it.
    """

    backend: str
    device_name: str
    index: int
    total_bytes: int
    free_bytes: int
    state: State
    reason: str = ""
    version: str = ""
    description: str = ""
    matrix_units: bool | None = None
    int_dot: bool | None = None


class CoreCounts(msgspec.Struct, frozen=True):
    """CPU cores. `performance` counts physical cores of the fastest class.

    `allowed_logical` are those within the affinity mask, `allowed_performance` the performance cores among
    them; `quota_cores` is the cgroup's CPU limit in cores, None without a limit. `threads`, derived from these, is
    the useful number of threads: one per performance core, within affinity and quota, at least one.
    """

    physical: int
    logical: int
    performance: int
    efficiency: int
    allowed_logical: int
    allowed_performance: int
    quota_cores: float | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        limit = self.allowed_performance or self.allowed_logical
        if self.quota_cores is not None:
            limit = min(limit, max(1, int(self.quota_cores)))
        force_setattr(self, "threads", max(1, limit))


class Device(msgspec.Struct, frozen=True):
    """One processor that could run a model. `id` is its PCI address, LUID or a fixed name such as `cpu`.

    `isa` is sorted. `chip` is its row in the table of chips (devices/chips.py); None if it has none.
    """

    id: str
    kind: Kind
    vendor: str
    name: str
    state: State
    memory: Memory
    pci: str | None = None
    pci_id: str | None = None
    arch: str | None = None
    isa: tuple[str, ...] = ()
    cores: CoreCounts | None = None
    driver: str | None = None
    driver_version: str | None = None
    asleep: bool = False
    reason: str = ""
    fix_hint: str | None = None
    runtimes: tuple[Runtime, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    chip: str | None = None


class SystemMemory(msgspec.Struct, frozen=True):
    """The machine's RAM in bytes.

    `total_bytes` is the OS-visible RAM, `installed_bytes` that plus the firmware's carve-out for an integrated
    GPU. `limit_bytes` is a container's or an address-space limit; `available_bytes` already respects it.
    """

    total_bytes: int | None = None
    installed_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    limit_source: str = ""
    bus_bits: int | None = None
    speed_mts: int | None = None
    bandwidth_gbs: float | None = None
    bandwidth_source: str = ""


class BackendReport(msgspec.Struct, frozen=True):
    """The result of testing one backend library in a separate child."""

    backend: str
    library: str
    state: BackendState
    reason: str = ""
    fix_hint: str | None = None
    version: str = ""
    seconds: float = 0.0
    features: tuple[str, ...] = ()
    devices: tuple["BackendDevice", ...] = ()


class BackendDevice(msgspec.Struct, frozen=True):
    """A device as listed by a backend library; `device_id` is a lower-case PCI address if known.

    `matrix_units` and `int_dot` are what the backend reports at startup; None if it does not report them.
    """

    name: str
    description: str
    kind: Literal["cpu", "gpu", "igpu", "accel", "npu"]
    total_bytes: int
    free_bytes: int
    device_id: str | None = None
    matrix_units: bool | None = None
    int_dot: bool | None = None


class Finding(msgspec.Struct, frozen=True):
    """A problem that costs local AI speed, memory or a device, and the command that fixes it."""

    id: str
    severity: Severity
    title: str
    detail: str = ""
    fix: str = ""
    device: str | None = None


class Meter(msgspec.Struct, frozen=True):
    """A power meter: the part it covers (`cpu`, `system`, a device's id), its source, and a note."""

    name: str
    part: str
    source: str
    readable: bool
    note: str = ""


class Machine(msgspec.Struct, frozen=True):
    """Everything known about one machine. `environment` is "", "wsl2", "container" or "vm".

    `distribution` is Linux's by name and version, such as "Debian 12"; empty on other systems. `versions` are those
    of drivers and firmware that rules of known faults compare (devices/fault_rules.py), `variables` the environment
    variables among them that are set. `vulkan_drivers` are the files that list Vulkan drivers on Linux.
    """

    system: System
    kernel: str
    arch: str
    environment: str
    product: str
    memory: SystemMemory
    devices: tuple[Device, ...]
    backends: tuple[BackendReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    meters: tuple[Meter, ...] = ()
    distribution: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    variables: tuple[str, ...] = ()
    vulkan_drivers: tuple[str, ...] = ()

    def device(self, device_id: str) -> Device | None:
        """The device with that id, or the first of that kind; None if there is none."""
        key = device_id.lower()
        by_id = next((d for d in self.devices if d.id.lower() == key), None)
        return by_id or next((d for d in self.devices if d.kind == key), None)

    @property
    def isa(self) -> frozenset[str]:
        """Instruction sets of the CPU."""
        cpu = self.device("cpu")
        return frozenset(cpu.isa) if cpu else frozenset()


class Pool(msgspec.Struct, frozen=True):
    """One physical pool. `free_bytes` is free now, before the reserve; unknown sizes count as zero."""

    id: str
    kind: PoolKind
    capacity_bytes: int
    free_bytes: int
    reserve_bytes: int


class ProcessMemory(msgspec.Struct, frozen=True):
    """Bytes of one process. `anonymous` is its own; `mapped` are resident file pages, shared ones divided.

    `pss` counts shared pages in proportion; if a system has no such figure it is the resident set.
    """

    rss_bytes: int
    pss_bytes: int
    anonymous_bytes: int
    mapped_bytes: int


class DeviceUsage(msgspec.Struct, frozen=True):
    """Current state of a device: share of time busy, bytes in use, watts, degrees Celsius. None if not reported."""

    device: str
    kind: str = ""
    busy_frac: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    asleep: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of the machine in one second; `at` is seconds since the epoch.

    `cpu_frac` is the share of all CPUs' time since the last sample. `cpu_power_w` is the CPU packages, `battery_w`
    the power drawn from a discharging battery; None if not readable. `parts` are the watts by part (`cpu`, `system`
    for the whole computer, a device's id), none counted twice; `power_w` is all that can be read.
    """

    at: float
    cpu_frac: float
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    cpu_power_w: float | None = None
    battery_w: float | None = None
    devices: tuple[DeviceUsage, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()
    power_w: float | None = None


# Reasons without numbers why a device is not usable. The window translates these by their English text.

NOT_INSTALLED: Final = "its library is not installed"
NO_KERNELS: Final = "no kernels for it are installed"
NOT_OFFERED: Final = "its driver does not offer it to the installed kernels"
NOT_TRIED: Final = "not tried yet"
NO_DRIVER_BOUND: Final = "no driver is bound to it"
DRIVER_SWITCHED_OFF: Final = "kernel parameters switch its driver off"
NO_DISPLAY_DRIVER: Final = "no display driver is installed"
NO_DRIVER: Final = "no driver is installed"
NO_BACKEND_KNOWN: Final = "no backend is known for it"
CORE_ML_ONLY: Final = "reached through Core ML only"
SET_ASIDE_FOR_VM: Final = "it is reserved for a virtual machine (vfio-pci)"
IOMMU_OFF: Final = "the IOMMU is switched off (amd_iommu=off)"
NOT_IN_CONTAINER: Final = "its device node is not in this container"
