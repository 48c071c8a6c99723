"""Checks of the machine itself, not of one device: problems that cost memory, speed or a device."""

import re

from devices.chips import cpu_kind
from devices.distribution import (
    amd_firmware,
    distribution,
    iommu_switches,
    is_container,
    newer_kernel,
    npu_firmware,
    set_kernel_parameters,
)
from devices.environment import UNIFIED_MEMORY
from devices.host import Host, text
from devices.probes.ram import controller_bits
from devices.types import Device, Finding, Machine

# Recorded with AMD Strix Halo: instability below 6.18.4; before 6.16.9 ROCm sees only 15.9 GiB.
STABLE_GFX11_KERNEL = (6, 18, 4)
WHOLE_MEMORY_KERNEL = (6, 16, 9)
# KFD's nodes; a `cwsr_size` among their properties shows the fix. Source: ROCm/TheRock, issue 2991.
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
# Linux 7.1 needs ttm.pages_limit alone, 6.8 also amdgpu.gttsize. Source: kyuz0/amd-strix-halo-toolboxes, issue 98.
TTM_ALONE_KERNEL = (7, 0)
GTT_SHARE = 0.85
# A higher ceiling than this share of the RAM that Linux has leaves nothing to the system.
GTT_VISIBLE_SHARE = 0.9
# What stays for the system and other programs; only computers of 32 GB have less by the shares.
GTT_REST_BYTES = 8 << 30
# AMD's integrated GPUs with two compute units, slower than any CPU next to them.
SMALLEST_GPUS = frozenset({"gfx1036", "gfx1037"})
# Parameters that set the ceiling; if a name occurs twice, the kernel uses the last value.
GTT_PARAMETERS = ("ttm.pages_limit=", "amdttm.pages_limit=", "amdgpu.gttsize=", "amdgpu.gtt_size=")
# AMD CPUs with an NPU; of those with a number only, Phoenix and Hawk Point, and their later names. The HX and the
# desktop ones with such numbers, as 7945HX and PRO 7745, have none.
CPU_WITH_NPU = r"ryzen ai|ryzen [579] (pro )?[78]\d4\d(u|hs?)\b|8[67]00g|ryzen [579] (pro )?2[2-7]0\b"
# Programs that run language models on AMD's NPU.
NPU_ENGINES = ("/usr/bin/flm", "/usr/local/bin/flm", "/opt/fastflowlm/bin/flm")
# The driver's watchdog in ms, perhaps one for each kind of queue; empty: the kernel's default.
LOCKUP_TIMEOUT = "/sys/module/amdgpu/parameters/lockup_timeout"
SHORT_WATCHDOG_KERNEL = (7, 0)
SHORT_WATCHDOG_MS = 2000
NO_LIMIT_MS = 10**9
DRI_DEBUG = "/sys/kernel/debug/dri"
BAD_MES_FIRMWARE = 0x83
GOOD_NPU_FIRMWARE = (1, 1, 2, 65)
ROCM_VERSION = "/opt/rocm/.info/version"
GOOD_ROCM = (7, 14)
GFX_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
FREEZING_KERNEL = (6, 19)
LOG_S = 2.0
# Half of RAM is the kernel's default GTT limit, plus a tenth of tolerance for what firmware takes.
DEFAULT_GTT_FRAC = 0.55
SINGLE_CHANNEL_BITS = 64
# A model of 35 billion parameters at 4 bits has 20 GB: more than half of 32 GB.
LARGE_RAM_BYTES = 24 << 30


def machine_findings(host: Host, machine: Machine) -> tuple[Finding, ...]:
    """Findings from the inventory alone."""
    findings: list[Finding] = []
    if host.system == "linux":
        words = text(host, "/proc/cmdline").split()
        findings += _iommu(host, words, machine)
        findings += _gtt(host, words, machine)
        findings += _kernel(host, words, machine)
        findings += _watchdog(host, words, machine)
        findings += _firmware(host, machine)
        findings += _npu_firmware(host, machine)
        findings += _rocm(host, machine)
        findings += _display(host, machine)
        findings += _variables(host, machine)
    findings += _memory(machine)
    findings += _limits(machine)
    return tuple(findings)


