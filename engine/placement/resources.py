"""Shared state of all placement decisions: the machine as it is now, its ledger, and what was learned here."""

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from devices.backends.libraries import WITHOUT_DEVICE, library_folder
from devices.detect import detailed, inventory
from devices.fault_rules import CurrentRules
from devices.host import Host
from devices.host_real import RealHost
from devices.kernel_packs.folder import installed_libraries
from devices.memory_ledger import AuditLog, Ledger
from devices.merge import merged
from devices.power import meters
from devices.recording import RecordedHost
from devices.report import live_report, recorded_report
from devices.sensors import UsageSampler
from devices.types import Device, DeviceUsage, Machine, Meter
from engine.core.paths import Paths
from engine.placement.device_checks import DeviceChecks
from engine.placement.history import PlacementHistory
from engine.placement.model_settings import ModelSettingsStore, open_model_settings
from engine.placement.results import Results, TunedStore
from engine.remotes.registry import RemoteRegistry


class MachineState:
    """Reads one host. The first full scan takes under a second, later ones a few milliseconds. Thread-safe.

    `elsewhere` returns devices of other computers.
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
        self._sampler: UsageSampler | None = None
        self._sampler_lock = threading.Lock()
        self._meters: tuple[Meter, ...] | None = None

    def live(self) -> tuple[DeviceUsage, ...]:
        """Load, temperature and power of each device since the previous call. Does not wake sleeping devices."""
        devices = (self._machine or self.now()).devices
        with self._sampler_lock:
            if self._sampler is None or [d.id for d in self._sampler.devices] != [d.id for d in devices]:
                self._sampler = UsageSampler(self._host, devices)
            return self._sampler.live()

    @property
    def metered(self) -> bool:
        """Whether a power meter can be read here; checked once."""
        if self._meters is None:
            self._meters = meters(self._host, (self._machine or self.now()).devices)
        return any(meter.readable for meter in self._meters)

    def full(self, *, fresh: bool = False) -> Machine:
        """The machine with every backend probed; `fresh` probes them again."""
        with self._lock:
            if self._machine is None or fresh:
                if isinstance(self._host, RecordedHost):
                    self._machine = recorded_report(self._host)
                else:
                    self._machine = live_report(self._host, self._cache, fresh=fresh)
        return self.now()

    def settled(self) -> Machine:
        """The machine with backends probed if one could matter; without a GPU the probe is not worth its second."""
        machine = self.now()
        if machine.backends:
            return machine
        built = set(installed_libraries(library_folder())) - WITHOUT_DEVICE
        gpus = any(d.kind in {"igpu", "dgpu"} for d in machine.devices)
        return self.full() if built or gpus else machine

    def now(self) -> Machine:
        """The machine with the current free memory and the last report on backends. Wakes and loads nothing.

        A GPU that only its vendor's command can measure has the value of the last full scan.
        """
        machine, far = self._local_machine(), self._elsewhere()
        return replace(machine, devices=(*machine.devices, *far)) if far else machine

    def _local_machine(self) -> Machine:
        machine = self._machine
        if machine is None:
            return inventory(self._host)
        if any(d.kind == "dgpu" and d.vendor == "NVIDIA" for d in machine.devices):
            current = detailed(self._host)
        else:
            current = replace(inventory(self._host), meters=machine.meters)
        versions = {**dict(machine.versions), **dict(current.versions)}  # versions of packages are read once
        current = replace(current, versions=tuple(versions.items()), vulkan_drivers=machine.vulkan_drivers)
        return merged(replace(current, backends=machine.backends))


class Resources(msgspec.Struct, frozen=True):
    """One per process, created at startup: two ledgers would reserve the same bytes twice.

    `dry_runs` is the cache file of dry runs. `models` is the folder for downloads (None: on another machine, whose
    disks cannot be measured).
    """

    machine: MachineState
    ledger: Ledger
    history: PlacementHistory
    tuned: TunedStore
    results: Results
    checks: DeviceChecks
    dry_runs: Path
    settings: ModelSettingsStore = msgspec.field(default_factory=ModelSettingsStore)
    remotes: RemoteRegistry = msgspec.field(default_factory=RemoteRegistry)
    fault_rules: CurrentRules = msgspec.field(default_factory=CurrentRules)
    models: Path | None = None


def open_resources(paths: Paths, machine: MachineState | None = None) -> Resources:
    """This machine, or the given recorded one, with this user's stores. Reads files, probes nothing."""
    remotes = RemoteRegistry(paths.config / "remotes.json")
    here = machine is None
    machine = machine or MachineState(backend_cache=paths.cache / "backends.json", elsewhere=remotes.devices)
    return Resources(
        machine=machine,
        ledger=Ledger(machine.now, AuditLog(paths.state / "memory_audits.jsonl")),
        history=PlacementHistory(paths.state / "dispatch.json"),
        tuned=TunedStore(paths.state / "autotune.json"),
        results=Results(paths.state / "bench.jsonl"),
        checks=DeviceChecks(paths.state / "device_checks.json", paths.cache / "references"),
        settings=open_model_settings(paths),
        dry_runs=paths.cache / "dry_runs.json",
        remotes=remotes,
        models=paths.models if here else None,
    )
