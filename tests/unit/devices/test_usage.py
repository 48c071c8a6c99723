"""Reads utilization from the files of any known driver, without waking sleeping devices."""

import pytest

from devices.battery import SUPPLIES
from devices.host import CommandResult
from devices.power import POWERCAP
from devices.sensors import UsageSampler
from devices.types import Device, Memory

AMD = "/sys/bus/pci/devices/0000:03:00.0"
RAPL = f"{POWERCAP}/intel-rapl:0"
NPU = "/sys/bus/pci/devices/0000:00:0b.0"


class FilesHost:
    """Only files, changeable between samples, and one command."""

    system = "linux"

    def __init__(self, files=None, output=None):
        self.files = dict(files or {})
        self.output = output
        self.reads, self.commands = [], 0

    def read(self, path):
        self.reads.append(path)
        value = self.files.get(path)
        return None if value is None else str(value).encode()

    def listdir(self, path):
        return tuple(sorted({p[len(path) + 1 :].split("/")[0] for p in self.files if p.startswith(path + "/")}))

    def api(self, name):
        return None

    def run(self, argv, timeout_s):
        self.commands += 1
        return CommandResult(0 if self.output is not None else None, self.output or "")


def device(kind, vendor, pci):
    return Device(pci, kind, vendor, vendor, "usable", Memory(), pci=pci)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_processor_and_memory_everywhere(clock):
    sampler = UsageSampler(FilesHost(), (), clock)
    first = sampler.sample()
    assert first.cpu_frac == 0.0
    assert 0 < first.memory_used_bytes < first.memory_total_bytes
    sum(i * i for i in range(200_000))
    assert 0.0 <= sampler.sample().cpu_frac <= 1.0
    assert first.power_w is None


def test_an_amd_gpu(clock):
    files = {
        f"{AMD}/gpu_busy_percent": 37,
        f"{AMD}/mem_info_vram_used": 1 << 30,
        f"{AMD}/mem_info_gtt_used": 1 << 20,
        f"{AMD}/hwmon/hwmon4/power1_average": 25_500_000,
    }
    (gpu,) = UsageSampler(FilesHost(files), [device("igpu", "AMD", "0000:03:00.0")], clock).sample().devices
    assert gpu.busy_frac == 0.37
    assert gpu.memory_used_bytes == (1 << 30) + (1 << 20)
    assert gpu.power_w == 25.5


def test_counters_become_rates_and_may_wrap(clock):
    host = FilesHost({f"{RAPL}/energy_uj": 900, f"{RAPL}/max_energy_range_uj": 1000, f"{NPU}/npu_busy_time_us": 0})
    sampler = UsageSampler(host, [device("npu", "Intel", "0000:00:0b.0")], clock)
    first = sampler.sample()
    assert first.cpu_power_w is None
    assert first.devices[0].busy_frac is None
    clock.now += 2
    host.files |= {f"{RAPL}/energy_uj": 100, f"{NPU}/npu_busy_time_us": 500_000}
    second = sampler.sample()
    assert second.cpu_power_w == pytest.approx(100e-6)
    assert second.devices[0].busy_frac == 0.25
    clock.now += 1
    host.files[f"{NPU}/npu_busy_time_us"] = 10  # the driver was loaded again
    assert sampler.sample().devices[0].busy_frac is None


def test_an_intel_gpu_counts_energy(clock):
    monitor = f"{AMD}/hwmon/hwmon2/energy1_input"
    host = FilesHost({monitor: 0})
    sampler = UsageSampler(host, [device("dgpu", "Intel", "0000:03:00.0")], clock)
    sampler.sample()
    clock.now += 1
    host.files[monitor] = 7_000_000
    (gpu,) = sampler.sample().devices
    assert gpu.power_w == 7.0
    assert gpu.busy_frac is None


def test_nvidia_is_asked_seldom(clock):
    host = FilesHost(
        output="00000000:03:00.0, 55, 2048, 60, 120.50\n00000000:04:00.0, [N/A], [N/A], [N/A], [N/A]\nnonsense\n"
    )
    gpus = [device("dgpu", "NVIDIA", f"0000:0{n}:00.0") for n in (3, 4)]
    sampler = UsageSampler(host, gpus, clock)
    first, second = sampler.sample().devices
    assert (first.busy_frac, first.memory_used_bytes, first.power_w) == (0.55, 2048 << 20, 120.5)
    assert (second.busy_frac, second.memory_used_bytes, second.power_w) == (None, None, None)
    clock.now += 1
    sampler.sample()
    assert host.commands == 1


def test_a_sleeping_gpu_is_left_asleep(clock):
    host = FilesHost({f"{AMD}/power/runtime_status": "suspended", f"{AMD}/gpu_busy_percent": 1})
    (gpu,) = UsageSampler(host, [device("dgpu", "AMD", "0000:03:00.0")], clock).sample().devices
    assert gpu.busy_frac == 0.0
    assert f"{AMD}/gpu_busy_percent" not in host.reads


@pytest.mark.parametrize(
    ("battery", "watts"),
    [
        ({"status": "Discharging", "power_now": 11_000_000}, 11.0),
        ({"status": "Discharging", "voltage_now": 10_000_000, "current_now": 2_000_000}, 20.0),
        ({"status": "Charging", "power_now": 11_000_000}, None),
        ({"status": "Discharging", "power_now": "broken"}, None),
    ],
)
def test_a_battery_that_discharges_tells_everything(clock, battery, watts):
    files = {f"{SUPPLIES}/BAT0/{name}": value for name, value in {"type": "Battery", **battery}.items()}
    assert UsageSampler(FilesHost(files), (), clock).sample().power_w == watts
