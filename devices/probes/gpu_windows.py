"""GPUs of a Windows machine: DXGI for memory, the registry for driver and address, joined by id."""

import re
from collections.abc import Mapping

from devices import types
from devices.host import Host, Json, number, records, strings
from devices.probes import fix_hints, gpu_ids
from devices.probes.gpu_linux import unified_memory
from devices.types import Device, Evidence, Memory, SystemMemory

DISPLAY_CLASS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
ENUM = r"SYSTEM\CurrentControlSet\Enum"
DXGI_REMOTE_OR_SOFTWARE = 0x1 | 0x2
ID = re.compile(r"VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)
# The end of LocationInformation is the same in every language: "...;(197,0,0)".
LOCATION = re.compile(r"\((\d{1,3}),(\d{1,2}),(\d)\)\s*$", re.ASCII)


def windows_gpus(host: Host, ram: SystemMemory) -> list[Device]:
    """Hardware adapters, and display devices that are plugged in but have no driver."""
    drivers = _drivers(host)
    locations = _locations(host)
    gpus: dict[str, Device] = {}
    for adapter in records(host.api("dxgi_adapters")):
        vendor_id, device_id = number(adapter.get("vendor_id")), number(adapter.get("device_id"))
        flags = number(adapter.get("flags")) or 0
        if vendor_id is None or device_id is None or vendor_id == 0x1414 or flags & DXGI_REMOTE_OR_SOFTWARE:
            continue
        pci_id = f"{vendor_id & 0xFFFF:04x}:{device_id & 0xFFFF:04x}"
        device = _adapter(adapter, vendor_id, device_id, drivers.get(pci_id, {}), locations.get(pci_id, []), ram)
        gpus.setdefault(device.id, device)
    seen = {device.pci_id for device in gpus.values()}
    for pci_id, addresses in locations.items():
        if pci_id not in seen:
            for address in addresses:
                gpus.setdefault(address, _without_driver(pci_id, address, ram))
    return list(gpus.values())


def adrenalin_version(host: Host) -> str:
    """AMD's release of the display driver, such as 26.3.1, as its installer writes it; empty if there is none."""
    for name in host.registry_keys(DISPLAY_CLASS):
        if re.fullmatch(r"[0-9]{4}", name, re.ASCII):
            release = str(host.registry(f"{DISPLAY_CLASS}\\{name}").get("RadeonSoftwareVersion") or "")
            if re.match(r"\d{2}\.\d{1,2}\b", release, re.ASCII):
                return release[:32]
    return ""


def _drivers(host: Host) -> dict[str, Mapping[str, Json]]:
    drivers: dict[str, Mapping[str, Json]] = {}
    for name in host.registry_keys(DISPLAY_CLASS):
        if re.fullmatch(r"[0-9]{4}", name, re.ASCII):
            values = host.registry(f"{DISPLAY_CLASS}\\{name}")
            match = ID.search(str(values.get("MatchingDeviceId") or ""))
            if match:
                drivers.setdefault(f"{match[1]}:{match[2]}".lower(), values)
    return drivers


def _locations(host: Host) -> dict[str, list[str]]:
    """PCI id → addresses of display devices present now; the instance id if the address is unknown."""
    locations: dict[str, list[str]] = {}
    for instance in strings(host.api("present_pnp_ids")):
        match = ID.search(instance)
        values = host.registry(f"{ENUM}\\{instance}")
        guid = str(values.get("ClassGUID") or "").lower()
        compatible = " ".join(strings(values.get("CompatibleIDs"))).upper()
        if match is None or not ("4d36e968" in guid or "CC_03" in compatible):
            continue
        location = LOCATION.search(str(values.get("LocationInformation") or ""))
        address = f"0000:{int(location[1]):02x}:{int(location[2]):02x}.{location[3]}" if location else instance
        locations.setdefault(f"{match[1]}:{match[2]}".lower(), []).append(address)
    return locations


def _adapter(
    adapter: Mapping[str, Json],
    vendor_id: int,
    device_id: int,
    driver: Mapping[str, Json],
    addresses: list[str],
    ram: SystemMemory,
) -> Device:
    chip = gpu_ids.gpu_id(vendor_id, device_id)
    vendor = gpu_ids.VENDORS.get(vendor_id, f"vendor {vendor_id:04x}")
    pci = addresses[0] if len(addresses) == 1 and ":" in addresses[0][:5] else None
    if chip is not None:
        integrated, why = (
            chip.integrated,
            Evidence("PCI id table", f"{vendor_id:04x}:{device_id:04x}", chip.name),
        )
    elif isinstance(adapter.get("integrated"), bool):
        integrated = bool(adapter["integrated"])
        why = Evidence("DXCore", "IsIntegrated", str(integrated), 0.9)
    elif vendor_id in {0x17CB, 0x4D4F4351}:
        integrated, why = True, Evidence("DXGI", "vendor", "Qualcomm systems-on-chip only", 0.9)
    else:
        integrated = vendor_id == 0x8086 and (pci or "").endswith(":00:02.0")
        why = Evidence("PCI address", "slot", pci or "unknown", 0.6)
    dedicated, shared = number(adapter.get("dedicated")), number(adapter.get("shared"))
    size = number(driver.get("HardwareInformation.qwMemorySize"))
    if dedicated is None or (dedicated == 0 and size):
        dedicated = size
    if integrated:
        memory = unified_memory(ram, dedicated, None, shared, None)
    else:
        memory = Memory(dedicated, dedicated, None, None, None, dedicated, unified=False)
    version = str(driver.get("DriverVersion") or adapter.get("driver_version") or "")
    return Device(
        id=pci or f"luid:{adapter.get('luid') or f'{vendor_id:04x}-{device_id:04x}'}",
        kind="igpu" if integrated else "dgpu",
        vendor=vendor,
        name=gpu_ids.plain_name(str(adapter.get("description") or (chip.name if chip else f"{vendor} GPU"))),
        state="present",
        memory=memory,
        pci=pci,
        pci_id=f"{vendor_id & 0xFFFF:04x}:{device_id & 0xFFFF:04x}",
        arch=chip.arch if chip else None,
        driver=str(driver.get("InfSection") or "") or None,
        driver_version=version or None,
        reason=types.NOT_TRIED,
        fix_hint=fix_hints.TRY,
        evidence=(Evidence("DXGI", "adapter", str(adapter.get("description") or "")), why),
    )


def _without_driver(pci_id: str, address: str, ram: SystemMemory) -> Device:
    vendor_id, device_id = (int(part, 16) for part in pci_id.split(":"))
    chip = gpu_ids.gpu_id(vendor_id, device_id)
    vendor = gpu_ids.VENDORS.get(vendor_id, f"vendor {vendor_id:04x}")
    integrated = bool(chip and chip.integrated)
    return Device(
        id=address,
        kind="igpu" if integrated else "dgpu",
        vendor=vendor,
        name=f"{vendor} {chip.name}" if chip else f"{vendor} GPU {pci_id}",
        state="driver_missing",
        memory=unified_memory(ram, None, None, None, None) if integrated else Memory(),
        pci=address if ":" in address[:5] else None,
        pci_id=pci_id,
        arch=chip.arch if chip else None,
        reason=types.NO_DISPLAY_DRIVER,
        fix_hint=fix_hints.windows_driver(vendor),
        evidence=(Evidence("Plug and Play", "instance", address),),
    )
