"""Child process: loads one execution provider, lists its devices, prints JSON. It may crash or hang.

Usage: python -m engine.runner.onnx.probe PROVIDER [LIBRARY [register|load]]. Without a library it probes the
providers in this build of ONNX Runtime. `register` registers it as a plugin of ONNX Runtime; `load` only loads it,
for libraries that onnxruntime-genai opens itself.
"""

import ctypes
import sys

from devices.child_command import write_answer
from engine.runner import onnx_libraries as libraries


def report(arguments: list[str]) -> dict[str, object]:
    """Return the provider's version, availability and devices."""
    ort = libraries.onnxruntime()
    provider, library, how = (*arguments, "", "")[:3]
    if how == "load":
        ctypes.CDLL(library)
        return {"version": ort.__version__, "available": True, "devices": []}
    if library:
        ort.register_execution_provider_library(provider, library)
    devices = [
        {"name": d.ep_name, "kind": str(d.device.type).rpartition(".")[2].lower(), "vendor": d.device.vendor}
        for d in ort.get_ep_devices()
        if d.ep_name == provider
    ]
    return {
        "version": ort.__version__,
        "available": bool(devices) or provider in ort.get_available_providers(),
        "devices": devices,
    }


def main() -> int:
    """Print the report, or the error."""
    try:
        probed = report(sys.argv[1:])
    except Exception as error:
        write_answer({"error": libraries.reason(error)})
        return 1
    write_answer(probed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
