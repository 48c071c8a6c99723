"""What to try of the libraries that are installed, shipped or in packs."""

from pathlib import Path

from devices.backends.backend_probe import Trial, trial_command
from devices.child_command import child_command
from devices.kernel_packs.folder import installed_libraries


def installed_trials(folder: Path | None, *, onnx: bool) -> tuple[Trial, ...]:
    """What to try of the installed libraries; `onnx`: ONNX Runtime is there."""
    trials = [
        Trial(name, paths[0].name, trial_command(name, folder, paths), paths)
        for name, paths in installed_libraries(folder).items()
    ]
    if onnx:
        trials.append(Trial("onnx", "onnxruntime", child_command("devices.backends.onnx_child")))
    return tuple(trials)
