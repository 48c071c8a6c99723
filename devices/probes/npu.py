"""NPUs: found by PCI or PnP id, checked for driver, node permission, firmware, IOMMU and generation."""

import re

import msgspec

from devices import types
from devices.distribution import iommu_switches, is_container, set_kernel_parameters
from devices.host import Host, number, strings, text
from devices.probes import fix_hints
from devices.probes.pci import PciFunction
from devices.types import Device, Evidence, Memory, State, SystemMemory

# NPU ids: a class code alone is not enough, because Intel laptops have other functions of the same class.


class NpuId(msgspec.Struct, frozen=True):
    """A known NPU: generation, name, the Linux driver it needs, and whether language models run on it."""

    vendor: str
    name: str
    generation: str
    driver: str
    since_kernel: tuple[int, int]
    llm: bool


def _amd(name: str, generation: str, *, llm: bool) -> NpuId:
    return NpuId("AMD", name, generation, "amdxdna", (6, 14), llm)


def _intel(name: str, since: tuple[int, int] = (6, 3)) -> NpuId:
    return NpuId("Intel", name, "NPU", "intel_vpu", since, llm=True)


# (vendor, device): the NPU. AMD's 17f0 is several models, which differ by revision.
TABLE: dict[tuple[int, int], NpuId] = {
    (0x1022, 0x1502): _amd("NPU (Phoenix/Hawk Point)", "XDNA1", llm=False),
    (0x1022, 0x17F0): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x17F1): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x17F2): _amd("NPU", "XDNA2", llm=True),
    (0x1022, 0x1B0A): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x1022, 0x1B0B): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x1022, 0x1B0C): _amd("NPU", "XDNA2 or newer", llm=True),
    (0x8086, 0x7D1D): _intel("AI Boost (Meteor Lake)"),
    (0x8086, 0xAD1D): _intel("AI Boost (Arrow Lake)"),
    (0x8086, 0x643E): _intel("AI Boost (Lunar Lake)", (6, 11)),
    (0x8086, 0xB03E): _intel("AI Boost (Panther Lake)", (6, 14)),
    (0x8086, 0xFD3E): _intel("AI Boost (Wildcat Lake)", (6, 18)),
}
AMD_REVISIONS = {0x10: "NPU (Strix Point)", 0x11: "NPU (Strix Halo)", 0x20: "NPU (Krackan Point)"}
# A function bound to one of these drivers is an NPU with any id, so models newer than the table are found too.
DRIVERS = {"amdxdna": "AMD", "intel_vpu": "Intel"}
VIRTUAL_FUNCTIONS = frozenset({(0x1022, 0x17F3)})


def npu_id(vendor: int, device: int, revision: int | None, driver: str | None) -> NpuId | None:
    """The NPU of a PCI function, by id or by the driver bound to it; None if it is not an NPU."""
    if (vendor, device) in VIRTUAL_FUNCTIONS:
        return None
    npu = TABLE.get((vendor, device))
    if npu is not None:
        name = AMD_REVISIONS.get(revision or 0) if device == 0x17F0 else None
        return NpuId(npu.vendor, name or npu.name, npu.generation, npu.driver, npu.since_kernel, npu.llm)
    if driver in DRIVERS:
        return NpuId(DRIVERS[driver], "NPU", "unknown", driver, (0, 0), llm=True)
    return None


# An NPU maps model buffers as locked memory; distributions default to 8 MiB or an eighth of RAM.
MIN_MEMLOCK_BYTES = 64 << 20
LLM_FIRMWARE = (1, 1)
PNP_PCI = re.compile(r"^PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})(?:.*?&REV_([0-9A-F]{2}))?", re.IGNORECASE)
PNP_QUALCOMM = re.compile(r"^(PCI\\VEN_QCOM&DEV_0C40|ACPI\\(VEN_)?QCOM(&DEV_)?0(C40|D0A|A40))", re.IGNORECASE)


def linux_npus(host: Host, functions: tuple[PciFunction, ...], ram: SystemMemory, kernel: str) -> list[Device]:
    """NPUs of a Linux machine, usable or not."""
    npus = []
    for f in functions:
        npu = npu_id(f.vendor, f.device, f.revision, f.driver) if f.base_class != 0x03 else None
        if npu is not None:
            npus.append(_linux_npu(host, f, npu, ram, kernel))
    nodes = [name for name in host.listdir("/dev") if name.startswith("fastrpc-cdsp")]
    if nodes:
        npus.append(_hexagon(host, f"/dev/{nodes[0]}", ram))
    return npus


def _linux_npu(host: Host, f: PciFunction, npu: NpuId, ram: SystemMemory, kernel: str) -> Device:
    accel = next((name for name in host.listdir(f"{f.path}/accel") if name.startswith("accel")), None)
    firmware = text(host, f"{f.path}/fw_version")
    state, reason, hint = _linux_state(host, f, npu, accel, firmware, kernel)
    return Device(
        id=f.address,
        kind="npu",
        vendor=npu.vendor,
        name=f"{npu.vendor} {npu.name}",
        state=state,
        memory=Memory(
            physical_bytes=ram.installed_bytes or ram.total_bytes,
            unified=True,
            bandwidth_gbs=ram.bandwidth_gbs,
            bandwidth_source=ram.bandwidth_source,
        ),
        pci=f.address,
        pci_id=f.pci_id,
        arch=npu.generation,
        driver=f.driver,
        driver_version=firmware or None,
        reason=reason,
        fix_hint=hint,
        evidence=(
            Evidence(f"{f.path}/uevent", "PCI_ID", f.pci_id),
            Evidence(f"{f.path}/fw_version", "firmware", firmware or "unknown"),
        ),
    )


