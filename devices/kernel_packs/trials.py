"""Tests for the installed libraries, shipped or in packs."""

from pathlib import Path

from devices.backends.backend_probe import ProbeSpec, trial_command
from devices.child_command import child_command
from devices.kernel_packs.folder import installed_libraries


def installed_trials(folder: Path | None, *, onnx: bool) -> tuple[ProbeSpec, ...]:
    """The tests for the installed libraries; `onnx`: ONNX Runtime is installed."""
    trials = [
        ProbeSpec(name, paths[0].name, trial_command(name, folder, paths), paths)
        for name, paths in installed_libraries(folder).items()
    ]
    if onnx:
        trials.append(ProbeSpec("onnx", "onnxruntime", child_command("devices.backends.onnx_child")))
    return tuple(trials)
