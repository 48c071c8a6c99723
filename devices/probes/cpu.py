"""The CPU as each system describes it: name, instruction sets, cores by class."""

import re

import msgspec

from devices import isa
from devices.host import Host, cpu_list, fields, integers, number, read_number, records, text
from devices.probes.cgroup_limits import cpu_quota
from devices.types import CoreCounts, Evidence

CPU_FOLDER = "/sys/devices/system/cpu"
# A core class with a top clock below this share of the fastest counts as efficiency cores (AMD's compact cores
# reach 65 % on Strix Point; favoured cores of one class differ by up to 10 %).
EFFICIENCY_CLOCK_FRAC = 0.8
IMPLEMENTERS = {"0x41": "Arm", "0x51": "Qualcomm", "0x61": "Apple", "0x4e": "NVIDIA", "0x53": "Samsung"}
# winnt.h PF_* numbers. There is none for VNNI or BF16: the backend's own child reports those.
WINDOWS_FEATURES = {
    38: "sse4_2",
    39: "avx",
    40: "avx2",
    41: "avx512f",
    43: "asimddp",
    46: "sve",
    47: "sve2",
    60: "bmi2",
    66: "i8mm",
    67: "asimdhp",
    68: "bf16",
    70: "sme",
}


class Cpu(msgspec.Struct, frozen=True):
    """One machine's CPU; None or empty if unknown."""

    name: str = ""
    vendor: str = ""
    arch: str = ""
    isa: frozenset[str] = frozenset()
    cores: CoreCounts | None = None
    hypervisor: bool = False
    evidence: tuple[Evidence, ...] = ()


