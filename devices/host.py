"""The only interface between the probes and the operating system, so that a recording can replace a machine."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from devices.types import System

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class CommandResult(msgspec.Struct, frozen=True):
    """Exit code and output of a command; `returncode` None means it was missing or ran out of time."""

    returncode: int | None
    stdout: str = ""


class Host(Protocol):
    """Reads facts and changes nothing. No method raises for missing or unreadable sources.

    `api` returns by name what has no file: `machine` (x86_64, arm64), `affinity` (CPU numbers),
    `address_space_limit`, `memlock_limit` (bytes), `now` (seconds), `kernel`, `pci_name:VVVV:DDDD`,
    `memory_modules` (data_width_bits, speed_mts, size_bytes, soldered each), `nvml` (pci,
    power_mw, energy_mj each); on Windows `battery_state` (present, discharging, full_mwh, remaining_mwh, rate_mw),
    `memory_status`, `processor_features`, `logical_processors`, `present_pnp_ids`, `dxgi_adapters`,
    `windows_version`.
    """

    @property
    def system(self) -> System:
        """The operating system."""
        ...

    def read(self, path: str) -> bytes | None:
        """Content of a file (at most 1 MiB); None if it cannot be read."""
        ...

    def listdir(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder; empty if it cannot be read."""
        ...

    def readlink(self, path: str) -> str | None:
        """Target of a symbolic link."""
        ...

    def access(self, path: str) -> str:
        """`absent`, `denied` or `ok` (readable and writable by this user)."""
        ...

    def run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        """Run a command in the C locale; a missing one has returncode None."""
        ...

    def registry(self, key: str) -> Mapping[str, Json]:
        """Values of a key below HKEY_LOCAL_MACHINE."""
        ...

    def registry_keys(self, key: str) -> tuple[str, ...]:
        """Subkeys of a key below HKEY_LOCAL_MACHINE."""
        ...

    def sysctl(self, name: str) -> int | str | None:
        """A macOS sysctl."""
        ...

    def env(self, name: str) -> str | None:
        """An environment variable."""
        ...

    def api(self, name: str) -> Json:
        """A fact that has no file; None if this system does not offer it."""
        ...


def text(host: Host, path: str) -> str:
    """A file as stripped text; invalid UTF-8 is replaced, an unreadable file is empty."""
    return (host.read(path) or b"").decode("utf-8", "replace").replace("\0", "").strip()


def number(value: object) -> int | None:
    """An integer from decimal or 0x text, or None; negative values are rejected because none is valid here."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if isinstance(value, float):
        return int(value) if 0 <= value < 2**63 else None
    if not isinstance(value, str):
        return None
    digits = value.strip().lower()
    if re.fullmatch(r"0x[0-9a-f]{1,16}", digits):
        return int(digits, 16)
    return int(digits) if re.fullmatch(r"[0-9]{1,20}", digits, re.ASCII) else None


def read_number(host: Host, path: str) -> int | None:
    """The integer in a file."""
    return number(text(host, path))


MAX_CPUS = 8192


def cpu_list(listing: str) -> frozenset[int]:
    """CPU numbers of a kernel list such as `0-3,8,10-11`; invalid parts are skipped."""
    cpus: set[int] = set()
    for part in listing.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = number(first), number(last if dash else first)
        if low is not None and high is not None and low <= high < MAX_CPUS:
            cpus.update(range(low, high + 1))
    return frozenset(cpus)


def fields(block: str, separator: str = ":") -> dict[str, str]:
    """`key: value` lines as a dict; the first of a repeated key is used."""
    values: dict[str, str] = {}
    for line in block.splitlines():
        key, sep, value = line.partition(separator)
        if sep:
            values.setdefault(key.strip(), value.strip())
    return values


def records(value: Json) -> tuple[Mapping[str, Json], ...]:
    """The mappings in a list; other values are skipped."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(item for item in value if isinstance(item, Mapping))
    return ()


def strings(value: Json) -> tuple[str, ...]:
    """The strings in a list; other values are skipped."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(item for item in value if isinstance(item, str))
    return ()


def integers(value: Json) -> tuple[int, ...]:
    """The integers in a list; other values are skipped."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool))
    return ()


def suspended(host: Host, address: str | None) -> bool:
    """Whether a PCI device is asleep; reading this does not wake it. Linux only."""
    return text(host, f"/sys/bus/pci/devices/{address}/power/runtime_status") == "suspended"


# One of Tessera's models adds one runnable thread per core.
_BUSY_LOAD = 1.5
# "0.20 0.18 0.12 1/80 11206": averages of 1, 5 and 15 minutes, threads that want to run now, and all. Linux only.
_LOADAVG = Path("/proc/loadavg")


def is_busy() -> bool:
    """Whether more threads want to run than there are cores, so that responses start late.

    The average of one minute must say so and, on Linux, this moment too: the average stays high for a minute after
    a build has ended. Windows has neither.
    """
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return False
    return load > _BUSY_LOAD * cores and _runnable_now(cores + 1) > cores


def _runnable_now(unknown: int) -> int:
    """Threads that want to run at this moment, this one included; `unknown` where the system does not say."""
    try:
        return int(_LOADAVG.read_text("ascii").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return unknown
