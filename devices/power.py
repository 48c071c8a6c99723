"""Finds and reads the power meters of a computer. The only place that reads power.

A meter covers a part: `cpu` (CPU packages with their memory controllers), a device by its id, or `system`, the
whole computer. An integrated GPU is powered through the package; if that has a meter, the GPU counts there.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from devices.battery import read_battery
from devices.host import Host, read_number, records, suspended, text
from devices.types import Device, Meter

POWERCAP: Final = "/sys/class/powercap"
HWMON: Final = "/sys/class/hwmon"
CPU: Final = "cpu"
SYSTEM: Final = "system"
# Top zones of RAPL and what they cover; `core` and `uncore` are parts of a package, -mmio zones the same packages
# again. Source: kernel Documentation/power/powercap.
_ZONES: Final = {"package": CPU, "psys": SYSTEM}
# hwmon drivers that report the power of a CPU or computer, by label. Source: the drivers' own documentation.
_MONITORS: Final = {
    "zenpower": {"SVI2_P_Core": CPU, "SVI2_P_SoC": CPU},
    "amd_energy": {"Esocket0": CPU, "Esocket1": CPU},
    "macsmc_hwmon": {"Total System Power": SYSTEM},
}
_MOST_INPUTS: Final = 40
# NVIDIA's library is opened and closed for each reading, so that a GPU may sleep in between.
NVML_EVERY_S: Final = 2.0
_TRIED: Final = "read in tests from recorded files; no such meter was at hand"
READ_RAPL: Final = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"


class Draw(msgspec.Struct, frozen=True):
    """One meter's reading: mean watts since the previous reading if it counts joules, else current watts."""

    meter: str
    part: str
    watts: float
    counted: bool


