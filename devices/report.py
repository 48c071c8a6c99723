"""Builds the full report: inventory, vendors' commands, tested backends, and each device's state with a hint."""

from pathlib import Path

from msgspec.structs import replace

from devices.as_json import backend_reports
from devices.backends import libraries
from devices.backends.backend_probe import try_backends as try_all
from devices.detect import detailed
from devices.gpu_advice import advised
from devices.host import Host
from devices.kernel_packs import bundled
from devices.kernel_packs.trials import installed_trials
from devices.merge import merged
from devices.recording import RecordedHost
from devices.types import Machine


def live_report(host: Host, cache: Path | None, *, try_backends: bool = True, fresh: bool = False) -> Machine:
    """Report on the machine that this process runs on; backend results come from `cache` if nothing changed.

    Before backends are tested, bundled kernels are installed if a device can use them.
    """
    machine = detailed(host)
    if not try_backends:
        return machine
    bundled.provide(machine)
    trials = installed_trials(libraries.library_folder(), onnx=libraries.has_onnxruntime())
    reports = advised(host, machine, try_all(machine, cache, fresh=fresh, trials=trials))
    return merged(replace(machine, backends=reports))


def recorded_report(host: RecordedHost) -> Machine:
    """Build the report from a recording and its recorded backend results."""
    machine = detailed(host)
    reports = advised(host, machine, backend_reports(host.backends), live=False)
    return merged(replace(machine, backends=reports)) if reports else machine
