"""All problems of a machine for local AI, worst first, each with the step that fixes it. Pure."""

from devices import fault_rules, install_hints
from devices.backends.cpu_kernels import BACKEND as TILES
from devices.backends.cpu_kernels import PLATFORMS
from devices.backends.libraries import BACKENDS, WITHOUT_DEVICE
from devices.backends.openvino import BACKEND
from devices.isa import ggml_cpu_variant
from devices.llama_cpp_versions.folder import chosen_version
from devices.merge import heap_bytes
from devices.power import READ_RAPL
from devices.types import NOT_TRIED, BackendReport, Device, Finding, Machine, Severity

ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "advice": 2}
# Below this a model of a billion parameters at 4 bits does not fit next to a desktop.
LITTLE_RAM_BYTES = 6 << 30
LITTLE_FREE_BYTES = 2 << 30
# If firmware sets aside more than this share of the memory for a GPU, the rest of the computer lacks it.
LARGE_CARVE_OUT = 0.6
# Every computer lacks up to this much, because firmware uses some memory itself.
LOST_BYTES = 4 << 30
# The instruction set that determines the best ggml variant for a CPU.
VARIANT_MARKS = {"haswell": "avx2", "zen4": "avx512", "icelake": "avx512", "sapphirerapids": "amx_int8"}


def diagnose(machine: Machine) -> tuple[Finding, ...]:
    """Findings of the machine, its backends and its devices; empty if nothing can be improved."""
    findings = [*machine.findings, *_kernels(machine), *_memory(machine)]
    not_built = _not_built(machine)
    listed = {f.device for f in findings if f.severity != "advice"} | {f.device for f in not_built}
    findings += [f for d in machine.devices if d.id not in listed and (f := _device(d, machine)) is not None]
    findings += [
        _backend(report) for report in machine.backends if report.state == "failed" and report.backend != "cpu"
    ]
    findings += [*not_built, *_openvino(machine), *_meters(machine), *_carve_outs(machine)]
    findings += _faults(machine, {finding.id for finding in findings})
    return tuple(sorted(findings, key=lambda finding: ORDER[finding.severity]))


def _faults(machine: Machine, listed: set[str]) -> list[Finding]:
    """Known faults of a GPU with this driver and engine, and what Tessera does about each."""
    if not any(device.runtimes for device in machine.devices if device.kind in {"igpu", "dgpu"}):
        return []
    rules = fault_rules.load()
    builds = fault_rules.engine_builds(rules, chosen_version())
    findings: dict[str, Finding] = {}
    for device, backend, rule in fault_rules.on_machine(rules, machine, builds):
        when, then = rule.when, rule.then
        about_it = when.gpu or when.versions or when.any_version or when.variable
        if rule.finding in listed or rule.effect == "slow" or not about_it:
            continue
        of_loads = any(getattr(when, name) not in {None, 0, ""} for name in fault_rules.OF_LOADS)
        done = f"does not use {backend} then" if then.avoid else "uses other settings then"
        with_what = f"{backend}, with some models or settings" if of_loads else backend
        source = f" Source: {rule.sources[0]}" if rule.sources else ""
        detail = f"{rule.effect.capitalize()} with {with_what}. Tessera {done}.{source}"
        was_here = rule.id.startswith(fault_rules.FOUND)
        severity: Severity = "advice" if (of_loads and not was_here) or not then.avoid else "warning"
        fix = then.advice or then.engine or "nothing: Tessera works around it"
        findings.setdefault(rule.id, Finding(f"known_{rule.id}", severity, rule.title, detail, fix, device.id))
    return list(findings.values())


def build_summary(machine: Machine) -> str:
    """One line on the kernels of this installation."""
    built = [r.backend for r in machine.backends if r.state in {"usable", "no_device", "failed"}]
    libraries = {r.backend: r.library for r in machine.backends if r.state == "usable"}
    cpu = libraries.get("cpu", "no CPU library")
    gpu = [name for name in built if name in {b.name for b in BACKENDS} - WITHOUT_DEVICE]
    summary = f"Kernels: {cpu}{_prompt_kernels(machine)}; "
    summary += f"GPU backends built: {', '.join(gpu) if gpu else 'none (CPU only)'}."
    used = [f"{d.name} ({r.device_name})" for d in machine.devices for r in d.runtimes if r.backend in gpu]
    return f"{summary} They see {', '.join(used)}." if used else summary


