"""Samples the current utilization of the machine: CPUs, memory, power. Does not wake sleeping devices."""

import time
from collections.abc import Callable, Sequence

import psutil

from devices.host import Host, read_number, suspended
from devices.power import CPU, PowerMeters, RateCounter, parts_w, short_address, whole_w
from devices.types import Device, DeviceUsage, Usage

# nvidia-smi takes up to 0.5 s, so it runs rarely.
NVIDIA_EVERY_S = 5.0
NVIDIA_TIMEOUT_S = 3.0
NVIDIA = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,utilization.gpu,memory.used,power.draw",
    "--format=csv,noheader,nounits",
)


class UsageSampler:
    """Samples one host's devices. Use from one thread at a time; the first sample has no rates."""

    def __init__(self, host: Host, devices: Sequence[Device], clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._devices = [d for d in devices if d.kind != "cpu" and d.pci]
        self._clock = clock
        self._counters: dict[str, RateCounter] = {}
        self._all = tuple(devices)
        self._meters = PowerMeters(host, self._devices, clock)
        self._cpu: tuple[float, float] | None = None
        self._nvidia: dict[str, tuple[float | None, int | None, float | None]] = {}
        self._nvidia_at = float("-inf")

    def sample(self) -> Usage:
        now = self._clock()
        memory = psutil.virtual_memory()
        draws = self._meters.read()
        metered = {draw.part: draw.watts for draw in draws}
        devices = tuple(self._device(d, now, metered.get(d.id)) for d in self._devices)
        parts = parts_w(draws, self._all)
        for used in devices:  # power that only NVIDIA's command reports, not its library
            if used.power_w is not None and used.device not in metered:
                parts[used.device] = used.power_w
        return Usage(
            at=time.time(),
            cpu_frac=self._cpu_frac(),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            cpu_power_w=parts.get(CPU),
            battery_w=next((draw.watts for draw in draws if draw.meter == "battery"), None),
            devices=devices,
            parts=tuple(parts.items()),
            power_w=whole_w(parts),
        )

    def _cpu_frac(self) -> float:
        times = psutil.cpu_times()
        # Guest time is already counted in user time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            return 0.0
        return min(1.0, max(0.0, (busy - before[0]) / (total - before[1])))

    def _rate(self, name: str, value: int | None, now: float) -> float | None:
        return self._counters.setdefault(name, RateCounter()).rate(value, now)

    def _device(self, device: Device, now: float, watts: float | None) -> DeviceUsage:
        base = f"/sys/bus/pci/devices/{device.pci}"
        if suspended(self._host, device.pci):
            return DeviceUsage(device=device.id, kind=device.kind, busy_frac=0.0)
        if device.vendor == "NVIDIA" and device.kind != "npu":
            busy, used, own_watts = self._nvidia_row(device, now)
            return DeviceUsage(device.id, device.kind, busy, used, watts if watts is not None else own_watts)
        if device.kind == "npu":
            rate = self._rate(f"{base}/npu", read_number(self._host, f"{base}/npu_busy_time_us"), now)
            busy = None if rate is None else min(1.0, rate / 1e6)
            used = read_number(self._host, f"{base}/npu_memory_utilization")
            return DeviceUsage(device.id, device.kind, busy, used)
        percent = read_number(self._host, f"{base}/gpu_busy_percent")
        pools = [read_number(self._host, f"{base}/mem_info_{pool}_used") for pool in ("vram", "gtt")]
        numbers = [n for n in pools if n is not None]
        return DeviceUsage(
            device.id,
            device.kind,
            None if percent is None else min(1.0, percent / 100),
            sum(numbers) if numbers else None,
            watts,
        )

    def _nvidia_row(self, device: Device, now: float) -> tuple[float | None, int | None, float | None]:
        if now - self._nvidia_at >= NVIDIA_EVERY_S:
            self._nvidia_at = now
            self._nvidia = _nvidia_rows(self._host)
        return self._nvidia.get(short_address(device.pci or ""), (None, None, None))


def _nvidia_rows(host: Host) -> dict[str, tuple[float | None, int | None, float | None]]:
    done = host.run(NVIDIA, NVIDIA_TIMEOUT_S)
    rows = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4:  # noqa: PLR2004 - the number of queried columns
            busy, used, watts = (_decimal(cell) for cell in cells[1:])
            rows[short_address(cells[0])] = (
                None if busy is None else busy / 100,
                None if used is None else int(used) << 20,
                watts,
            )
    return rows


def _decimal(cell: str) -> float | None:
    """A number that is not negative; None for a driver's text for unknown values."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None  # noqa: PLR2004 - nan and nonsense