def driver_versions(host: Host) -> tuple[tuple[str, str], ...]:
    """Versions of drivers and firmware that rules of known faults compare, as far as they can be read."""
    if host.system == "windows":
        from devices.probes.gpu_windows import adrenalin_version

        release = adrenalin_version(host)
        return (("adrenalin", release),) if release else ()
    if host.system != "linux":
        return ()
    words = text(host, "/proc/cmdline").split()
    versions = {
        "rocm": text(host, ROCM_VERSION).split("-")[0],
        "amdgpu_dkms": text(host, "/sys/module/amdgpu/version"),
    }
    limits_text = " ".join(word.partition("=")[2] for word in words if word.startswith("amdgpu.lockup_timeout="))
    limits = _timeouts_ms(text(host, LOCKUP_TIMEOUT) or limits_text)
    versions["lockup_timeout_ms"] = str(min(limits, default=""))
    versions["mes"] = next((str(version) for version in _mes_versions(host)), "")
    versions["cwsr_fix"] = "1" if _has_cwsr_fix(host) or "amdgpu.cwsr_enable=0" in words else ""
    versions["board_axb35"] = "1" if "AXB35" in text(host, "/sys/class/dmi/id/board_name") else ""
    return tuple((name, version) for name, version in versions.items() if version)


def _timeouts_ms(parameter: str) -> list[int]:
    """The driver's limits in ms, perhaps one for each kind of queue. 0 is the default, less than 0 is no limit."""
    limits = [int(number) for number in re.findall(r"-?\d{1,9}", parameter, re.ASCII)]
    return [NO_LIMIT_MS if limit < 0 else limit for limit in limits if limit]


def harmful_variables(host: Host) -> tuple[str, ...]:
    """Environment variables that are set here and known to cause faults."""
    return tuple(name for name in (UNIFIED_MEMORY, "GGML_CUDA_P2P") if host.env(name) is not None)


def _has_cwsr_fix(host: Host) -> bool:
    return any("cwsr_size" in text(host, f"{KFD_NODES}/{node}/properties") for node in host.listdir(KFD_NODES))


def _mes_versions(host: Host) -> list[int]:
    """Versions of the GPU's scheduler firmware; readable by root only."""
    infos = (text(host, f"{DRI_DEBUG}/{card}/amdgpu_firmware_info") for card in host.listdir(DRI_DEBUG))
    matches = (re.search(r"^MES .*version: 0x([0-9a-fA-F]{1,8})", words, re.MULTILINE) for words in infos)
    return [int(match[1], 16) & 0xFFF for match in matches if match]


def _cpu_name(machine: Machine) -> str:
    return next((d.name for d in machine.devices if d.kind == "cpu"), "")


def _iommu(host: Host, words: list[str], machine: Machine) -> list[Finding]:
    cpu_has_npu = re.search(CPU_WITH_NPU, _cpu_name(machine), re.IGNORECASE)
    listed = any(d.kind == "npu" for d in machine.devices)
    off = iommu_switches(words)
    if not off or not (cpu_has_npu or listed):
        return []
    change = set_kernel_parameters(host, "iommu=pt", off)
    has_engine = any(host.access(path) != "absent" for path in NPU_ENGINES)
    detail = (
        "Without the IOMMU, the GPU reads prompts 5 to 16 % faster (published, Strix Halo), and the NPU cannot be "
        "used at all."
    )
    return [
        Finding(
            "amd_iommu_off",
            "warning" if has_engine else "advice",
            f"The NPU is switched off by {off.split()[0]}",
            detail if has_engine else f"{detail} No program for the NPU is installed here.",
            change if has_engine else f"nothing, unless you want to use the NPU; then: {change}",
        )
    ]


def _gtt(host: Host, words: list[str], machine: Machine) -> list[Finding]:
    findings = []
    gpus = [d for d in machine.devices if d.kind == "igpu" and d.vendor == "AMD" and d.driver == "amdgpu"]
    physical = machine.memory.installed_bytes or 0
    visible = machine.memory.total_bytes or physical  # without what firmware has set aside for the GPU
    usable = min(physical * GTT_SHARE, visible * GTT_VISIBLE_SHARE, physical - GTT_REST_BYTES)
    pages = max(0, int(usable)) // 4096
    parameters = f"ttm.pages_limit={pages}"
    if _release(machine) < TTM_ALONE_KERNEL:
        parameters = f"amdgpu.gttsize={pages * 4096 >> 20} {parameters}"
    misspelt = next((word for word in words if word.startswith("amdgpu.gtt_size=")), None)
    replaced = " ".join(word for word in words if word.startswith(GTT_PARAMETERS))
    if misspelt is not None:
        findings.append(
            Finding(
                "gtt_size_misspelt",
                "warning",
                "The kernel ignores amdgpu.gtt_size",
                "The parameter is spelt gttsize, and it is deprecated: ttm.pages_limit sets the ceiling now.",
                set_kernel_parameters(host, parameters if pages else "ttm.pages_limit=PAGES", replaced),
            )
        )
    for gpu in gpus:
        budget = gpu.memory.budget_bytes
        if not budget or physical < LARGE_RAM_BYTES or gpu.arch in SMALLEST_GPUS:
            continue
        if budget <= DEFAULT_GTT_FRAC * physical:
            findings.append(
                Finding(
                    "gtt_at_default",
                    "advice",
                    "The integrated GPU may use only about half of the RAM",
                    f"{budget >> 20} of {physical >> 20} MiB. A higher ceiling costs nothing while unused.",
                    set_kernel_parameters(host, parameters, replaced),
                    gpu.id,
                )
            )
    return findings


