"""The state of each GPU in one sentence, for set-up, `doctor` and the window. As a program: set-up's last step."""

import sys
from collections.abc import Callable
from typing import Final

from devices.probes.gpu_ids import plain_name
from devices.types import NO_BACKEND_KNOWN, Device, Machine

NONE_FOUND: Final = "GPU: none found; models run on the CPU."
NONE_IN_CONTAINER: Final = (
    "GPU: none is visible in this container. Pass in the computer's: `--device /dev/dri` (AMD, Intel) or "
    "`--gpus all` (NVIDIA)."
)
USED: Final = "GPU: {name} runs models with {kernels} kernels."
USED_WITH_UNITS: Final = "GPU: {name} runs models with {kernels} kernels ({units})."
UNUSED: Final = "GPU: {name} is not used: {reason}."
MATRIX_UNITS: Final = "matrix units"
INTEGER_DOT_PRODUCTS: Final = "integer dot products"
_KERNELS: Final = {
    "vulkan": "Vulkan", "rocm": "ROCm", "cuda": "CUDA", "sycl": "SYCL", "metal": "Metal", "openvino": "OpenVINO",
    "opencl": "OpenCL",
}  # fmt: skip


def device_name(device: Device) -> str:
    """The device's name as shown: also a CPU's, which contains trademark signs."""
    return plain_name(device.name)


def gpu_lines(machine: Machine, translated: Callable[[str], str] = str) -> tuple[str, ...]:
    """One line for each GPU: the kernels it uses, or why none and the fix. Without a GPU, one line."""
    gpus = [device for device in machine.devices if device.kind in {"igpu", "dgpu"}]
    if gpus:
        return tuple(_line(device, translated) for device in gpus)
    return (translated(NONE_IN_CONTAINER if machine.environment == "container" else NONE_FOUND),)


def _line(device: Device, translated: Callable[[str], str]) -> str:
    used = [r for r in device.runtimes if r.state == "usable" and r.backend in _KERNELS]
    name, kernels = device_name(device), ", ".join(dict.fromkeys(_KERNELS[r.backend] for r in used))
    if not used:
        reason = translated(device.reason or NO_BACKEND_KNOWN).rstrip(".")
        hint = translated(device.fix_hint) if device.fix_hint else ""
        return f"{translated(UNUSED).format(name=name, reason=reason)} {hint}".rstrip()
    units = [translated(MATRIX_UNITS)] if any(r.matrix_units for r in used) else []
    units += [translated(INTEGER_DOT_PRODUCTS)] if any(r.int_dot for r in used) else []
    if not units:
        return translated(USED).format(name=name, kernels=kernels)
    return translated(USED_WITH_UNITS).format(name=name, kernels=kernels, units=", ".join(units))


def main() -> int:
    """Install the bundled kernels, and print a line for each GPU."""
    from devices.host_real import RealHost
    from devices.report import live_report

    for line in gpu_lines(live_report(RealHost(), None)):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
