"""Checks of the machine itself, not of one device: problems that cost memory, speed or a device."""

import re

from devices.host import Host, text
from devices.types import Finding, Machine

# Recorded with AMD Strix Halo: instability below 6.18.4; before 6.16.9 ROCm sees only 15.9 GiB.
STABLE_GFX11_KERNEL = (6, 18, 4)
# Half of RAM is the kernel's default GTT limit, plus a tenth of tolerance for what firmware takes.
DEFAULT_GTT_FRAC = 0.55
SINGLE_CHANNEL_BITS = 64
LARGE_RAM_BYTES = 48 << 30


def machine_findings(host: Host, machine: Machine) -> tuple[Finding, ...]:
    """Findings from the inventory alone."""
    found: list[Finding] = []
    if host.system == "linux":
        words = text(host, "/proc/cmdline").split()
        found += _iommu(words, machine)
        found += _gtt(words, machine)
        found += _kernel(machine)
    found += _memory(machine)
    found += _limits(machine)
    return tuple(found)


def _cpu_name(machine: Machine) -> str:
    return next((d.name for d in machine.devices if d.kind == "cpu"), "")


def _iommu(words: list[str], machine: Machine) -> list[Finding]:
    cpu_has_npu = re.search(r"ryzen ai|ryzen [579] (8|7)\d4\d|8[67]00g", _cpu_name(machine), re.IGNORECASE)
    listed = any(d.kind == "npu" for d in machine.devices)
    if "amd_iommu=off" in words and (cpu_has_npu or listed):
        return [
            Finding(
                "amd_iommu_off",
                "warning",
                "The NPU is switched off by amd_iommu=off",
                "Guides recommend it for a few per cent of GPU speed; it disables the NPU altogether.",
                "sudo sed -i 's/amd_iommu=off/iommu=pt/' /etc/default/grub && sudo update-grub",
            )
        ]
    return []


def _gtt(words: list[str], machine: Machine) -> list[Finding]:
    found = []
    if any(word.startswith("amdgpu.gtt_size=") for word in words):
        found.append(
            Finding(
                "gtt_size_misspelt",
                "warning",
                "The kernel ignores amdgpu.gtt_size",
                "The parameter is spelt gttsize, and it is deprecated: ttm.pages_limit sets the ceiling now.",
                "on the kernel command line, replace it with ttm.pages_limit=PAGES (4 KiB each)",
            )
        )
    physical = machine.memory.installed_bytes or 0
    for gpu in machine.devices:
        budget = gpu.memory.budget_bytes
        if gpu.kind != "igpu" or gpu.vendor != "AMD" or not budget or physical < LARGE_RAM_BYTES:
            continue
        if budget <= DEFAULT_GTT_FRAC * physical:
            pages = int(physical * 0.85) // 4096
            found.append(
                Finding(
                    "gtt_at_default",
                    "advice",
                    "The integrated GPU may use only about half of the RAM",
                    f"{budget >> 20} of {physical >> 20} MiB. A higher ceiling costs nothing while unused.",
                    f"add ttm.pages_limit={pages} to the kernel command line and reboot",
                    gpu.id,
                )
            )
    return found


def _kernel(machine: Machine) -> list[Finding]:
    numbers = tuple(int(n) for n in re.findall(r"\d{1,6}", machine.kernel, re.ASCII)[:3])
    halo = next((d for d in machine.devices if d.arch == "gfx1151"), None)
    if halo is None or not numbers or numbers >= STABLE_GFX11_KERNEL:
        return []
    return [
        Finding(
            "kernel_too_old_for_gfx1151",
            "warning",
            f"Linux {machine.kernel} is too old for this GPU",
            "Before 6.18.4 it hangs under load, before 6.16.9 ROCm sees 15.9 GiB of memory only.",
            "install a kernel of at least 6.18.4",
            halo.id,
        )
    ]


def _memory(machine: Machine) -> list[Finding]:
    ram = machine.memory
    found = []
    if ram.bus_bits == SINGLE_CHANNEL_BITS and machine.environment != "vm":
        found.append(
            Finding(
                "single_channel",
                "warning",
                "Memory runs on a single channel: half the speed for every model",
                f"{ram.bus_bits} bits at {ram.speed_mts} MT/s.",
                "add a second memory module of the same kind",
            )
        )
    return found


def _limits(machine: Machine) -> list[Finding]:
    ram = machine.memory
    if ram.limit_bytes is None:
        return []
    fix = (
        "ulimit -v unlimited"
        if ram.limit_source == "ulimit -v"
        else "raise the container's memory limit (--memory)"
    )
    return [
        Finding(
            "memory_limited",
            "advice",
            f"Only {ram.limit_bytes >> 20} MiB of memory may be used here",
            f"Set by {ram.limit_source}; the machine has {(ram.total_bytes or 0) >> 20} MiB.",
            fix,
        )
    ]