def _strix(machine: Machine) -> Device | None:
    """The GPU of this machine that is one of Strix Point, Strix Halo and Krackan Point."""
    return next((d for d in machine.devices if (d.arch or "").startswith("gfx115")), None)


def _release(machine: Machine) -> tuple[int, ...]:
    """The version alone: the last number of 6.18-rc4 is not part of a release."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", machine.kernel, re.ASCII)
    return tuple(int(number or 0) for number in match.groups()) if match else ()


def _kernel(host: Host, words: list[str], machine: Machine) -> list[Finding]:
    """Kernels without the gfx1151 fix. Distributions port it back, and it shows in KFD's properties."""
    numbers = _release(machine)
    halo = next((d for d in machine.devices if d.arch == "gfx1151"), None)
    if halo is None or not numbers or numbers >= STABLE_GFX11_KERNEL:
        return []
    if numbers >= WHOLE_MEMORY_KERNEL and (_has_cwsr_fix(host) or "amdgpu.cwsr_enable=0" in words):
        return []
    meanwhile = set_kernel_parameters(host, "amdgpu.cwsr_enable=0")
    command = "" if is_container(host) else newer_kernel(distribution(host))
    if command:
        change = f"install a kernel of at least 6.18.4: {command} && sudo reboot; until then: {meanwhile}"
    else:
        change = f"install a kernel of at least 6.18.4; until then: {meanwhile}"
    return [
        Finding(
            "kernel_too_old_for_gfx1151",
            "warning",
            f"Linux {machine.kernel} is too old for this GPU",
            "Before 6.18.4 it hangs under load, before 6.16.9 ROCm sees 15.9 GiB of memory only.",
            change,
            halo.id,
        )
    ]


def _watchdog(host: Host, words: list[str], machine: Machine) -> list[Finding]:
    """A watchdog of two seconds, which long prompts reach: read from the driver, else by the kernel's version."""
    gpu = next((d for d in machine.devices if d.kind in {"igpu", "dgpu"} and d.vendor == "AMD"), None)
    if gpu is None:
        return []
    set_to = _timeouts_ms(text(host, LOCKUP_TIMEOUT))
    is_given = any(word.startswith("amdgpu.lockup_timeout=") for word in words)
    by_version = not set_to and not is_given and _release(machine) >= SHORT_WATCHDOG_KERNEL
    short_ms = min(set_to, default=SHORT_WATCHDOG_MS if by_version else None)
    if short_ms is None or short_ms > SHORT_WATCHDOG_MS:
        return []
    misspelt = next((word for word in words if word.startswith("amdgpu.lockup_timeout=")), "")
    return [
        Finding(
            "gpu_watchdog_short",
            "advice",
            f"Linux ends work on the GPU after {short_ms / 1000:.0f} s",
            "Prompts in long contexts can take longer in one piece, from about 16,000 tokens on with the largest "
            "models; the device is then lost. Linux 7 lowered the limit from 10 to 2 s.",
            set_kernel_parameters(host, "amdgpu.lockup_timeout=10000", misspelt),
            gpu.id,
        )
    ]


def _firmware(host: Host, machine: Machine) -> list[Finding]:
    """The GPU's MES firmware 0x83, with which ROCm hangs; readable by root only."""
    gpu = _strix(machine)
    if gpu is None:
        return []
    if BAD_MES_FIRMWARE not in _mes_versions(host):
        return []
    return [
        Finding(
            "mes_firmware_hangs",
            "warning",
            "This GPU's firmware hangs with ROCm",
            "MES 0x83 came with linux-firmware 20251125; 0x80 and linux-firmware 20260110 are good. Vulkan works.",
            f"{amd_firmware(distribution(host))} (20260110 or newer) and reboot; "
            "on Debian remove amdgpu-dkms-firmware",
            gpu.id,
        )
    ]


def _npu_firmware(host: Host, machine: Machine) -> list[Finding]:
    """Firmware of an AMD NPU that loads, but is older than what FastFlowLM's authors ask for. Source: FLM#536."""
    npu = next((d for d in machine.devices if d.driver == "amdxdna" and d.state != "failed"), None)
    version = tuple(int(part) for part in re.findall(r"\d{1,6}", (npu and npu.driver_version) or "", re.ASCII)[:4])
    if npu is None or len(version) < len(GOOD_NPU_FIRMWARE) or version >= GOOD_NPU_FIRMWARE:
        return []
    good = ".".join(map(str, GOOD_NPU_FIRMWARE))
    return [
        Finding(
            "npu_firmware_old",
            "advice",
            f"The NPU's firmware {npu.driver_version} is older than {good}",
            f"Language models on it were reported to work from {good} on, with the driver of kernel 7.0 or newer.",
            f"{npu_firmware(distribution(host))} and reboot",
            npu.id,
        )
    ]


