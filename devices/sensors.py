"""Reads the current utilization, temperature and power of each device. Does not wake sleeping devices."""

import time
from collections.abc import Callable, Iterable

from devices.host import Host, number, read_number, suspended, text
from devices.power import PowerMeters, RateCounter, parts_w, short_address
from devices.types import Device, LiveDevice

NVIDIA_QUERY = "pci.bus_id,utilization.gpu,temperature.gpu,power.draw"
NVIDIA_COMMAND = ("nvidia-smi", f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader,nounits")
NVIDIA_TIMEOUT_S = 3.0
# hwmon drivers whose first temperature is that of the CPU. Source: kernel Documentation/hwmon.
CPU_SENSORS = frozenset({"k10temp", "zenpower", "coretemp", "cpu_thermal", "scpi_sensors"})
_IDLE_FIELDS = (3, 4)  # fields of /proc/stat: idle, iowait
_GUEST_FIELD = 8  # fields from here on are already counted in user time


class LiveReader:
    """Reads one host repeatedly; shares are of the time since the previous reading.

    `cpu_percent` (0 to 100) is used if the system has no /proc/stat.
    """

    def __init__(
        self,
        host: Host,
        cpu_percent: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._cpu_percent = cpu_percent
        self._clock = clock
        self._ticks: tuple[float, float] | None = None
        self._counters: dict[str, RateCounter] = {}
        self._meters: PowerMeters | None = None
        self._metered: tuple[Device, ...] = ()

    def read(self, devices: Iterable[Device]) -> tuple[LiveDevice, ...]:
        """One reading for each device; takes milliseconds, with NVIDIA's command about 0.1 s."""
        requested = tuple(devices)
        if self._meters is None or requested != self._metered:
            self._meters, self._metered = PowerMeters(self._host, requested, self._clock), requested
        draws = self._meters.read()
        watts = {draw.part: draw.watts for draw in draws} | parts_w(draws)
        awake = [d for d in requested if d.vendor == "NVIDIA" and d.kind != "cpu" and not self._asleep(d)]
        listed = self._nvidia() if awake else {}
        return tuple(self._one(device, listed, watts.get(device.id)) for device in requested)

    def _one(self, device: Device, nvidia: dict[str, list[str]], watts: float | None) -> LiveDevice:
        if device.kind == "cpu":
            return LiveDevice(device.id, self._cpu_busy(), self._cpu_temperature(), watts)
        if self._asleep(device):
            return LiveDevice(device.id, asleep=True)
        row = nvidia.get(short_address(device.pci or ""))
        if row is not None:
            busy = _decimal(row[1])
            power_w = watts if watts is not None else _decimal(row[3])
            return LiveDevice(device.id, None if busy is None else _share(busy / 100), _decimal(row[2]), power_w)
        if device.pci is None or self._host.system != "linux":
            return LiveDevice(device.id)
        folder = f"/sys/bus/pci/devices/{device.pci}"
        sensor = self._sensor(folder)
        return LiveDevice(
            device.id,
            self._pci_busy(folder),
            _thousandth(read_number(self._host, f"{sensor}/temp1_input")) if sensor else None,
            watts,
        )

    def _asleep(self, device: Device) -> bool:
        if device.pci is None or self._host.system != "linux":
            return device.asleep
        return suspended(self._host, device.pci)

    def _cpu_busy(self) -> float | None:
        first = text(self._host, "/proc/stat").partition("\n")[0].split()
        if len(first) <= max(_IDLE_FIELDS) + 1 or first[0] != "cpu":
            return None if self._cpu_percent is None else _share(self._cpu_percent() / 100)
        ticks = [number(cell) or 0 for cell in first[1:]]
        total = float(sum(ticks[:_GUEST_FIELD]))
        idle = float(sum(ticks[field] for field in _IDLE_FIELDS))
        before, self._ticks = self._ticks, (total, idle)
        if before is None or total <= before[0]:
            return None
        return _share(1 - (idle - before[1]) / (total - before[0]))

    def _cpu_temperature(self) -> float | None:
        for monitor in self._host.listdir("/sys/class/hwmon"):
            folder = f"/sys/class/hwmon/{monitor}"
            if text(self._host, f"{folder}/name") in CPU_SENSORS:
                return _thousandth(read_number(self._host, f"{folder}/temp1_input"))
        return None

    def _sensor(self, folder: str) -> str:
        monitors = self._host.listdir(f"{folder}/hwmon")
        return f"{folder}/hwmon/{monitors[0]}" if monitors else ""

    def _pci_busy(self, folder: str) -> float | None:
        percent = read_number(self._host, f"{folder}/gpu_busy_percent")  # AMD
        if percent is not None:
            return _share(percent / 100)
        micros = read_number(self._host, f"{folder}/npu_busy_time_us")  # Intel's NPU
        rate = self._counters.setdefault(folder, RateCounter()).rate(micros, self._clock())
        return None if rate is None else _share(rate / 1e6)

    def _nvidia(self) -> dict[str, list[str]]:
        done = self._host.run(NVIDIA_COMMAND, NVIDIA_TIMEOUT_S)
        if done.returncode != 0:
            return {}
        rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
        return {short_address(row[0]): row for row in rows if len(row) == NVIDIA_QUERY.count(",") + 1}


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000.0


def _decimal(cell: str) -> float | None:
    """A number of a table; None for "[N/A]" and similar."""
    whole, _, fraction = cell.partition(".")
    return float(cell) if whole.isdecimal() and cell.isascii() and (fraction or "0").isdecimal() else None
