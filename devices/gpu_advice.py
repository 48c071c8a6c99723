"""Why Vulkan cannot use the GPUs of a Linux machine, and the step that fixes it on this distribution."""

import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from devices import install_hints, types
from devices.chips import gpu_of
from devices.distribution import (
    BACKPORTS,
    Distribution,
    Family,
    distribution,
    is_container,
    nvidia_driver,
    set_kernel_parameters,
)
from devices.host import CommandResult, Host
from devices.kernel_packs import bundled
from devices.merge import merged
from devices.probes import fix_hints
from devices.types import BackendReport, Device, Machine

# Debian and Ubuntu have the Vulkan headers (1.4) that ggml needs from this release on. Source: their package lists.
_FIRST_WITH_HEADERS = {"debian": (13,), "ubuntu": (25, 4)}
_BUILD_TOOLS = {
    "debian": "glslc libvulkan-dev spirv-headers",
    "fedora": "glslc vulkan-headers vulkan-loader-devel spirv-headers-devel",
    "arch": "shaderc vulkan-headers vulkan-icd-loader spirv-headers",
    "suse": "shaderc vulkan-devel spirv-headers",
}
_CLOSED = frozenset({"driver_missing", "no_permission"})
# GPUs of ARM boards. Their owners measured that llama.cpp's Vulkan reads and writes slower than four cores.
_SLOWER_THAN_THEIR_PROCESSOR = frozenset({"Broadcom", "Arm"})


def with_advice(host: Host, machine: Machine, reports: tuple[BackendReport, ...], *, live: bool = True) -> Machine:
    """`machine` with these reports of its backends, and why Vulkan does not use each GPU and the fix.

    live: as in `advised`.
    """
    joined = merged(replace(machine, backends=advised(host, machine, reports, live=live)))
    report = next((r for r in reports if r.backend == "vulkan"), None)
    if machine.system != "linux" or report is None:
        return joined
    look = _Look(host, distribution(host), machine, (), live)
    present = {d.id for d in machine.devices if d.kind in {"igpu", "dgpu"} and d.state == "present"}
    devices = (_explained(look, d, report) if d.id in present else d for d in joined.devices)
    return replace(joined, devices=tuple(devices))


def _explained(look: "_Look", device: Device, report: BackendReport) -> Device:
    """The device with the reason and fix of its own: the report's are those of the first GPU."""
    if device.state == "usable" or device.vendor in _SLOWER_THAN_THEIR_PROCESSOR:
        return device
    seen = replace(report, state="no_device", reason="no device") if report.state == "usable" else report
    own = _vulkan(look._replace(gpus=(device,)), seen)
    if own.reason in {seen.reason, types.NOT_INSTALLED}:
        return device
    return replace(device, reason=own.reason, fix_hint=own.fix_hint)


def advised(
    host: Host, machine: Machine, reports: tuple[BackendReport, ...], *, live: bool = True
) -> tuple[BackendReport, ...]:
    """The reports, with Vulkan's reason and fix for this distribution, these devices and the available packs.

    live: the machine is this one, so attempts to install packs here count.
    """
    if machine.system != "linux":
        return reports
    gpus = tuple(d for d in machine.devices if d.kind in {"igpu", "dgpu"} and d.state not in _CLOSED)
    if gpus and {device.vendor for device in gpus} <= _SLOWER_THAN_THEIR_PROCESSOR:
        slower = {"reason": "such GPUs run models slower than their CPU", "fix_hint": None}
        return tuple(replace(r, **slower) if r.backend == "vulkan" and r.state != "usable" else r for r in reports)
    look = _Look(host, distribution(host), machine, gpus, live)
    return tuple(_vulkan(look, r) if r.backend == "vulkan" and gpus else r for r in reports)


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
            return words, install_driver(self.system, self.gpus[0])
        found_nothing = _FOUND_NOTHING.search(reason)
        limit = next((name for name in _LIMITING if self.host.env(name)), None) if found_nothing else None
        if limit is not None:
            return f"{limit} is set, which limits the GPUs", f"Unset {limit}, then start Tessera again."
        problem = driver_problem(self.host, self.system, self.gpus)
        if problem is not None or not found_nothing:
            return problem
        return _unsuited(self.host, self.system, self.gpus[0], self.machine.devices[0].name)


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