def _prompt_kernels(machine: Machine) -> str:
    """Note on Tessera's own kernels for prompts and attention."""
    report = next((r for r in machine.backends if r.backend == TILES), None)
    if report is not None and report.devices:
        tried = " (checked under Wine, never run on Windows)" if machine.system == "windows" else ""
        return f"; Tessera's for prompts: {report.devices[0].description}{tried}"
    if report is not None:
        return f"; Tessera's for prompts are not used: {report.reason}"
    if not any(r.backend == "cpu" for r in machine.backends):
        return ""
    if install_hints.platform_of(machine.system, machine.arch) not in PLATFORMS:
        return " (llama.cpp's kernels; Tessera's are for x86-64 Linux and Windows)"
    if machine.system == "windows":
        return "; Tessera's for prompts are missing: Tessera's installer brings them"
    return "; Tessera's for prompts were not built"


def meter_summary(machine: Machine) -> str:
    """One line on the power meters in use."""
    readable = [f"{m.name} ({m.part}; {m.note})" for m in machine.meters if m.readable]
    if not readable:
        return "Power meters: none that can be read; energy is not measured."
    return f"Power meters: {', '.join(readable)}."


def _meters(machine: Machine) -> list[Finding]:
    locked = [m for m in machine.meters if not m.readable and m.name.startswith("rapl")]
    if not locked:
        return []
    title = "The CPU counts its energy, but this user may not read it"
    detail = (
        "Without it, Tessera cannot report energy or enforce a limit in watts. It is locked against side channels."
    )
    return [Finding("meter_locked", "advice", title, detail, f"{READ_RAPL}  (until the next start)", "cpu")]


def _kernels(machine: Machine) -> list[Finding]:
    cpu = next((r for r in machine.backends if r.backend == "cpu"), None)
    if not machine.backends:
        return []
    if cpu is None or cpu.state != "usable":
        reason = cpu.reason if cpu else "llama-cpp-python is not installed"
        fix = install_hints.rebuild(machine.system)
        return [Finding("no_kernels", "error", "No model can run: the CPU kernels do not load", reason, fix, "cpu")]
    isa = frozenset(machine.devices[0].isa)
    best = ggml_cpu_variant(isa, machine.arch, machine.system)
    used = {feature.lower() for feature in cpu.features}
    marks = VARIANT_MARKS.get(best or "")
    if marks and used and marks not in used:
        return [
            Finding(
                "slow_kernels",
                "warning",
                f"The CPU kernels do not use this CPU's {marks.upper()}",
                f"{cpu.library} was built for an older CPU; {best} would suit this one.",
                install_hints.rebuild(machine.system),
                "cpu",
            )
        ]
    return []


def _memory(machine: Machine) -> list[Finding]:
    ram = machine.memory
    findings = []
    if ram.total_bytes is not None and ram.total_bytes < LITTLE_RAM_BYTES:
        detail = f"{ram.total_bytes >> 20} MiB: models of up to about a billion parameters at 4 bits will do."
        findings.append(
            Finding("little_ram", "warning", "This machine has little memory", detail, "tessera models starters")
        )
    elif ram.available_bytes is not None and ram.available_bytes < LITTLE_FREE_BYTES:
        detail = f"{ram.available_bytes >> 20} MiB of {(ram.total_bytes or 0) >> 20} MiB are free."
        findings.append(
            Finding("little_free", "warning", "Other programs use most of the memory", detail, "close some")
        )
    if ram.bandwidth_gbs is not None and "claims" in ram.bandwidth_source:
        findings.append(
            Finding(
                "wrong_dmi", "advice", "The firmware reports an impossible memory speed", ram.bandwidth_source, ""
            )
        )
    return findings


