"""Builds a Machine from a Host: the inventory reads only files; `detailed` also runs the vendors' commands."""

from msgspec.structs import replace

from devices import types
from devices.chips import with_chips
from devices.distribution import distribution, is_container
from devices.host import Host, text
from devices.power import meters
from devices.probes.cpu import Cpu, probe_cpu
from devices.probes.gpu_linux import linux_gpus
from devices.probes.nvidia import with_nvidia_smi
from devices.probes.pci import pci_functions
from devices.probes.ram import system_memory
from devices.system_checks import driver_versions, harmful_variables, machine_findings
from devices.types import Device, Machine, Memory, SystemMemory


def inventory(host: Host) -> Machine:
    """Hardware from files, registry and Plug and Play only: loads no driver and wakes no device.

    Takes well under 100 ms. A missing, unreadable or invalid source results in `unknown` or None.
    """
    cpu = probe_cpu(host)
    ram = system_memory(host, cpu.name)
    kernel = _kernel(host)
    gpus: list[Device] = []
    npus: list[Device] = []
    if host.system == "linux":
        from devices.probes.npu import linux_npus

        functions = pci_functions(host)
        gpus = linux_gpus(host, functions, ram, cpu.name)
        npus = linux_npus(host, functions, ram, kernel)
    elif host.system == "windows":
        from devices.probes.gpu_windows import windows_gpus
        from devices.probes.npu import windows_npus

        gpus, npus = windows_gpus(host, ram), windows_npus(host, ram)
    elif host.system == "macos":
        from devices.probes.apple import apple_devices

        gpus = apple_devices(host, cpu, ram)
    ram = _with_carve_out(ram, gpus)
    devices = _unique([_cpu_device(cpu, ram), *gpus, *npus])
    machine = with_chips(
        Machine(
            system=host.system,
            kernel=kernel,
            arch=cpu.arch or "unknown",
            environment=_environment(host, cpu),
            product=_product(host),
            memory=ram,
            devices=devices,
            distribution=distribution(host).name if host.system == "linux" else "",
            versions=driver_versions(host),
            variables=harmful_variables(host),
        )
    )
    return replace(machine, findings=machine_findings(host, machine))


def detailed(host: Host) -> Machine:
    """The inventory plus the output of vendors' commands and the power meters; each has a limit of seconds."""
    machine = inventory(host)
    devices = with_nvidia_smi(host, machine.devices, machine.memory)
    return with_chips(replace(machine, devices=devices, meters=meters(host, devices)))


def _kernel(host: Host) -> str:
    names = {"linux": "kernel", "macos": "kernel", "windows": "windows_version"}
    value = host.api(names.get(host.system, "kernel"))
    if isinstance(value, str) and value:
        return value
    return text(host, "/proc/sys/kernel/osrelease")


def _product(host: Host) -> str:
    if host.system == "linux":
        words = [text(host, f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
        return " ".join(word for word in words if word)
    if host.system == "windows":
        values = host.registry(r"HARDWARE\DESCRIPTION\System\BIOS")
        words = [str(values.get(name) or "") for name in ("SystemManufacturer", "SystemProductName")]
        return " ".join(word for word in words if word)
    return str(host.sysctl("hw.model") or "")


def _environment(host: Host, cpu: Cpu) -> str:
    if host.system == "linux":
        if host.access("/dev/dxg") != "absent" or "microsoft" in text(host, "/proc/sys/kernel/osrelease").lower():
            return "wsl2"
        if is_container(host):
            return "container"
    return "vm" if cpu.hypervisor else ""


def _cpu_device(cpu: Cpu, ram: SystemMemory) -> Device:
    return Device(
        id="cpu",
        kind="cpu",
        vendor=cpu.vendor or "unknown",
        name=cpu.name or "unknown CPU",
        state="present",
        memory=Memory(
            physical_bytes=ram.installed_bytes or ram.total_bytes,
            shared_limit_bytes=_smallest(ram.total_bytes, ram.limit_bytes),
            available_bytes=ram.available_bytes,
            unified=True,
            bandwidth_gbs=ram.bandwidth_gbs,
            bandwidth_source=ram.bandwidth_source,
        ),
        arch=cpu.arch or None,
        isa=tuple(sorted(cpu.isa)),
        cores=cpu.cores,
        reason=types.NOT_TRIED,
        fix_hint="Run `tessera doctor` to try the CPU's kernels.",
        evidence=cpu.evidence,
    )


def _smallest(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _with_carve_out(ram: SystemMemory, gpus: list[Device]) -> SystemMemory:
    """Installed RAM if DMI does not report it: the OS-visible RAM plus the largest carve-out."""
    if ram.installed_bytes is not None or ram.total_bytes is None:
        return ram
    carve = max((gpu.memory.dedicated_bytes or 0 for gpu in gpus if gpu.kind == "igpu"), default=0)
    return replace(ram, installed_bytes=ram.total_bytes + carve)


def _unique(devices: list[Device]) -> tuple[Device, ...]:
    """One entry per id: the first one is used."""
    devices_by_id: dict[str, Device] = {}
    for device in devices:
        devices_by_id.setdefault(device.id.lower(), device)
    return tuple(devices_by_id.values())