LOADER: Final = "libvulkan.so.1"
# The kernels' library was loaded, and the driver had nothing for it. What it needs: ggml-vulkan.cpp.
_FOUND_NOTHING: Final = re.compile("no device|nothing it can use")
_UNSUITED: Final = "its driver offers no Vulkan 1.2 with 16-bit storage, which the kernels need"
# Variables of ggml and of the Vulkan loader.
_LIMITING: Final = (
    "GGML_VK_VISIBLE_DEVICES", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT",
    "VK_LOADER_DRIVERS_DISABLE",
)  # fmt: skip
# Listed chips without 16-bit storage. Source: Khronos' list of conformant products.
_WITHOUT_16_BITS: Final = frozenset({"sm_35"})
DRIVER_LISTS: Final = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
DRIVER_LISTS_NIXOS: Final = ("/run/opengl-driver/share/vulkan/icd.d",)
# Name of the file that lists a vendor's Vulkan driver.
_DRIVER_FILES: Final = {"AMD": "radeon|amd", "Intel": "intel", "NVIDIA": "nvidia|nouveau", "Qualcomm": "freedreno"}
# The packages with the driver and the loader. Source: the distributions' package lists, November 2026
# (Debian's looked up, the others from their documentation).
_PACKAGES: Final[dict[Family, dict[str, str]]] = {
    "debian": {"": "mesa-vulkan-drivers"},
    "fedora": {"": "mesa-vulkan-drivers vulkan-loader"},
    "arch": {
        "AMD": "vulkan-radeon vulkan-icd-loader",
        "Intel": "vulkan-intel vulkan-icd-loader",
        "Qualcomm": "vulkan-freedreno vulkan-icd-loader",
    },
    "suse": {"AMD": "libvulkan_radeon libvulkan1", "Intel": "libvulkan_intel libvulkan1"},
}  # fmt: skip
# Commands that print the version of the package with Mesa's Vulkan driver.
_VERSION_COMMANDS: Final[dict[Family, tuple[str, ...]]] = {
    "debian": ("dpkg-query", "-W", "-f", "${Version}", "mesa-vulkan-drivers"),
    "fedora": ("rpm", "-q", "--qf", "%{VERSION}", "mesa-vulkan-drivers"),
}
# Commands that print the version of AMD's GPU firmware package; each distribution has one of these packages.
_FIRMWARE_COMMANDS: Final[dict[Family, tuple[str, ...]]] = {
    "debian": ("dpkg-query", "-W", "-f", "${Version} ", "firmware-amd-graphics", "linux-firmware"),
    "fedora": ("rpm", "-q", "--qf", "%{VERSION} ", "amd-gpu-firmware", "linux-firmware"),
    "arch": ("pacman", "-Q", "linux-firmware-amdgpu", "linux-firmware"),
    "suse": ("rpm", "-q", "--qf", "%{VERSION} ", "kernel-firmware-amdgpu"),
}
# Since Mesa 24.3 the name of this library has the version, whatever installed it.
_GALLIUM: Final = re.compile(r"libgallium-(\d{2}\.\d{1,2}\.\d{1,3})\b.*\.so", re.ASCII)
_LIBRARIES: Final = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/run/opengl-driver/lib",
)  # fmt: skip
_ARCH_PACKAGES: Final = {"AMD": "vulkan-radeon", "Intel": "vulkan-intel"}
_SUSE_PACKAGES: Final = {"AMD": "libvulkan_radeon", "Intel": "libvulkan_intel"}
COMMAND_S: Final = 5.0
# WSL's GPU. Mesa's Vulkan for it, dzn, is not conformant, and distributions leave it out or list it for tests only.
WSL_DRIVER: Final = "dxgkrnl"
START_ON_WINDOWS: Final = "Start Tessera on Windows itself (`py start.py`), where Vulkan reaches the GPU."
# The first Mesa whose Vulkan driver supports a chip: RADV by AMD's name, ANV by Intel's generation.
# Source: Mesa's release notes (25.0 for RDNA 4); the others are from memory and on the safe side, since the
# releases to tell apart are years earlier or later (Debian 12 has 22.3, Debian 13 has 25.0).
MESA_FOR_ARCH: Final[dict[str, tuple[int, int]]] = {
    "gfx1100": (22, 3), "gfx1101": (22, 3), "gfx1102": (22, 3), "gfx1103": (22, 3),
    "gfx1150": (24, 1), "gfx1151": (24, 1), "gfx1152": (25, 0), "gfx1153": (25, 0),
    "gfx1200": (25, 0), "gfx1201": (25, 0),
    "xe-lpg": (23, 2), "xe-lpg+": (24, 1), "xe2-lpg": (24, 2), "xe2-hpg": (24, 2), "xe3-lpg": (25, 1),
}  # fmt: skip