def _carve_outs(machine: Machine) -> list[Finding]:
    """Memory set aside for an integrated GPU that no backend can use, or that leaves the CPU little."""
    findings = []
    total, visible = machine.memory.installed_bytes or 0, machine.memory.total_bytes or 0
    for device in machine.devices:
        dedicated = device.memory.dedicated_bytes or 0
        if device.kind != "igpu" or not dedicated or not total:
            continue
        set_aside = total - visible
        if heap_bytes(device) == dedicated and set_aside - dedicated > LOST_BYTES:
            title = f"Only {_gib(dedicated)} of the {_gib(set_aside)} that are set aside for the GPU can be used"
            detail = f"Its backends report heaps of {_gib(dedicated)} together; nothing can use the rest."
            fix = f"set aside at most {_gib(dedicated)}, in the BIOS or in AMD's software"
            findings.append(Finding("heaps_below_carve_out", "warning", title, detail, fix, device.id))
        elif machine.system == "windows" and dedicated > total * LARGE_CARVE_OUT:
            title = f"{_gib(dedicated)} of {_gib(total)} are set aside for the GPU"
            detail = (
                f"The CPU cannot read them: models that run on it have {_gib(visible)}, and the GPU may use "
                "half of that as well."
            )
            fix = "nothing, if your models run on the GPU; else set less aside in the BIOS"
            findings.append(Finding("large_carve_out", "advice", title, detail, fix, device.id))
    return findings


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.0f} GiB"


def _device(device: Device, machine: Machine) -> Finding | None:
    if device.state in {"usable", "unknown"} or device.kind == "cpu":
        return None
    no_trial = device.state == "present" and (device.reason == NOT_TRIED or not device.fix_hint)
    has_card = device.kind == "igpu" and any(d.kind == "dgpu" and d.state == "usable" for d in machine.devices)
    severity: Severity = "advice" if device.kind == "npu" or no_trial or has_card else "warning"
    title = {
        "driver_missing": f"{device.name} has no driver",
        "no_permission": f"This user may not use {device.name}",
        "failed": f"{device.name} does not work",
    }.get(device.state, f"{device.name} is not used")
    return Finding(f"device_{device.state}", severity, title, device.reason, device.fix_hint or "", device.id)


def _backend(report: BackendReport) -> Finding:
    title = f"The {report.backend} backend is installed but does not load"
    return Finding(f"backend_{report.backend}", "warning", title, report.reason, report.fix_hint or "")


def _openvino(machine: Machine) -> list[Finding]:
    """Devices that OpenVINO offers but that could not be opened, and opened ones that this project never tested."""
    findings = []
    for report in machine.backends:
        if report.backend == BACKEND and report.state == "usable" and report.reason:
            title = "OpenVINO could not open every device it offers"
            fix = install_hints.no_device(BACKEND, machine.system) or ""
            findings.append(Finding("openvino_refused", "warning", title, report.reason, fix))
    for device in machine.devices:
        names = [r.device_name for r in device.runtimes if r.backend == BACKEND and device.kind != "cpu"]
        if names:
            title = f"{names[0]} can run models on {device.name}; not tried on this hardware by this project"
            detail = "Each model computes two short texts there and on the CPU before its first answer."
            findings.append(Finding("openvino_untried", "advice", title, detail, "", device.id))
    return findings


def _not_built(machine: Machine) -> list[Finding]:
    """One advice for the best missing backend of each GPU that has none."""
    rows = []
    reports = {r.backend: r for r in machine.backends}
    for device in machine.devices:
        if device.kind not in {"igpu", "dgpu"} or device.runtimes or device.state not in {"present", "unknown"}:
            continue
        suited = (
            b.name for b in BACKENDS if device.kind in b.kinds and (not b.vendors or device.vendor in b.vendors)
        )
        report = next((reports[name] for name in suited if name in reports), None)
        if report is not None and report.state == "not_built":  # else a driver is missing, and the device says so
            title = f"The {report.backend} backend, which could use {device.name}, is not installed"
            rows.append(Finding("backend_not_built", "warning", title, "", report.fix_hint or "", device.id))
    return rows