def _linux_state(
    host: Host, f: PciFunction, npu: NpuId, accel: str | None, firmware: str, kernel: str
) -> tuple[State, str, str]:
    off = iommu_switches(text(host, "/proc/cmdline").split())
    if npu.vendor == "AMD" and off:
        return "failed", types.IOMMU_OFF, fix_hints.npu_iommu(set_kernel_parameters(host, "iommu=pt", off))
    if f.driver is None:
        return (
            "driver_missing",
            types.NO_DRIVER_BOUND,
            fix_hints.npu_kernel(npu.driver, npu.since_kernel, kernel),
        )
    if accel is None:
        return "failed", f"{f.driver} is bound but offers no device node", fix_hints.firmware(f.driver, f.address)
    if host.access(f"/dev/accel/{accel}") == "denied":
        group = fix_hints.container_group if is_container(host) else fix_hints.render_group
        return "no_permission", f"/dev/accel/{accel} may not be opened", group(f"/dev/accel/{accel}")
    if host.access(f"/dev/accel/{accel}") == "absent":
        return "failed", f"/dev/accel/{accel} is missing", fix_hints.container_device(f"/dev/accel/{accel}")
    if not npu.llm:
        return "present", f"{npu.generation}: no runtime for language models", fix_hints.NPU_XDNA1
    version = tuple(int(part) for part in re.findall(r"[0-9]{1,6}", firmware, re.ASCII)[:2])
    if npu.vendor == "AMD" and len(version) == 2 and version < LLM_FIRMWARE:
        return "failed", f"its firmware {firmware} is too old", fix_hints.NPU_FIRMWARE
    memlock = number(host.api("memlock_limit"))
    if npu.vendor == "AMD" and memlock is not None and memlock < MIN_MEMLOCK_BYTES:
        return "failed", f"only {memlock >> 10} KiB may be locked", fix_hints.NPU_MEMLOCK
    return "present", types.NOT_TRIED, fix_hints.NPU_RUNTIME[npu.vendor]


def _hexagon(host: Host, node: str, ram: SystemMemory) -> Device:
    denied = host.access(node) == "denied"
    return Device(
        id="npu:hexagon",
        kind="npu",
        vendor="Qualcomm",
        name="Qualcomm Hexagon NPU",
        state="no_permission" if denied else "present",
        memory=Memory(physical_bytes=ram.installed_bytes or ram.total_bytes, unified=True),
        driver="fastrpc",
        reason=f"{node} may not be opened" if denied else types.NOT_TRIED,
        fix_hint=fix_hints.node(node) if denied else fix_hints.NPU_RUNTIME["Qualcomm"],
        evidence=(Evidence(node, "access", host.access(node)),),
    )


def windows_npus(host: Host, ram: SystemMemory) -> list[Device]:
    """NPUs among the devices that Plug and Play reports as present."""
    npus: dict[str, Device] = {}
    for instance in strings(host.api("present_pnp_ids")):
        npu = _pnp_npu(instance)
        if npu is None:
            continue
        identity = instance.partition("\\")[2].partition("\\")[0]
        values = host.registry(rf"SYSTEM\CurrentControlSet\Enum\{instance}")
        driver_key = values.get("Driver")
        driver = host.registry(rf"SYSTEM\CurrentControlSet\Control\Class\{driver_key}") if driver_key else {}
        version = str(driver.get("DriverVersion") or "")
        state, reason, hint = _windows_state(npu, version)
        npus[identity] = Device(
            id=instance,
            kind="npu",
            vendor=npu.vendor,
            name=f"{npu.vendor} {npu.name}",
            state=state,
            memory=Memory(physical_bytes=ram.installed_bytes or ram.total_bytes, unified=True),
            pci_id=_pci_id(instance),
            arch=npu.generation,
            driver=str(values.get("Service") or "") or None,
            driver_version=version or None,
            reason=reason,
            fix_hint=hint,
            evidence=(Evidence("Plug and Play", "instance", instance),),
        )
    return list(npus.values())


def _pci_id(instance: str) -> str | None:
    match = PNP_PCI.match(instance)
    return f"{match[1]}:{match[2]}".lower() if match else None


def _pnp_npu(instance: str) -> NpuId | None:
    if PNP_QUALCOMM.match(instance):
        return NpuId("Qualcomm", "Hexagon NPU", "Hexagon", "", (0, 0), llm=True)
    match = PNP_PCI.match(instance)
    if match is None:
        return None
    revision = int(match[3], 16) if match[3] else None
    return npu_id(int(match[1], 16), int(match[2], 16), revision, None)


def _windows_state(npu: NpuId, version: str) -> tuple[State, str, str]:
    if not version:
        return "driver_missing", types.NO_DRIVER, fix_hints.windows_driver(npu.vendor)
    if not npu.llm:
        return "present", f"{npu.generation}: no runtime for language models", fix_hints.NPU_XDNA1
    return "present", types.NOT_TRIED, fix_hints.npu_runtime_windows(npu.vendor)