def linux_cpu(host: Host) -> Cpu:
    """The CPU from /proc/cpuinfo and the topology folders."""
    info = fields(text(host, "/proc/cpuinfo").partition("\n\n")[0])
    flags = (info.get("flags") or info.get("Features") or "").split()
    implementer = info.get("CPU implementer", "")
    arch = str(host.api("machine") or ("arm64" if implementer else "x86_64" if flags else ""))
    vendor = info.get("vendor_id") or IMPLEMENTERS.get(implementer, "")
    name = info.get("model name", "")
    if not name and implementer:
        name = f"{vendor or implementer} core {info.get('CPU part', '')}".strip()
    features = isa.canonical(flags)
    return Cpu(
        name=name,
        vendor={"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor),
        arch=arch,
        isa=features,
        cores=_linux_cores(host),
        hypervisor="hypervisor" in flags,
        evidence=(
            Evidence("/proc/cpuinfo", "model name", name),
            Evidence("/proc/cpuinfo", "flags", " ".join(sorted(features))),
        ),
    )


def _linux_cores(host: Host) -> CoreCounts | None:
    numbers = [int(n[3:]) for n in host.listdir(CPU_FOLDER) if re.fullmatch(r"cpu[0-9]{1,5}", n, re.ASCII)]
    online = cpu_list(text(host, f"{CPU_FOLDER}/online"))
    cpus = sorted(set(numbers) & online if online and numbers else set(numbers) or online)
    if not cpus:
        count = len(re.findall(r"^processor\s*:", text(host, "/proc/cpuinfo"), re.MULTILINE))
        cpus = list(range(count))
    if not cpus:
        return None
    core_of = {cpu: _core_id(host, cpu) for cpu in cpus}
    slow = _slow_cpus(host, cpus)
    affinity = integers(host.api("affinity"))
    allowed = set(cpus) & set(affinity) if affinity else set(cpus)
    allowed = allowed or set(cpus)
    fast_cores = {core_of[cpu] for cpu in cpus if cpu not in slow}
    return CoreCounts(
        physical=len(set(core_of.values())),
        logical=len(cpus),
        performance=len(fast_cores),
        efficiency=len(set(core_of.values()) - fast_cores),
        allowed_logical=len(allowed),
        allowed_performance=len({core_of[cpu] for cpu in allowed if cpu not in slow}),
        quota_cores=cpu_quota(host),
    )


def _core_id(host: Host, cpu: int) -> tuple[object, object]:
    base = f"{CPU_FOLDER}/cpu{cpu}/topology"
    siblings = cpu_list(text(host, f"{base}/thread_siblings_list"))
    if cpu in siblings:
        return ("siblings", min(siblings))
    core = read_number(host, f"{base}/core_id")
    return (read_number(host, f"{base}/physical_package_id"), cpu if core is None else core)


def _slow_cpus(host: Host, cpus: list[int]) -> set[int]:
    """CPUs of a slower class, by the kernel's lists, ARM capacity or top clock; empty if uniform."""
    atoms = cpu_list(text(host, "/sys/devices/cpu_atom/cpus"))
    if atoms and cpu_list(text(host, "/sys/devices/cpu_core/cpus")):
        return set(cpus) & atoms
    for name, frac in (
        ("cpu_capacity", EFFICIENCY_CLOCK_FRAC),
        ("cpufreq/cpuinfo_max_freq", EFFICIENCY_CLOCK_FRAC),
    ):
        speeds = {cpu: read_number(host, f"{CPU_FOLDER}/cpu{cpu}/{name}") for cpu in cpus}
        known_speeds = [speed for speed in speeds.values() if speed]
        if len(known_speeds) == len(cpus) and min(known_speeds) < frac * max(known_speeds):
            return {cpu for cpu, speed in speeds.items() if speed is not None and speed < frac * max(known_speeds)}
    return set()


def windows_cpu(host: Host) -> Cpu:
    """The CPU from the registry, IsProcessorFeaturePresent and GetLogicalProcessorInformationEx."""
    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    values = host.registry(key)
    name = str(values.get("ProcessorNameString") or "").strip()
    vendor = str(values.get("VendorIdentifier") or "")
    features = {WINDOWS_FEATURES[f] for f in integers(host.api("processor_features")) if f in WINDOWS_FEATURES}
    arch = str(host.api("machine") or "")
    if "avx512f" in features:  # every CPU with AVX-512 on Windows has these extensions too
        features |= {"avx512cd", "avx512bw", "avx512dq", "avx512vl"}
    if "avx2" in features:  # FMA, F16C and BMI2 came with AVX2 in every CPU sold
        features |= {"fma", "f16c", "bmi2"}
    return Cpu(
        name=name,
        vendor={"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor),
        arch=arch,
        isa=isa.canonical(features),
        cores=_windows_cores(host),
        evidence=(Evidence(f"HKLM\\{key}", "ProcessorNameString", name),),
    )


def _windows_cores(host: Host) -> CoreCounts | None:
    cores = [
        (number(core.get("efficiency")) or 0, number(core.get("logical")) or 1)
        for core in records(host.api("logical_processors"))
    ]
    if not cores:
        logical = number(host.env("NUMBER_OF_PROCESSORS"))
        return CoreCounts(logical, logical, logical, 0, logical, logical) if logical else None
    fastest = max(level for level, _ in cores)
    fast = sum(1 for level, _ in cores if level == fastest)
    logical = sum(count for _, count in cores)
    return CoreCounts(len(cores), logical, fast, len(cores) - fast, logical, fast)


def macos_cpu(host: Host) -> Cpu:
    """The CPU from sysctl."""
    name = str(host.sysctl("machdep.cpu.brand_string") or "")
    arm = host.sysctl("hw.optional.arm64") == 1 or name.startswith("Apple")
    features = {
        "FEAT_DotProd": "asimddp",
        "FEAT_FP16": "asimdhp",
        "FEAT_I8MM": "i8mm",
        "FEAT_BF16": "bf16",
        "FEAT_SME": "sme",
    }
    isa_names = {ours for theirs, ours in features.items() if host.sysctl(f"hw.optional.arm.{theirs}") == 1}
    if arm:
        isa_names |= {"asimddp", "asimdhp"}  # every Apple Silicon core has both
    else:
        leaf = f"{host.sysctl('machdep.cpu.features')} {host.sysctl('machdep.cpu.leaf7_features')}"
        renamed = {"avx1.0": "avx", "sse4.2": "sse4_2"}
        isa_names = {renamed.get(word, word) for word in leaf.lower().split()}
    physical = number(host.sysctl("hw.physicalcpu"))
    fast, slow = (
        number(host.sysctl("hw.perflevel0.physicalcpu")),
        number(host.sysctl("hw.perflevel1.physicalcpu")),
    )
    physical = physical or ((fast or 0) + (slow or 0)) or None
    logical = number(host.sysctl("hw.logicalcpu")) or physical
    cores = None
    if physical and logical:
        fast = min(fast, physical) if fast else physical
        cores = CoreCounts(physical, logical, fast, physical - fast, logical, fast)
    return Cpu(
        name=name,
        vendor="Apple" if arm else "Intel",
        arch="arm64" if arm else "x86_64",
        isa=isa.canonical(isa_names),
        cores=cores,
        hypervisor=host.sysctl("kern.hv_vmm_present") == 1,
        evidence=(Evidence("sysctl", "machdep.cpu.brand_string", name),),
    )


def probe_cpu(host: Host) -> Cpu:
    """The CPU of `host`."""
    readers = {"linux": linux_cpu, "windows": windows_cpu, "macos": macos_cpu}
    reader = readers.get(host.system)
    return reader(host) if reader else Cpu()