def driver_problem(host: Host, system: Distribution, devices: tuple[Device, ...]) -> tuple[str, str] | None:
    """Why these GPUs have no Vulkan and the step that fixes it; None if either is unknown."""
    if not devices or not system.id:
        return None
    if devices[0].driver == WSL_DRIVER:
        return "WSL offers it to CUDA and ROCm, not to Vulkan", START_ON_WINDOWS
    listed = driver_files(host)
    for device in devices:
        pattern = "nvidia" if device.driver == "nvidia" else _DRIVER_FILES.get(device.vendor, r".")
        if not any(re.search(pattern, path.rpartition("/")[2]) for path in listed):
            if device.driver == "nvidia" and is_container(host):
                return "this container has NVIDIA's driver without Vulkan", fix_hints.CONTAINER_NVIDIA_VULKAN
            words = "no Vulkan driver is installed"
            if device.vendor in _DRIVER_FILES:
                words = f"no Vulkan driver for {device.vendor} is installed"
            return words, install_driver(system, device)
    for device in devices:
        needed = next((MESA_FOR_ARCH[name] for name in _targets(device) if name in MESA_FOR_ARCH), None)
        have = mesa_version(host, system, device.vendor) if needed else None
        if needed and have and have < needed:
            words = f"Mesa {have[0]}.{have[1]} does not know {device.name}: {needed[0]}.{needed[1]} or newer does"
            return words, newer_mesa(system, needed)
    return None


def _targets(device: Device) -> tuple[str, ...]:
    """The GPU's target, also by its PCI id where the kernel does not report it."""
    chip = gpu_of(device, "") if device.arch is None else None
    return chip.ids if chip is not None else (device.arch or "",)


def _unsuited(host: Host, system: Distribution, device: Device, cpu_name: str) -> tuple[str, str]:
    """Why an installed driver has nothing for the kernels, and what to do."""
    if device.driver == "radeon":
        add = "radeon.si_support=0 radeon.cik_support=0 amdgpu.si_support=1 amdgpu.cik_support=1"
        change = set_kernel_parameters(host, add)
        return (
            _UNSUITED, f"The kernel driver radeon has none. Radeon HD 7700 and newer can use amdgpu: {change}",
        )  # fmt: skip
    if device.driver == "nouveau":
        return _UNSUITED, nvidia_driver(system, device.pci_id)
    chip = gpu_of(device, cpu_name)
    if chip is not None and not _WITHOUT_16_BITS & {*chip.ids}:
        return types.NOT_OFFERED, fix_hints.RESTART_NVIDIA if device.driver == "nvidia" else fix_hints.RESTART
    return _UNSUITED, "An update of the system may bring a newer driver; a GPU from before 2016 cannot run models."


