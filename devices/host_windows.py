"""Windows facts that have no file: registry, device list, adapters, cores. Imported on Windows only."""

import ctypes
import sys
import uuid
from collections.abc import Callable, Mapping
from ctypes import wintypes

from devices.host import Json
from devices.smbios import memory_modules

assert sys.platform == "win32"

import winreg

MAX_ENTRIES = 4096
DXGI_FACTORY1 = uuid.UUID("770aae78-f26f-4dba-a829-253c83d1b387")
# PF_ARM_V82_DP 43, PF_AVX2 40, PF_AVX512F 41 and others: winnt.h numbers below 96.
PROCESSOR_FEATURES = range(96)


def registry_values(key: str) -> Mapping[str, Json]:
    """Values of a key below HKEY_LOCAL_MACHINE; binary values become little-endian integers."""
    values: dict[str, Json] = {}
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
            for index in range(min(winreg.QueryInfoKey(handle)[1], MAX_ENTRIES)):
                name, value, _ = winreg.EnumValue(handle, index)
                if isinstance(value, bytes):
                    value = int.from_bytes(value, "little") if len(value) in (4, 8) else None
                values[name] = value
    except OSError:
        return values
    return values


def registry_keys(key: str) -> tuple[str, ...]:
    """Subkeys of a key below HKEY_LOCAL_MACHINE."""
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
            count = min(winreg.QueryInfoKey(handle)[0], MAX_ENTRIES)
            return tuple(winreg.EnumKey(handle, index) for index in range(count))
    except OSError:
        return ()


def api(name: str) -> Json:
    """A fact by name, or None."""
    getter = GETTERS.get(name)
    if getter is None:
        return None
    try:
        return getter()
    except (OSError, AttributeError, ValueError):
        return None


class _MemoryStatus(ctypes.Structure):
    _fields_ = [
        ("length", wintypes.DWORD),
        ("load", wintypes.DWORD),
        ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64),
        ("total_page_file", ctypes.c_uint64),
        ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("available_virtual", ctypes.c_uint64),
        ("available_extended_virtual", ctypes.c_uint64),
    ]


def _memory_status() -> Json:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    installed = ctypes.c_uint64(0)
    succeeded = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(installed))
    return {
        "total": status.total_physical,
        "available": status.available_physical,
        "commit_available": status.available_page_file,
        "installed": installed.value * 1024 if succeeded else None,
    }


def _processor_features() -> Json:
    present = ctypes.windll.kernel32.IsProcessorFeaturePresent
    return [feature for feature in PROCESSOR_FEATURES if present(feature)]


def _logical_processors() -> Json:
    """One record per physical core: its efficiency class (higher is faster) and number of hardware threads."""
    query = ctypes.windll.kernel32.GetLogicalProcessorInformationEx
    size = wintypes.DWORD(0)
    query(0, None, ctypes.byref(size))
    if not 0 < size.value <= 1 << 20:
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if not query(0, buffer, ctypes.byref(size)):
        return None
    raw, cores, at = buffer.raw, [], 0
    while at + 48 <= size.value:
        length = int.from_bytes(raw[at + 4 : at + 8], "little")
        if length < 48:
            break
        groups = int.from_bytes(raw[at + 30 : at + 32], "little")
        masks = (int.from_bytes(raw[at + 32 + 16 * g : at + 40 + 16 * g], "little") for g in range(groups))
        cores.append({"efficiency": raw[at + 9], "logical": sum(mask.bit_count() for mask in masks)})
        at += length
    return cores


def _present_pnp_ids() -> Json:
    """Instance ids of devices that are plugged in now: the registry also lists removed ones."""
    manager = ctypes.windll.cfgmgr32
    ids: list[str] = []
    for enumerator in ("PCI", "ACPI"):
        size = wintypes.ULONG(0)
        flags = 0x1 | 0x100  # CM_GETIDLIST_FILTER_ENUMERATOR, CM_GETIDLIST_FILTER_PRESENT
        if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(size), enumerator, flags):
            continue
        buffer = ctypes.create_unicode_buffer(size.value)
        if manager.CM_Get_Device_ID_ListW(enumerator, buffer, size, flags):
            continue
        ids += [name for name in buffer[: size.value].split("\0") if name]
    return ids