class RateCounter:
    """Converts a growing counter to a rate per second; it may wrap around at `span`."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def rate(self, value: int | None, now: float, span: int | None = None) -> float | None:
        """Growth per second since the previous call; None at the first call, and after a reset of the counter."""
        if value is None:
            return None
        before, self._last = self._last, (now, value)
        if before is None or now <= before[0]:
            return None
        grown = value - before[1]
        if grown < 0:
            if not span:
                return None
            grown += span
        return grown / (now - before[0])


class _Source(msgspec.Struct, frozen=True):
    """A file of a meter: a counter of microjoules, or microwatts."""

    meter: str
    part: str
    path: str
    span: str = ""

    @property
    def counts(self) -> bool:
        return "energy" in self.path.rpartition("/")[2]


class PowerMeters:
    """Reads one host's meters repeatedly, from one thread at a time. The first reading has no counted watts."""

    def __init__(self, host: Host, devices: Sequence[Device], clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._devices = [d for d in devices if d.pci and d.kind not in {"cpu", "remote"}]
        self._clock = clock
        self._counters: dict[str, RateCounter] = {}
        self._nvidia: tuple[Draw, ...] = ()
        self._nvidia_at = float("-inf")
        # Files in sysfs stay while the system runs; devices' monitors come and go with their drivers.
        self._fixed = tuple(_fixed_sources(host)) if host.system == "linux" else ()

    def read(self) -> tuple[Draw, ...]:
        """Current readings of all meters; does not wake sleeping devices."""
        now = self._clock()
        draws = [draw for source in self._fixed if (draw := self._drawn(source, now)) is not None]
        battery = read_battery(self._host)
        if battery is not None and battery.power_w is not None:
            draws.append(Draw("battery", SYSTEM, battery.power_w, counted=False))
        nvidia = []
        for device in self._devices:
            if self._host.system == "linux" and suspended(self._host, device.pci):
                continue
            if device.vendor == "NVIDIA" and device.kind != "npu":
                nvidia.append(device)
            elif self._host.system == "linux":
                draws += [d for s in _device_sources(self._host, device) if (d := self._drawn(s, now))][:1]
        return (*draws, *(self._nvml(nvidia, now) if nvidia else ()))

    def _drawn(self, source: _Source, now: float) -> Draw | None:
        value = read_number(self._host, source.path)
        if not source.counts:
            return None if value is None else Draw(source.meter, source.part, value / 1e6, counted=False)
        span = read_number(self._host, source.span) if source.span else None
        rate = self._counters.setdefault(source.path, RateCounter()).rate(value, now, span)
        return None if rate is None else Draw(source.meter, source.part, rate / 1e6, counted=True)

    def _nvml(self, devices: list[Device], now: float) -> tuple[Draw, ...]:
        if now - self._nvidia_at < NVML_EVERY_S:
            return self._nvidia
        self._nvidia_at = now
        by_address = {short_address(d.pci or ""): d.id for d in devices}
        draws = []
        for record in records(self._host.api("nvml")):
            part = by_address.get(short_address(str(record.get("pci") or "")))
            if part is None:
                continue
            joules, milliwatts = record.get("energy_mj"), record.get("power_mw")
            counted = joules if isinstance(joules, int) else None
            rate = self._counters.setdefault(f"nvml {part}", RateCounter()).rate(counted, now)
            if rate is not None:
                draws.append(Draw("nvml", part, rate / 1e3, counted=True))
            elif isinstance(milliwatts, int) and milliwatts >= 0:
                draws.append(Draw("nvml", part, milliwatts / 1e3, counted=False))
        self._nvidia = tuple(draws)
        return self._nvidia


def parts_w(draws: Iterable[Draw], devices: Iterable[Device] = ()) -> dict[str, float]:
    """Watts by part, none counted twice: sockets are added up, several meters of one whole are not."""
    within = {d.id for d in devices if d.kind in {"igpu", "npu"}}
    watts_by_part: dict[str, float] = {}
    for draw in draws:
        if draw.part == SYSTEM:  # psys and the battery measure the same power: the larger value misses less
            watts_by_part[SYSTEM] = max(watts_by_part.get(SYSTEM, 0.0), draw.watts)
        else:
            watts_by_part[draw.part] = watts_by_part.get(draw.part, 0.0) + draw.watts
    if CPU in watts_by_part:
        watts_by_part = {part: watts for part, watts in watts_by_part.items() if part not in within}
    return watts_by_part


def whole_w(parts: dict[str, float]) -> float | None:
    """The computer's readable power: of the whole, or the sum of the parts; None without a meter."""
    if SYSTEM in parts:
        return parts[SYSTEM]
    return sum(parts.values()) if parts else None


def looked_for(system: str) -> str:
    """The supported meters of a system, as text."""
    always = "a battery while it discharges, and NVIDIA's library"
    if system != "linux":
        return always
    return f"RAPL ({POWERCAP}), hwmon ({', '.join(_MONITORS)}; GPUs of AMD and Intel), {always}"


def meters(host: Host, devices: Sequence[Device]) -> tuple[Meter, ...]:
    """This computer's meters, and whether this user may read them. Reads once; wakes nothing."""
    power_meters = []
    if host.system == "linux":
        here = [s for d in devices if d.pci and not suspended(host, d.pci) for s in _device_sources(host, d)]
        for source in (*_fixed_sources(host), *here):
            if read_number(host, source.path) is not None:
                power_meters.append(Meter(source.meter, source.part, source.path, readable=True, note=_TRIED))
            elif host.access(source.path) != "absent":
                power_meters.append(
                    Meter(source.meter, source.part, source.path, readable=False, note="not readable")
                )
    if read_battery(host) is not None:
        note = "only while it discharges; " + (_TRIED if host.system == "linux" else "not tried on this system")
        power_meters.append(Meter("battery", SYSTEM, host.system, readable=True, note=note))
    power_meters += [
        Meter("nvml", d.id, "NVIDIA's library, or its command", readable=True, note="not tried on this hardware")
        for d in devices
        if d.vendor == "NVIDIA" and d.kind in {"dgpu", "igpu"} and d.state == "usable"
    ]
    return tuple(power_meters)


def short_address(address: str) -> str:
    """An address without its domain, whose width differs between sysfs and NVIDIA's tools."""
    return address.lower().partition(":")[2]


def _fixed_sources(host: Host) -> list[_Source]:
    """Meters of the CPU and the computer. RAPL comes first; a monitor of the same part is skipped."""
    sources = []
    for zone in host.listdir(POWERCAP):
        base = f"{POWERCAP}/{zone}"
        if "mmio" in zone or "rapl:" not in zone:
            continue
        name = text(host, f"{base}/name") or "package"
        part = CPU if name == "dram" else _ZONES.get(name.partition("-")[0]) if zone.count(":") == 1 else None
        if part is not None:
            span = f"{base}/max_energy_range_uj"
            sources.append(_Source(f"rapl {name}", part, f"{base}/energy_uj", span))
    covered = {s.part for s in sources if read_number(host, s.path) is not None}
    return [*sources, *(s for s in _monitors(host) if s.part not in covered)]


def _monitors(host: Host) -> list[_Source]:
    sources = []
    for folder in host.listdir(HWMON):
        base = f"{HWMON}/{folder}"
        driver = text(host, f"{base}/name")
        labels = _MONITORS.get(driver)
        for n in range(1, _MOST_INPUTS) if labels else ():
            for kind in ("power", "energy"):
                part = (labels or {}).get(text(host, f"{base}/{kind}{n}_label"))
                if part is not None:
                    sources.append(_Source(f"hwmon {driver}", part, f"{base}/{kind}{n}_input"))
    return sources


def _device_sources(host: Host, device: Device) -> list[_Source]:
    """A GPU's own monitor: AMD's microwatts, Intel's microjoules."""
    sources = []
    base = f"/sys/bus/pci/devices/{device.pci}/hwmon"
    for name in host.listdir(base):
        for attribute in ("power1_average", "power1_input", "energy1_input"):
            path = f"{base}/{name}/{attribute}"
            if host.read(path) is not None:
                sources.append(_Source("hwmon", device.id, path))
                break
    return sources
