"""What everybody who judges loads shares: the machine, the ledger of its memory, and what was learnt here."""

from pathlib import Path

import msgspec

from devices.memory_audit import AuditLog
from devices.memory_ledger import Ledger
from engine.core.paths import Paths
from engine.placement.device_checks import DeviceChecks
from engine.placement.history import PlacementHistory
from engine.placement.machine_state import MachineState
from engine.placement.measurements.results import Results
from engine.placement.model_settings import ModelSettingsStore, open_model_settings
from engine.placement.tuned import TunedStore
from engine.remotes.registry import RemoteRegistry


class Resources(msgspec.Struct, frozen=True):
    """One per process, made where the process is put together: two ledgers would promise the same bytes twice.

    `dry_runs` is the file that keeps what llama.cpp said a load takes. `models` is the folder that downloads go to
    (None: on another machine, whose disks cannot be measured).
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
    models: Path | None = None


def open_resources(paths: Paths, machine: MachineState | None = None) -> Resources:
    """This machine, or the recorded one given, with the stores of this user. Reads files, probes nothing."""
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