class _AdapterDescription(ctypes.Structure):
    _fields_ = [
        ("description", ctypes.c_wchar * 128),
        ("vendor_id", wintypes.UINT),
        ("device_id", wintypes.UINT),
        ("subsystem_id", wintypes.UINT),
        ("revision", wintypes.UINT),
        ("dedicated", ctypes.c_size_t),
        ("dedicated_system", ctypes.c_size_t),
        ("shared", ctypes.c_size_t),
        ("luid_low", wintypes.DWORD),
        ("luid_high", wintypes.LONG),
        ("flags", wintypes.UINT),
    ]


def _method(pointer: ctypes.c_void_p, slot: int, *types: type) -> Callable[..., int]:
    """A COM method by its slot in the virtual table."""
    table = ctypes.cast(pointer, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
    return ctypes.WINFUNCTYPE(ctypes.c_long, ctypes.c_void_p, *types)(table[slot])


def _dxgi_adapters() -> Json:
    """Adapters. Slots: Release 2, IDXGIFactory1.EnumAdapters1 12, IDXGIAdapter1.GetDesc1 10."""
    factory = ctypes.c_void_p()
    interface_id = (ctypes.c_ubyte * 16).from_buffer_copy(DXGI_FACTORY1.bytes_le)
    if ctypes.windll.dxgi.CreateDXGIFactory1(ctypes.byref(interface_id), ctypes.byref(factory)) != 0:
        return None
    enumerate_adapter = _method(factory, 12, wintypes.UINT, ctypes.POINTER(ctypes.c_void_p))
    adapters = []
    for index in range(64):
        adapter = ctypes.c_void_p()
        if enumerate_adapter(factory, index, ctypes.byref(adapter)) != 0:
            break
        described = _AdapterDescription()
        if _method(adapter, 10, ctypes.POINTER(_AdapterDescription))(adapter, ctypes.byref(described)) == 0:
            adapters.append(
                {
                    "description": described.description,
                    "vendor_id": described.vendor_id,
                    "device_id": described.device_id,
                    "revision": described.revision,
                    "dedicated": described.dedicated,
                    "shared": described.shared,
                    "luid": f"{described.luid_high & 0xFFFFFFFF:08x}:{described.luid_low:08x}",
                    "flags": described.flags,
                }
            )
        _method(adapter, 2)(adapter)
    _method(factory, 2)(factory)
    return adapters


class _BatteryState(ctypes.Structure):
    """SYSTEM_BATTERY_STATE of winnt.h; amounts in milliwatt hours, `rate` in milliwatts."""

    _fields_ = [
        ("on_mains", wintypes.BOOLEAN),
        ("present", wintypes.BOOLEAN),
        ("charging", wintypes.BOOLEAN),
        ("discharging", wintypes.BOOLEAN),
        ("spare", wintypes.BOOLEAN * 3),
        ("tag", ctypes.c_ubyte),
        ("full", wintypes.DWORD),
        ("remaining", wintypes.DWORD),
        ("rate", ctypes.c_int32),
        ("estimated_s", wintypes.DWORD),
        ("alert_low", wintypes.DWORD),
        ("alert_empty", wintypes.DWORD),
    ]


def _battery_state() -> Json:
    state = _BatteryState()
    # Level 5 is SystemBatteryState; it has no input and returns the driver's last report.
    if ctypes.windll.powrprof.CallNtPowerInformation(5, None, 0, ctypes.byref(state), ctypes.sizeof(state)):
        return None
    return {
        "present": bool(state.present),
        "discharging": bool(state.discharging),
        "full_mwh": state.full,
        "remaining_mwh": state.remaining,
        "rate_mw": state.rate,
    }


def _windows_version() -> Json:
    version = sys.getwindowsversion()
    return f"{version.major}.{version.minor}.{version.build}"


def _memory_modules() -> Json:
    """Modules in the raw SMBIOS table, whose first 8 bytes are Windows' own header."""
    provider = 0x52534D42  # "RSMB"
    size = ctypes.windll.kernel32.GetSystemFirmwareTable(provider, 0, None, 0)
    if not 8 < size <= 1 << 20:
        return None
    buffer = ctypes.create_string_buffer(size)
    ctypes.windll.kernel32.GetSystemFirmwareTable(provider, 0, buffer, size)
    return memory_modules(buffer.raw[8:])


GETTERS: dict[str, Callable[[], Json]] = {
    "battery_state": _battery_state,
    "memory_status": _memory_status,
    "processor_features": _processor_features,
    "logical_processors": _logical_processors,
    "present_pnp_ids": _present_pnp_ids,
    "dxgi_adapters": _dxgi_adapters,
    "memory_modules": _memory_modules,
    "windows_version": _windows_version,
}