def _rocm(host: Host, machine: Machine) -> list[Finding]:
    """A ROCm installed here that is too old for Strix Point, Strix Halo and Krackan Point."""
    gpu = _strix(machine)
    version = text(host, ROCM_VERSION)
    numbers = tuple(int(n) for n in re.findall(r"\d{1,6}", version, re.ASCII)[:2])
    if gpu is None or not numbers or numbers >= GOOD_ROCM:
        return []
    return [
        Finding(
            "rocm_too_old",
            "advice",
            f"ROCm {version.split('-')[0]} is too old for this GPU",
            "7.14 is the first release for it; older ones fail on some boards. Vulkan does not need ROCm.",
            "install ROCm 7.14 or newer, or remove it and use Vulkan",
            gpu.id,
        )
    ]


def _variables(host: Host, machine: Machine) -> list[Finding]:
    """Environment variables of old guides that do harm with these GPUs."""
    gpu = next((d for d in machine.devices if d.kind in {"igpu", "dgpu"} and d.vendor == "AMD"), None)
    if gpu is None:
        return []
    findings = []
    if host.env(UNIFIED_MEMORY) is not None:
        findings.append(
            Finding(
                "unified_memory_variable",
                "warning",
                f"{UNIFIED_MEMORY} does harm on this GPU",
                "With ROCm it crashes or garbles answers, whatever its value. Tessera's children run without it.",
                f"unset {UNIFIED_MEMORY}, and remove it from your shell's start files",
                gpu.id,
            )
        )
    strix, override = _strix(machine), host.env(GFX_OVERRIDE)
    # On gfx1152 it helps with packs that have no code for it.
    with_kernels = strix is not None and strix.arch in {"gfx1150", "gfx1151"}
    if strix and with_kernels and override is not None and strix.arch != f"gfx{override.replace('.', '').strip()}":
        findings.append(
            Finding(
                "gfx_override_variable",
                "advice",
                f"{GFX_OVERRIDE} is not needed for this GPU",
                "ROCm 7 has kernels for it; with the variable it runs another chip's.",
                f"unset {GFX_OVERRIDE}, and remove it from your shell's start files",
                strix.id,
            )
        )
    return findings


def _display(host: Host, machine: Machine) -> list[Finding]:
    """A display that froze according to the kernel's log, if readable; only for kernels that cause this."""
    gpu = _strix(machine)
    if gpu is None or _release(machine)[:2] != FREEZING_KERNEL:
        return []
    log = host.run(("dmesg",), LOG_S).stdout
    sign = re.search(r"optc35|MES ring buffer is full|SMU: .*(?:mailbox|No response)", log)
    if sign is None:
        return []
    return [
        Finding(
            "display_freezes",
            "warning",
            "The display driver failed since this computer was started",
            f"The kernel's log has {sign[0]!r}. Linux 6.19 freezes displays of this GPU; 6.18.22 does not.",
            "install Linux 6.18.22 or 7.1",
            gpu.id,
        )
    ]


def _memory(machine: Machine) -> list[Finding]:
    ram = machine.memory
    findings = []
    # CPUs of Intel's N series have one channel, AMD's Mendocino two of half the width.
    name = _cpu_name(machine)
    has_more = cpu_kind(name).id != "intel-n" and controller_bits(name) != SINGLE_CHANNEL_BITS
    if ram.bus_bits == SINGLE_CHANNEL_BITS and machine.environment != "vm" and has_more:
        findings.append(
            Finding(
                "single_channel",
                "warning",
                "Memory runs on a single channel: half the speed for every model",
                f"{ram.bus_bits} bits at {ram.speed_mts} MT/s.",
                "add a second memory module of the same kind",
            )
        )
    return findings


def _limits(machine: Machine) -> list[Finding]:
    ram = machine.memory
    if ram.limit_bytes is None:
        return []
    fix = "raise the memory limit of the service or session (systemd: MemoryMax)"
    if ram.limit_source == "ulimit -v":
        fix = "ulimit -v unlimited"
    elif machine.environment == "container":
        fix = "raise the container's memory limit (--memory)"
    return [
        Finding(
            "memory_limited",
            "advice",
            f"Only {ram.limit_bytes >> 20} MiB of memory may be used here",
            f"Set by {ram.limit_source}; the machine has {(ram.total_bytes or 0) >> 20} MiB.",
            fix,
        )
    ]
