"""Power and energy of NVIDIA's GPUs from the driver's own library, without a process for each look."""

import ctypes
import sys
from typing import Final

from devices.host import Json

_MOST_GPUS: Final = 64
_NAMES: Final = ("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1",)


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = [
        ("legacy_address", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("address", ctypes.c_char * 32),
    ]


def nvml_samples() -> Json:
    """Address, milliwatts and millijoules since the driver began, of each GPU; None without the library.

    The library is closed again: a process that keeps it open keeps the GPU awake.
    """
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if library.nvmlInit_v2() != 0:
            return None
        try:
            return _samples(library)
        finally:
            library.nvmlShutdown()
    return None


def _samples(library: ctypes.CDLL) -> list[dict[str, Json]]:
    count = ctypes.c_uint(0)
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found: list[dict[str, Json]] = []
    for index in range(min(count.value, _MOST_GPUS)):
        handle, pci = ctypes.c_void_p(), _Pci()
        milliwatts, millijoules = ctypes.c_uint(0), ctypes.c_ulonglong(0)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        if library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) != 0:
            continue
        # Older cards tell power but no energy, and some neither.
        power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0
        energy = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)) == 0
        found.append(
            {
                "pci": pci.address.decode("ascii", "replace").lower(),
                "power_mw": milliwatts.value if power else None,
                "energy_mj": millijoules.value if energy else None,
            }
        )
    return found
