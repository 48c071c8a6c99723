"""Reports which kernels each GPU uses, or why it uses none and how to fix that on this machine."""

from typing import NamedTuple

from msgspec.structs import replace

from devices import install_hints
from devices.backends.libraries import WITHOUT_DEVICE
from devices.distribution import Distribution, distribution
from devices.host import Host
from devices.kernel_packs import bundled
from devices.types import BackendReport, Device, Machine
from devices.vulkan_driver import LOADER, driver_problem, install_driver

# Debian and Ubuntu have the Vulkan headers (1.4) that ggml needs from this release on. Source: their package lists.
_FIRST_WITH_HEADERS = {"debian": (13,), "ubuntu": (25, 4)}
_BUILD_TOOLS = {
    "debian": "glslc libvulkan-dev spirv-headers",
    "fedora": "glslc vulkan-headers vulkan-loader-devel spirv-headers-devel",
    "arch": "shaderc vulkan-headers vulkan-icd-loader spirv-headers",
    "suse": "shaderc vulkan-devel spirv-headers",
}
_KERNELS = {"vulkan": "Vulkan", "rocm": "ROCm", "cuda": "CUDA", "sycl": "SYCL", "metal": "Metal"}
_KERNELS |= {"openvino": "OpenVINO", "opencl": "OpenCL"}
_IN_CONTAINER = "Pass in the computer's: `--device /dev/dri` (AMD, Intel) or `--gpus all` (NVIDIA)."
_CLOSED = frozenset({"driver_missing", "no_permission"})


def advised(
    host: Host, machine: Machine, reports: tuple[BackendReport, ...], *, live: bool = True
) -> tuple[BackendReport, ...]:
    """The reports, with Vulkan's reason and fix for this distribution, these devices and the available packs.

    live: the machine is this one, so attempts to install packs here count.
    """
    if machine.system != "linux":
        return reports
    gpus = tuple(d for d in machine.devices if d.kind in {"igpu", "dgpu"} and d.state not in _CLOSED)
    look = _Look(host, distribution(host), machine, gpus, live)
    return tuple(_vulkan(look, r) if r.backend == "vulkan" and gpus else r for r in reports)


def gpu_lines(machine: Machine) -> tuple[str, ...]:
    """One line for each GPU: the kernels it uses, or why none and the fix. Without a GPU, one line."""
    gpus = [device for device in machine.devices if device.kind in {"igpu", "dgpu"}]
    if gpus:
        return tuple(_line(device) for device in gpus)
    if machine.environment == "container":
        return (f"GPU: none is visible in this container. {_IN_CONTAINER}",)
    return ("GPU: none found; models run on the processor.",)


def _line(device: Device) -> str:
    used = [r for r in device.runtimes if r.state == "usable" and r.backend not in WITHOUT_DEVICE]
    names = list(dict.fromkeys(_KERNELS[r.backend] for r in used if r.backend in _KERNELS))
    if not names:
        reason = device.reason or "no backend can use it"
        return f"GPU: {device.name} is not used: {reason.rstrip('.')}. {device.fix_hint or ''}".rstrip()
    units = ["matrix units"] if any(r.matrix_units for r in used) else []
    units += ["integer dot products"] if any(r.int_dot for r in used) else []
    note = f" ({', '.join(units)})" if units else ""
    return f"GPU: {device.name} runs models with {' and '.join(names)} kernels{note}."


class _Look(NamedTuple):
    """The machine that the advice is for."""

    host: Host
    system: Distribution
    machine: Machine
    gpus: tuple[Device, ...]
    live: bool

    def problem(self, reason: str) -> tuple[str, str] | None:
        """Why Vulkan cannot use the GPUs, given the reason of a failed load, and the fix."""
        if LOADER in reason:
            words = f"the Vulkan loader ({LOADER}) is not installed"
            return words, install_driver(self.system, self.gpus[0].vendor)
        return driver_problem(self.host, self.system, self.gpus)


def _vulkan(look: _Look, report: BackendReport) -> BackendReport:
    if report.state == "usable":
        return report
    if report.state == "not_built":
        return _not_installed(look, report)
    problem = look.problem(report.reason)
    return replace(report, reason=problem[0], fix_hint=problem[1]) if problem else report


def _not_installed(look: _Look, report: BackendReport) -> BackendReport:
    platform = install_hints.platform_of(look.machine.system, look.machine.arch)
    if bundled.bundled_pack("vulkan", platform=platform) is None:
        return replace(report, fix_hint=build_hint(look.system, look.machine))
    failed = bundled.failed_attempt(f"vulkan-{platform}") if look.live else None
    if failed is None:
        return report
    problem = look.problem(failed.reason)
    if problem is not None:
        return replace(
            report, reason=problem[0], fix_hint=f"{problem[1]} Tessera then installs its kernels itself."
        )
    return replace(report, reason=f"the included Vulkan kernels were not accepted: {failed.reason}")


def build_hint(system: Distribution, machine: Machine) -> str:
    """How to get Vulkan kernels on a platform without a bundled pack."""
    first = _FIRST_WITH_HEADERS.get(system.id)
    if first and system.release and system.release < first:
        release = ".".join(f"{part:02}" if number else str(part) for number, part in enumerate(first))
        return (
            f"{system.name} has Vulkan headers older than 1.4, so the kernels cannot be built here: "
            f"upgrade to {system.id.capitalize()} {release} or newer."
        )
    tools = _BUILD_TOOLS.get(system.family)
    if tools is None:
        return install_hints.missing_backend("vulkan", machine.system, machine.arch)
    return f"Install what builds them: `{system.install(tools)}`, then start again with `python3 start.py`."