def driver_files(host: Host) -> tuple[str, ...]:
    """The files that list Vulkan drivers, only for this CPU's architecture."""
    return tuple(
        f"{folder}/{name}"
        for folder in (*DRIVER_LISTS, *DRIVER_LISTS_NIXOS)
        for name in host.listdir(folder)
        if name.endswith(".json") and not re.search(r"^lvp_|i[36]86|icd32", name)
    )


def install_driver(system: Distribution, device: Device) -> str:
    """How this distribution installs the Vulkan driver of a GPU."""
    if device.vendor == "NVIDIA":
        return nvidia_driver(system, device.pci_id)
    if system.family == "nixos":
        return "Set `hardware.graphics.enable = true;` in the system's configuration and rebuild it."
    packages = _PACKAGES.get(system.family, {})
    package = packages.get(device.vendor) or packages.get("")
    if package is None:
        return (
            "Install a Vulkan driver: Mesa's for AMD and Intel (`mesa-vulkan-drivers`, elsewhere `vulkan-radeon` "
            "or `vulkan-intel`), or NVIDIA's own, with the Vulkan loader."
        )
    restart = ", then restart" if system.image_based else ""
    return f"Install it: `{system.install(package)}`{restart}."


def mesa_version(host: Host, system: Distribution, vendor: str) -> tuple[int, int] | None:
    """Version of the installed Mesa Vulkan driver; None if unknown."""
    parts = _mesa(host, system, vendor).split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 else None


def package_versions(host: Host, machine: Machine) -> tuple[tuple[str, str], ...]:
    """Versions of Mesa and of AMD's firmware, which rules of known faults compare, as far as they are known.

    It runs a command for each, so it is not part of the inventory.
    """
    vendors = {d.vendor for d in machine.devices if d.kind in {"igpu", "dgpu"}}
    if host.system != "linux" or not vendors & {"AMD", "Intel"}:
        return ()
    system = distribution(host)
    mesa = _mesa(host, system, "AMD" if "AMD" in vendors else "Intel")
    firmware = None
    if "AMD" in vendors and (command := _FIRMWARE_COMMANDS.get(system.family)):
        firmware = re.search(r"(?<!\d)20\d{6}(?!\d)", host.run(command, COMMAND_S).stdout, re.ASCII)
    versions = {"mesa": mesa, "linux_firmware": firmware[0] if firmware else ""}
    return tuple((name, version) for name, version in versions.items() if version)


def _mesa(host: Host, system: Distribution, vendor: str) -> str:
    """The version of Mesa's Vulkan driver by its package, else by its library; empty if unknown."""
    if vendor not in {"AMD", "Intel"}:
        return ""
    command = _VERSION_COMMANDS.get(system.family, ())
    if system.family == "arch":
        command = ("pacman", "-Q", _ARCH_PACKAGES[vendor])
    if system.family == "suse":
        command = ("rpm", "-q", "--qf", "%{VERSION}", _SUSE_PACKAGES[vendor])
    done = host.run(command, COMMAND_S) if command else CommandResult(None)
    words = done.stdout if done.returncode == 0 else ""
    if match := re.search(r"(?:^|[\s:])(\d{2}\.\d{1,2}(?:\.\d{1,3})?)(?!\d)", words, re.ASCII):
        return match[1]
    names = (name for folder in _LIBRARIES for name in host.listdir(folder))
    return next((match[1] for name in names if (match := _GALLIUM.match(name))), "")


def newer_mesa(system: Distribution, needed: tuple[int, int]) -> str:
    """How to get a newer Mesa."""
    suite = BACKPORTS.get(system.version) if system.id == "debian" else None
    if suite:
        return f"Enable {suite}, then install its newer one: `sudo apt install -t {suite} mesa-vulkan-drivers`."
    return f"Upgrade {system.name} to a release with Mesa {needed[0]}.{needed[1]} or newer."
