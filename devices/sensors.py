"""Samples the current utilization, temperature and power of the machine. Does not wake sleeping devices."""

import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from devices.host import Host, read_number, suspended, text
from devices.power import CPU, PowerMeters, RateCounter, parts_w, short_address, whole_w
from devices.types import Device, DeviceUsage, Usage

# nvidia-smi takes up to 0.5 s, so regular samples use its last reading for this long.
NVIDIA_EVERY_S = 5.0
NVIDIA_TIMEOUT_S = 3.0
_NVIDIA_QUERY = "pci.bus_id,utilization.gpu,memory.used,temperature.gpu,power.draw"
NVIDIA_COMMAND = ("nvidia-smi", f"--query-gpu={_NVIDIA_QUERY}", "--format=csv,noheader,nounits")
# hwmon drivers whose first temperature is that of the CPU. Source: kernel Documentation/hwmon.
CPU_SENSORS = frozenset({"k10temp", "zenpower", "coretemp", "cpu_thermal", "scpi_sensors"})
# Files of drivers for GPUs, and of Intel's driver for NPUs.
_MEMORY_FILES = ("mem_info_vram_used", "mem_info_gtt_used", "npu_memory_utilization")


class UsageSampler:
    """Samples one host's devices. Use from one thread at a time; rates are since the previous sample."""

    def __init__(self, host: Host, devices: Sequence[Device], clock: Callable[[], float] = time.monotonic) -> None:
        self.devices = tuple(devices)
        self._host = host
        self._clock = clock
        self._counters: dict[str, RateCounter] = {}
        self._meters = PowerMeters(host, self.devices, clock)
        self._cpu: tuple[float, float] | None = None
        self._nvidia: dict[str, list[float | None]] = {}
        self._nvidia_at = float("-inf")

    def live(self) -> tuple[DeviceUsage, ...]:
        """Each device, the CPU too; takes milliseconds, with NVIDIA's command about 0.1 s."""
        self._nvidia_at = float("-inf")
        watts = parts_w(self._meters.read())
        return tuple(
            DeviceUsage(d.id, d.kind, self._cpu_frac(), None, watts.get(d.id), self._cpu_temperature())
            if d.kind == "cpu"
            else self._device(d, watts.get(d.id))
            for d in self.devices
        )

    def sample(self) -> Usage:
        """The whole machine, with its GPUs and NPUs."""
        memory = psutil.virtual_memory()
        draws = self._meters.read()
        metered = parts_w(draws)
        rows = [self._device(d, metered.get(d.id)) for d in self.devices if d.kind != "cpu" and d.pci]
        parts = parts_w(draws, self.devices)
        for row in rows:  # power that only NVIDIA's command reports, not its library
            if row.power_w is not None and row.device not in metered:
                parts[row.device] = row.power_w
        return Usage(
            at=time.time(),
            cpu_frac=self._cpu_frac() or 0.0,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            cpu_power_w=parts.get(CPU),
            battery_w=next((draw.watts for draw in draws if draw.meter == "battery"), None),
            devices=tuple(msgspec.structs.replace(row, busy_frac=0.0) if row.asleep else row for row in rows),
            parts=tuple(parts.items()),
            power_w=whole_w(parts),
        )

    def _cpu_frac(self) -> float | None:
        times = psutil.cpu_times()
        # Guest time is already counted in user time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            return None
        return min(1.0, max(0.0, (busy - before[0]) / (total - before[1])))

    def _cpu_temperature(self) -> float | None:
        for monitor in self._host.listdir("/sys/class/hwmon"):
            folder = f"/sys/class/hwmon/{monitor}"
            if text(self._host, f"{folder}/name") in CPU_SENSORS:
                return self._degrees(folder)
        return None

    def _degrees(self, monitor: str) -> float | None:
        value = read_number(self._host, f"{monitor}/temp1_input")
        return None if value is None else value / 1000.0

    def _device(self, device: Device, watts: float | None) -> DeviceUsage:
        on_linux = self._host.system == "linux" and device.pci is not None
        if suspended(self._host, device.pci) if on_linux else device.asleep:
            return DeviceUsage(device.id, device.kind, asleep=True)
        if device.vendor == "NVIDIA" and device.kind != "npu":
            row = self._nvidia_row(device)
            if row is not None:
                percent, mib, degrees, own_watts = row
                return DeviceUsage(
                    device.id,
                    device.kind,
                    None if percent is None else min(1.0, percent / 100),
                    None if mib is None else int(mib) << 20,
                    own_watts if watts is None else watts,
                    degrees,
                )
        if not on_linux:
            return DeviceUsage(device.id, device.kind, power_w=watts)
        folder = f"/sys/bus/pci/devices/{device.pci}"
        sizes = [n for name in _MEMORY_FILES if (n := read_number(self._host, f"{folder}/{name}")) is not None]
        monitors = self._host.listdir(f"{folder}/hwmon")
        return DeviceUsage(
            device.id,
            device.kind,
            self._busy_frac(folder),
            sum(sizes) if sizes else None,
            watts,
            self._degrees(f"{folder}/hwmon/{monitors[0]}") if monitors else None,
        )

    def _busy_frac(self, folder: str) -> float | None:
        percent = read_number(self._host, f"{folder}/gpu_busy_percent")  # AMD
        if percent is not None:
            return min(1.0, max(0.0, percent / 100))
        micros = read_number(self._host, f"{folder}/npu_busy_time_us")  # Intel's NPU
        rate = self._counters.setdefault(folder, RateCounter()).rate(micros, self._clock())
        return None if rate is None else min(1.0, rate / 1e6)

    def _nvidia_row(self, device: Device) -> list[float | None] | None:
        """Percent, MiB, degrees Celsius and watts of a GPU; None if the command does not list it."""
        now = self._clock()
        if now - self._nvidia_at >= NVIDIA_EVERY_S:
            self._nvidia_at = now
            done = self._host.run(NVIDIA_COMMAND, NVIDIA_TIMEOUT_S)
            lines = done.stdout.splitlines() if done.returncode == 0 else ()
            rows = ([cell.strip() for cell in line.split(",")] for line in lines)
            columns = _NVIDIA_QUERY.count(",") + 1
            self._nvidia = {short_address(r[0]): [*map(_decimal, r[1:])] for r in rows if len(r) == columns}
        return self._nvidia.get(short_address(device.pci or ""))


def _decimal(cell: str) -> float | None:
    """A number that is not negative; None for a driver's text for unknown values."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None  # noqa: PLR2004 - nan and nonsense
