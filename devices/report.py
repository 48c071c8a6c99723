"""The whole report: inventory, vendors' commands, backends tried, and each device's final state with a hint."""

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
    """Report on the machine this process runs on; backend results come from `cache` while nothing changed.

    Before backends are tried, kernels that came along are installed where a device can use them.
    """
    machine = detailed(host)
    if not try_backends:
        return machine
    bundled.provide(machine)
    trials = installed_trials(libraries.library_folder(), onnx=libraries.has_onnxruntime())
    reports = advised(host, machine, try_all(machine, cache, fresh=fresh, trials=trials))
    return merged(replace(machine, backends=reports))


def recorded_report(host: RecordedHost) -> Machine:
    """The same report from a recording, with the backend results recorded then."""
    machine = detailed(host)
    reports = advised(host, machine, backend_reports(host.backends), live=False)
    return merged(replace(machine, backends=reports)) if reports else machine
