"""Utilization, temperature and power from recorded files, in the format of each driver."""

from typing import NamedTuple

import pytest

from devices import host as this_computer
from devices.recording import FORMAT, RecordedHost
from devices.sensors import NVIDIA_COMMAND, UsageSampler
from devices.types import Device, DeviceUsage, Memory

AMD, INTEL, NPU, NVIDIA = "0000:c3:00.0", "0000:00:02.0", "0000:00:0b.0", "0000:01:00.0"
PCI = "/sys/bus/pci/devices"


class Times(NamedTuple):
    user: float
    idle: float
    iowait: float = 0
    guest: float = 0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def device(kind, pci=None, vendor="AMD", identity=None):
    return Device(identity or pci or "cpu", kind, vendor, "a name", "usable", Memory(), pci=pci)


def change(reader, path, text):
    reader._host._parts["files"][path] = f"{text}\n"


def host(files, commands=None, system="linux"):
    recording = {"format": FORMAT, "system": system, "files": {path: f"{text}\n" for path, text in files.items()}}
    recording["commands"] = commands or {}
    return RecordedHost(recording)


def test_the_processor_is_busy_for_its_share_of_the_time_since_the_look_before(monkeypatch):
    files = {
        "/sys/class/hwmon/hwmon0/name": "nvme",
        "/sys/class/hwmon/hwmon0/temp1_input": "30000",
        "/sys/class/hwmon/hwmon3/name": "k10temp",
        "/sys/class/hwmon/hwmon3/temp1_input": "61250",
    }
    sampler = UsageSampler(host(files), [device("cpu")])
    monkeypatch.setattr("psutil.cpu_times", lambda: Times(100, 900))
    assert sampler.live() == (DeviceUsage("cpu", "cpu", temperature_c=61.25),), "there is no look before the first"
    monkeypatch.setattr("psutil.cpu_times", lambda: Times(130, 960, 10, 20))
    assert sampler.live()[0].busy_frac == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("load", "runnable", "busy"),
    [
        (40.0, "1/300", False),  # a build has just ended
        (40.0, "9/300", True),
        (2.0, "9/300", False),  # many threads for a moment
        (40.0, "", True),  # no such file: the average decides
    ],
)
def test_other_programs_count_while_they_run_and_not_after(monkeypatch, tmp_path, load, runnable, busy):
    path = tmp_path / "loadavg"
    if runnable:
        path.write_text(f"{load} 5.00 3.00 {runnable} 1234\n")
    monkeypatch.setattr("os.getloadavg", lambda: (load, 5.0, 3.0))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(this_computer, "_LOADAVG", path)
    assert this_computer.is_busy() is busy


def test_power_is_the_growth_of_the_energy_counter():
    clock = Clock()
    counter = "/sys/class/powercap/intel-rapl:0/energy_uj"
    reader = UsageSampler(host({counter: "1000000"}), [device("cpu")], clock)
    assert reader.live()[0].power_w is None
    clock.now = 2.0
    change(reader, counter, "31000000")
    assert reader.live()[0].power_w == pytest.approx(15.0)
    clock.now = 3.0
    change(reader, counter, "5")
    assert reader.live()[0].power_w is None, "the counter began anew"


def test_an_amd_gpu_tells_all_three():
    folder = f"{PCI}/{AMD}"
    files = {
        f"{folder}/gpu_busy_percent": "42",
        f"{folder}/power/runtime_status": "active",
        f"{folder}/hwmon/hwmon5/temp1_input": "55000",
        f"{folder}/mem_info_vram_used": "4096",
        f"{folder}/mem_info_gtt_used": "512",
        f"{folder}/hwmon/hwmon5/power1_average": "23500000",
    }
    assert UsageSampler(host(files), [device("igpu", AMD)]).live() == (
        DeviceUsage(AMD, "igpu", 0.42, 4608, 23.5, 55.0),
    )


def test_a_sleeping_gpu_is_left_asleep():
    folder = f"{PCI}/{AMD}"
    read = []

    class Watched(RecordedHost):
        def read(self, path):
            read.append(path)
            return super().read(path)

    files = {f"{folder}/power/runtime_status": "suspended\n", f"{folder}/gpu_busy_percent": "0\n"}
    reader = UsageSampler(Watched({"format": FORMAT, "system": "linux", "files": files}), [device("dgpu", AMD)])
    assert reader.live() == (DeviceUsage(AMD, "dgpu", asleep=True),)
    assert not any("gpu_busy_percent" in path or "hwmon" in path for path in read), "a read would wake it"


def test_intel_tells_energy_of_the_gpu_and_time_of_the_npu():
    clock = Clock()
    gpu, npu = f"{PCI}/{INTEL}/hwmon/hwmon2/energy1_input", f"{PCI}/{NPU}/npu_busy_time_us"
    both = [device("igpu", INTEL, "Intel"), device("npu", NPU, "Intel")]
    reader = UsageSampler(host({gpu: "0", npu: "0"}), both, clock)
    reader.live()
    clock.now = 1.0
    change(reader, gpu, "8000000")
    change(reader, npu, "250000")
    assert [r.power_w for r in reader.live()] == [8.0, None]
    clock.now = 2.0
    change(reader, npu, "750000")
    assert reader.live()[1].busy_frac == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("00000000:01:00.0, 87, 2, 71, 214.53", (0.87, 2 << 20, 214.53, 71.0)),
        ("00000000:01:00.0, [N/A], [N/A], 40, [Not Supported]", (None, None, None, 40.0)),
        ("00000000:01:00.0, 87", ()),
        ("nonsense", ()),
    ],
)
def test_nvidia_is_asked_by_its_own_command(row, expected):
    commands = {" ".join(NVIDIA_COMMAND): {"returncode": 0, "stdout": f"{row}\n"}}
    reader = UsageSampler(host({}, commands), [device("dgpu", NVIDIA, "NVIDIA")])
    assert reader.live() == (DeviceUsage(NVIDIA, "dgpu", *expected),)


def test_without_nvidia_its_command_is_not_run():
    class Refusing(RecordedHost):
        def run(self, argv, timeout_s):
            raise AssertionError(argv)

    reader = UsageSampler(Refusing({"format": FORMAT, "system": "linux"}), [device("dgpu", AMD)])
    assert reader.live() == (DeviceUsage(AMD, "dgpu"),)


def test_two_gpus_are_read_by_one_run_of_the_command_at_each_look():
    runs = []

    class Counting(RecordedHost):
        def run(self, argv, timeout_s):
            runs.append(argv)
            return super().run(argv, timeout_s)

    gpus = [device("dgpu", f"0000:0{n}:00.0", "NVIDIA") for n in (1, 2)]
    reader = UsageSampler(Counting({"format": FORMAT, "system": "linux"}), gpus)
    reader.live()
    reader.live()
    assert len(runs) == 2
