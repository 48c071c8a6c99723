"""Utilization, temperature and power from recorded files, in the format of each driver."""

import pytest

from devices.recording import FORMAT, RecordedHost
from devices.sensors import NVIDIA_COMMAND, LiveReader
from devices.types import Device, LiveDevice, Memory

AMD, INTEL, NPU, NVIDIA = "0000:c3:00.0", "0000:00:02.0", "0000:00:0b.0", "0000:01:00.0"
PCI = "/sys/bus/pci/devices"


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


def stat(user, idle):
    return f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 {user} 0 0 {idle} 0 0 0 0 0 0"


def test_the_processor_is_busy_for_its_share_of_the_time_since_the_look_before():
    files = {
        "/proc/stat": stat(100, 900),
        "/sys/class/hwmon/hwmon0/name": "nvme",
        "/sys/class/hwmon/hwmon0/temp1_input": "30000",
        "/sys/class/hwmon/hwmon3/name": "k10temp",
        "/sys/class/hwmon/hwmon3/temp1_input": "61250",
    }
    reader = LiveReader(host(files))
    assert reader.read([device("cpu")]) == (LiveDevice("cpu", None, 61.25, None),), (
        "there is no look before the first"
    )
    reader._host = host({**files, "/proc/stat": stat(130, 970)})
    assert reader.read([device("cpu")])[0].busy_frac == pytest.approx(0.3)


def test_power_is_the_growth_of_the_energy_counter():
    clock = Clock()
    counter = "/sys/class/powercap/intel-rapl:0/energy_uj"
    reader = LiveReader(host({counter: "1000000"}), clock=clock)
    assert reader.read([device("cpu")])[0].power_w is None
    clock.now = 2.0
    change(reader, counter, "31000000")
    assert reader.read([device("cpu")])[0].power_w == pytest.approx(15.0)
    clock.now = 3.0
    change(reader, counter, "5")
    assert reader.read([device("cpu")])[0].power_w is None, "the counter began anew"


def test_an_amd_gpu_tells_all_three():
    folder = f"{PCI}/{AMD}"
    files = {
        f"{folder}/gpu_busy_percent": "42",
        f"{folder}/power/runtime_status": "active",
        f"{folder}/hwmon/hwmon5/temp1_input": "55000",
        f"{folder}/hwmon/hwmon5/power1_average": "23500000",
    }
    assert LiveReader(host(files)).read([device("igpu", AMD)]) == (LiveDevice(AMD, 0.42, 55.0, 23.5),)


def test_a_sleeping_gpu_is_left_asleep():
    folder = f"{PCI}/{AMD}"
    read = []

    class Watched(RecordedHost):
        def read(self, path):
            read.append(path)
            return super().read(path)

    files = {f"{folder}/power/runtime_status": "suspended\n", f"{folder}/gpu_busy_percent": "0\n"}
    reader = LiveReader(Watched({"format": FORMAT, "system": "linux", "files": files}))
    assert reader.read([device("dgpu", AMD)]) == (LiveDevice(AMD, asleep=True),)
    assert not any("gpu_busy_percent" in path or "hwmon" in path for path in read), "a read would wake it"


def test_intel_tells_energy_of_the_gpu_and_time_of_the_npu():
    clock = Clock()
    gpu, npu = f"{PCI}/{INTEL}/hwmon/hwmon2/energy1_input", f"{PCI}/{NPU}/npu_busy_time_us"
    both = [device("igpu", INTEL, "Intel"), device("npu", NPU, "Intel")]
    reader = LiveReader(host({gpu: "0", npu: "0"}), clock=clock)
    reader.read(both)
    clock.now = 1.0
    change(reader, gpu, "8000000")
    change(reader, npu, "250000")
    assert [r.power_w for r in reader.read(both)] == [8.0, None]
    clock.now = 2.0
    change(reader, npu, "750000")
    assert reader.read(both)[1].busy_frac == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("00000000:01:00.0, 87, 71, 214.53", LiveDevice(NVIDIA, 0.87, 71.0, 214.53)),
        ("00000000:01:00.0, [N/A], 40, [Not Supported]", LiveDevice(NVIDIA, None, 40.0, None)),
        ("00000000:01:00.0, 87", LiveDevice(NVIDIA)),
        ("nonsense", LiveDevice(NVIDIA)),
    ],
)
def test_nvidia_is_asked_by_its_own_command(row, expected):
    commands = {" ".join(NVIDIA_COMMAND): {"returncode": 0, "stdout": f"{row}\n"}}
    reader = LiveReader(host({}, commands))
    assert reader.read([device("dgpu", NVIDIA, "NVIDIA")]) == (expected,)


def test_without_nvidia_its_command_is_not_run():
    class Refusing(RecordedHost):
        def run(self, argv, timeout_s):
            raise AssertionError(argv)

    reader = LiveReader(Refusing({"format": FORMAT, "system": "linux"}))
    assert reader.read([device("dgpu", AMD)]) == (LiveDevice(AMD),)


def test_where_the_system_has_no_files_the_given_reading_is_used():
    reader = LiveReader(host({}, system="windows"), cpu_percent=lambda: 37.0)
    assert reader.read([device("cpu"), device("dgpu", AMD)]) == (LiveDevice("cpu", 0.37), LiveDevice(AMD))
