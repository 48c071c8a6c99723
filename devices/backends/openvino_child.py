"""Child process: list OpenVINO's devices, open each with ggml in a separate child, print JSON. It may crash.

Usage: python -m devices.backends.openvino_child FOLDER LIBRARY
"""

import os
import sys
from pathlib import Path

from msgspec.structs import asdict

from devices.backends.openvino import environment, offered, target_of
from devices.child import run_child
from devices.child_command import answer_with, child_command

# The devices are opened concurrently: an NPU's driver starts within a second.
OPEN_S = 12.0


def report(folder: str, library: str) -> dict[str, object]:
    """The devices that ggml could open, and why it could not open the others. Raises: OSError."""
    opened, refused, version = [], [], ""
    argv = child_command("devices.backends.ggml_child", folder, library)
    for device in offered(Path(library).parent):
        env = {**os.environ, **environment(target_of((device.name,)), None)}
        outcome = run_child(argv, OPEN_S, env)
        if outcome.answer is None:
            refused.append(f"{device.name}: {outcome.reason}")
            continue
        version = str(outcome.answer.get("version", ""))
        opened.append(asdict(device))
    if not opened:
        raise OSError("; ".join(refused) or "OpenVINO offers no device")
    return {"library": Path(library).name, "version": version, "refused": refused, "devices": opened}


def main() -> int:
    """Print the report, or the error."""
    return answer_with(lambda: report(sys.argv[1], sys.argv[2]), OSError)


if __name__ == "__main__":
    sys.exit(main())
