"""A simulated power meter that charges for real CPU work."""

import time

import psutil

from devices.power import POWERCAP
from devices.recording import FORMAT, RecordedHost
from devices.types import Device, Machine, Memory, SystemMemory

REST_W, WORK_W = 4.0, 20.0
ZONE = f"{POWERCAP}/intel-rapl:0"
CPU = Device("cpu", "cpu", "x", "x", "usable", Memory())
MACHINE = Machine("linux", "6", "x86_64", "", "", SystemMemory(), (CPU,))


class Metered(RecordedHost):
    """RAPL that counts REST_W always, and WORK_W while a child of this process computes."""

    def __init__(self):
        files = {f"{ZONE}/name": "package-0", f"{ZONE}/energy_uj": "0", f"{ZONE}/max_energy_range_uj": str(2**60)}
        super().__init__({"format": FORMAT, "system": "linux", "files": files})
        self.looks = []
        self.others = {child.pid for child in psutil.Process().children(recursive=True)}

    def read(self, path):
        if path != f"{ZONE}/energy_uj":
            return super().read(path)
        worked = 0.0
        for child in psutil.Process().children(recursive=True):
            if child.pid in self.others:
                continue
            times = child.cpu_times()
            worked += times.user + times.system
        self.looks.append((time.monotonic(), worked))
        return str(round(1e6 * (REST_W * time.monotonic() + WORK_W * worked))).encode()
