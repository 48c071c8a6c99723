"""The machine as the server sees it: backends tried once, free memory read again at every question."""

import threading
from collections.abc import Callable
from pathlib import Path

import psutil
from msgspec.structs import replace

from devices.backends.libraries import WITHOUT_DEVICE, library_folder
from devices.detect import detailed, inventory
from devices.host import Host
from devices.host_real import RealHost
from devices.kernel_packs import bundled
from devices.kernel_packs.folder import installed_libraries
from devices.merge import merged
from devices.power import meters
from devices.recording import RecordedHost
from devices.report import live_report, recorded_report
from devices.sensors import LiveReader
from devices.types import Device, LiveDevice, Machine, Meter


class MachineState:
    """Reads one host. The first full look takes under a second, later ones a few milliseconds. Thread-safe.

    `elsewhere` tells of devices of other computers.
    """

    def __init__(
        self,
        host: Host | None = None,
        backend_cache: Path | None = None,
        elsewhere: Callable[[], tuple[Device, ...]] = tuple,
    ) -> None:
        self._host = host or RealHost()
        self._elsewhere = elsewhere
        self._cache = backend_cache
        self._machine: Machine | None = None
        self._lock = threading.Lock()
        is_live = isinstance(self._host, RealHost)
        self._reader = LiveReader(self._host, (lambda: float(psutil.cpu_percent())) if is_live else None)
        self._reader_lock = threading.Lock()
        self._meters: tuple[Meter, ...] | None = None

    def live(self) -> tuple[LiveDevice, ...]:
        """How busy, warm and hungry each device is, since the call before. Wakes nothing."""
        devices = (self._machine or self.now()).devices
        with self._reader_lock:
            return self._reader.read(devices)

    @property
    def metered(self) -> bool:
        """A power meter can be read here; looked for once."""
        if self._meters is None:
            self._meters = meters(self._host, (self._machine or self.now()).devices)
        return any(meter.readable for meter in self._meters)

    def full(self, *, fresh: bool = False) -> Machine:
        """With every backend tried; `fresh` tries them again.

        Kernels that came along are installed first where a device can use them.
        """
        with self._lock:
            if self._machine is None or fresh:
                if isinstance(self._host, RecordedHost):
                    self._machine = recorded_report(self._host)
                else:
                    bundled.provide(inventory(self._host))
                    self._machine = live_report(self._host, self._cache, fresh=fresh)
        return self.now()

    def settled(self) -> Machine:
        """With backends tried where one could matter; a machine without a GPU is not worth the second it takes."""
        machine = self.now()
        if machine.backends:
            return machine
        built = set(installed_libraries(library_folder())) - WITHOUT_DEVICE
        gpus = any(d.kind in {"igpu", "dgpu"} for d in machine.devices)
        return self.full() if built or gpus else machine

    def now(self) -> Machine:
        """Free memory of this moment, with the last report on backends. Wakes and loads nothing.

        A GPU that only its vendor's command can measure keeps the figure of the last full look.
        """
        machine, far = self._here(), self._elsewhere()
        return replace(machine, devices=(*machine.devices, *far)) if far else machine

    def _here(self) -> Machine:
        machine = self._machine
        if machine is None:
            return inventory(self._host)
        if any(d.kind == "dgpu" and d.vendor == "NVIDIA" for d in machine.devices):
            return merged(replace(detailed(self._host), backends=machine.backends))
        return merged(replace(inventory(self._host), backends=machine.backends, meters=machine.meters))
