"""Child process: import ONNX Runtime, list its execution providers and devices, print JSON. It may crash."""

import os
import sys

from devices.child_command import answer_with

# The official wheels send telemetry unless this is set before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

KINDS = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}


def report() -> dict[str, object]:
    """Providers, and the hardware available to each if this version reports it."""
    import onnxruntime

    providers = [str(name) for name in onnxruntime.get_available_providers()]
    devices = []
    for offered in getattr(onnxruntime, "get_ep_devices", list)():
        hardware = offered.device
        kind = str(hardware.type).rpartition(".")[2]
        devices.append(
            {
                "name": str(offered.ep_name),
                "description": f"{hardware.vendor} {hardware.device_id:04x}".strip(),
                "kind": KINDS.get(kind, "accel"),
                "total_bytes": 0,
                "free_bytes": 0,
                "device_id": None,
            }
        )
    return {"version": onnxruntime.__version__, "features": providers, "devices": devices}


def main() -> int:
    """Print the report, or the error."""
    return answer_with(report, ImportError, OSError, RuntimeError)


if __name__ == "__main__":
    sys.exit(main())
