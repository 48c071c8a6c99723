"""Host for the machine that this process runs on."""

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devices.environment import without_secrets
from devices.host import CommandResult, Json
from devices.programs import installed_program
from devices.smbios import memory_modules
from devices.types import System

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
    """Address, milliwatts and millijoules since the driver started, for each GPU; None without the library.

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
    samples: list[dict[str, Json]] = []
    for index in range(min(count.value, _MOST_GPUS)):
        handle, pci = ctypes.c_void_p(), _Pci()
        milliwatts, millijoules = ctypes.c_uint(0), ctypes.c_ulonglong(0)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        if library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) != 0:
            continue
        # Older cards report power but no energy, and some neither.
        power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0
        energy = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)) == 0
        samples.append(
            {
                "pci": pci.address.decode("ascii", "replace").lower(),
                "power_mw": milliwatts.value if power else None,
                "energy_mj": millijoules.value if energy else None,
            }
        )
    return samples


MAX_FILE_BYTES = 1 << 20
MAX_SYSCTL_BYTES = 4096
SYSTEMS: dict[str, System] = {"linux": "linux", "win32": "windows", "cygwin": "windows", "darwin": "macos"}
PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}


class RealHost:
    """Reads this machine. Stateless: every call queries the system again."""

    @property
    def system(self) -> System:
        return SYSTEMS.get(sys.platform, "unknown")

    def read(self, path: str) -> bytes | None:
        """Content of a file, up to a size limit; None if it cannot be read."""
        try:
            with Path(path).open("rb", buffering=0) as file:
                return file.read(MAX_FILE_BYTES)
        except (OSError, ValueError):
            return None

    def listdir(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder."""
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208 - names, many of them, fast
        except OSError:
            return ()

    def readlink(self, path: str) -> str | None:
        """Target of a symbolic link."""
        try:
            return os.readlink(path)  # noqa: PTH115 - the raw target, not a Path
        except OSError:
            return None

    def access(self, path: str) -> str:
        """`absent`, `denied` or `ok`."""
        try:
            Path(path).stat()
        except PermissionError:
            return "denied"
        except (OSError, ValueError):
            return "absent"
        return "ok" if os.access(path, os.R_OK | os.W_OK) else "denied"

    def run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        """Run a command in the C locale."""
        program = installed_program(argv[0])
        if program is None:
            return CommandResult(None)
        environment = without_secrets({"LC_ALL": "C", "LANG": "C"})
        try:
            done = subprocess.run(  # the probes' own fixed argument lists
                [program, *argv[1:]],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return CommandResult(None)
        return CommandResult(done.returncode, done.stdout[:MAX_FILE_BYTES].decode("utf-8", "replace"))

    def registry(self, key: str) -> Mapping[str, Json]:
        """Values of a key below HKEY_LOCAL_MACHINE."""
        if sys.platform == "win32":
            from devices import host_windows

            return host_windows.registry_values(key)
        return {}

    def registry_keys(self, key: str) -> tuple[str, ...]:
        """Subkeys of a key below HKEY_LOCAL_MACHINE."""
        if sys.platform == "win32":
            from devices import host_windows

            return host_windows.registry_keys(key)
        return ()

    def sysctl(self, name: str) -> int | str | None:
        """A macOS sysctl, read through libSystem in microseconds, without a process."""
        return _sysctl(name) if sys.platform == "darwin" else None

    def env(self, name: str) -> str | None:
        """An environment variable."""
        return os.environ.get(name)

    def api(self, name: str) -> Json:
        """A fact that has no file."""
        kind, _, argument = name.partition(":")
        if kind == "pci_name":
            return _pci_name(argument)
        getter = GETTERS.get(kind)
        if getter is not None:
            with contextlib.suppress(OSError, ValueError):
                return getter()
            return None
        if sys.platform == "win32":
            from devices import host_windows

            return host_windows.api(name)
        return None


def _machine() -> str:
    machine = platform.machine().lower()
    return ARCHITECTURES.get(machine, machine)


def _affinity() -> Json:
    get = getattr(os, "sched_getaffinity", None)  # Linux only
    return sorted(get(0)) if get else None


def _limit(name: str) -> int | None:
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            return int(soft)
    return None


def _memory_modules() -> Json:
    """Modules in the SMBIOS table, which only root may read on Linux."""
    try:
        table = Path("/sys/firmware/dmi/tables/DMI").read_bytes()[:MAX_FILE_BYTES]
    except OSError:
        return None
    return memory_modules(table)


GETTERS: dict[str, Callable[[], Json]] = {
    "machine": _machine,
    "affinity": _affinity,
    "address_space_limit": lambda: _limit("RLIMIT_AS"),
    "memlock_limit": lambda: _limit("RLIMIT_MEMLOCK"),
    "now": time.time,
    "kernel": platform.release,
    "nvml": nvml_samples,
}
if sys.platform == "linux":
    GETTERS["memory_modules"] = _memory_modules


def _pci_name(vendor_device: str) -> str | None:
    """The name of `vvvv:dddd` in the distribution's PCI database."""
    vendor, _, device = vendor_device.lower().partition(":")
    for path in PCI_IDS:
        try:
            database = Path(path).read_bytes()
        except OSError:
            continue
        start = database.find(f"\n{vendor}  ".encode())
        if start < 0:
            continue
        for line in database[start + 1 :].splitlines()[1:]:
            if not line.startswith((b"\t", b"#")):
                break
            if line.startswith(f"\t{device}  ".encode()):
                return line[1:].decode("utf-8", "replace").partition("  ")[2]
    return None


def _sysctl(name: str) -> int | str | None:
    library = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if (
        library.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0
        or not 0 < size.value <= MAX_SYSCTL_BYTES
    ):
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) != 0:
        return None
    raw = buffer.raw[: size.value]
    if size.value in (4, 8) and not name.endswith((".name", "brand_string", "model")):
        return int.from_bytes(raw, sys.byteorder)
    return raw.rstrip(b"\0").decode("utf-8", "replace")
