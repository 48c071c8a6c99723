"""Builds the full report: inventory, vendors' commands, tested backends, and each device's state with a hint."""

import logging
import os
from pathlib import Path

from msgspec.structs import replace

from devices import fault_rules
from devices.as_json import backend_reports
from devices.backends import libraries
from devices.backends.backend_probe import ProbeSpec, trial_command
from devices.backends.backend_probe import try_backends as try_all
from devices.backends.libraries import BACKENDS
from devices.child_command import child_command
from devices.detect import detailed
from devices.gpu_advice import driver_files, package_versions, with_advice
from devices.host import Host
from devices.kernel_packs import bundled
from devices.kernel_packs.folder import installed_libraries
from devices.llama_cpp_versions.folder import chosen_version
from devices.recording import RecordedHost
from devices.types import Machine

_log = logging.getLogger(__name__)


def live_report(host: Host, cache: Path | None, *, try_backends: bool = True, fresh: bool = False) -> Machine:
    """Report on the machine that this process runs on; backend results come from `cache` if nothing changed.

    Before backends are tested, bundled kernels are installed if a device can use them.
    """
    machine = _with_packages(host, detailed(host))
    if not try_backends:
        return machine
    bundled.provide(machine)
    work_round_crashes(machine)
    trials = installed_trials(libraries.library_folder(), onnx=libraries.has_onnxruntime())
    return with_advice(host, machine, try_all(machine, cache, fresh=fresh, trials=trials))


def work_round_crashes(machine: Machine) -> None:
    """Set variables without which a driver crashes as soon as a backend asks for its GPUs. Children inherit them.

    The user's own values stay. Only rules about the machine alone count: others wait for a model.
    """
    rules = fault_rules.load()
    builds = fault_rules.engine_builds(rules, chosen_version())
    for device in machine.devices:
        for backend in BACKENDS:
            if device.kind not in {"igpu", "dgpu"} or device.kind not in backend.kinds:
                continue
            facts = fault_rules.gpu_facts(machine, device, backend.name, builds)
            for rule in fault_rules.matching(rules.rules, facts):
                if rule.effect in {"crash", "will not load"}:
                    for name, value in rule.then.environment.items():
                        if value and name not in os.environ:
                            _log.warning("%s=%s because of a known fault: %s", name, value, rule.title)
                            os.environ[name] = value


def _with_packages(host: Host, machine: Machine) -> Machine:
    drivers = driver_files(host) if host.system == "linux" else ()
    versions = (*machine.versions, *package_versions(host, machine))
    return replace(machine, versions=versions, vulkan_drivers=drivers)


def recorded_report(host: RecordedHost) -> Machine:
    """Build the report from a recording and its recorded backend results."""
    machine = _with_packages(host, detailed(host))
    reports = backend_reports(host.backends)
    return with_advice(host, machine, reports, live=False) if reports else machine


def installed_trials(folder: Path | None, *, onnx: bool) -> tuple[ProbeSpec, ...]:
    """The tests for the installed libraries; `onnx`: ONNX Runtime is installed."""
    trials = [
        ProbeSpec(name, paths[0].name, trial_command(name, folder, paths), paths)
        for name, paths in installed_libraries(folder).items()
    ]
    if onnx:
        trials.append(ProbeSpec("onnx", "onnxruntime", child_command("devices.backends.onnx_child")))
    return tuple(trials)
