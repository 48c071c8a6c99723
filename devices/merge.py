"""Joins backend reports with the devices of the inventory, and decides each device's state."""

from msgspec.structs import replace

from devices import install_hints, types
from devices.backends import openvino
from devices.backends.cpu_kernels import BACKEND as TILES
from devices.backends.libraries import BACKENDS
from devices.chips import with_chips
from devices.isa import canonical
from devices.probes import fix_hints, gpu_ids
from devices.types import BackendDevice, BackendReport, Device, Evidence, Kind, Machine, Memory, Runtime, State

# ggml's CPU feature names → Tessera's, if they differ.
CPU_FEATURES = {"avx512": "avx512f", "dotprod": "asimddp", "matmul_int8": "i8mm", "fp16_va": "asimdhp", "ssse3": ""}
UNKNOWN = "unknown"
ONNX_KINDS = {"cpu": ("cpu",), "gpu": ("igpu", "dgpu"), "npu": ("npu",)}
# A driver keeps some of a carve-out to itself; heaps below this share of it are smaller than the carve-out.
HEAPS_SHORT = 0.9
# Vendors by words in a device's name, and the vendors of backends that support only one.
VENDORS = {
    "NVIDIA": ("nvidia", "geforce", "quadro", "tesla"),
    "AMD": ("amd", "radeon"),
    "Intel": ("intel",),
    "Qualcomm": ("qualcomm", "adreno"),
    "Apple": ("apple",),
}
# Software renderers that present themselves as GPUs.
SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "swrast")


def merged(machine: Machine) -> Machine:
    """`machine` with a Runtime on every device that a backend can use, and a reason and hint on every other."""
    devices = {device.id: device for device in machine.devices}
    for report in machine.backends:
        if report.state == "usable":
            for index, listed in enumerate(report.devices):
                _attach(devices, report, listed, index)
    cpu = devices.get("cpu")
    features = next((r.features for r in machine.backends if r.backend == "cpu" and r.state == "usable"), ())
    if cpu is not None and features:
        names = canonical(CPU_FEATURES.get(f.lower(), f.lower()) for f in features)
        devices["cpu"] = replace(cpu, isa=tuple(sorted({*cpu.isa, *names})))
    settled = (_settled(_within_heaps(device), machine) for device in devices.values())
    return with_chips(replace(machine, devices=tuple(settled)))


def _attach(devices: dict[str, Device], report: BackendReport, listed: BackendDevice, index: int) -> None:
    """Add the runtime to its device: by PCI address, else by kind, vendor and name; else to a new device."""
    device = _match(devices, report, listed)
    if device is None:
        if report.backend in {"onnx", "rpc"}:
            return
        device = _unlisted(report, listed)
    elif device.vendor == UNKNOWN:  # behind a layer such as WSL, only its backend knows it
        kind: Kind = "igpu" if listed.kind == "igpu" else device.kind
        device = replace(
            device,
            vendor=_vendor(report, listed),
            name=gpu_ids.plain_name(listed.description) or device.name,
            kind=kind,
        )
    runtime = Runtime(
        backend=report.backend,
        device_name=listed.name,
        index=index,
        total_bytes=listed.total_bytes,
        free_bytes=listed.free_bytes,
        state="usable",
        version=report.version,
        description=listed.description,
        matrix_units=listed.matrix_units,
        int_dot=listed.int_dot,
    )
    devices[device.id] = replace(
        device, memory=_memory(device, listed), runtimes=(*device.runtimes, runtime), name=_name(device, listed)
    )


def _match(devices: dict[str, Device], report: BackendReport, listed: BackendDevice) -> Device | None:
    if listed.device_id and listed.device_id in devices:
        return devices[listed.device_id]
    if listed.kind == "cpu" or report.backend == TILES:
        return devices.get("cpu")
    if any(mark in listed.description.lower() for mark in SOFTWARE):
        return None
    if report.backend == "onnx":
        kinds = ONNX_KINDS.get(listed.kind, ())
        return next((d for d in devices.values() if d.kind in kinds), None)
    backend = next((b for b in BACKENDS if b.name == report.backend), None)
    if listed.kind == "npu":
        npus = [d for d in devices.values() if d.kind == "npu" and (backend is None or d.vendor in backend.vendors)]
        return next(iter(npus), None)
    gpus = [
        d
        for d in devices.values()
        if d.kind in {"igpu", "dgpu"}
        and (backend is None or not backend.vendors or d.vendor in {*backend.vendors, UNKNOWN})
        and not (listed.device_id and d.pci)
        and d.state not in {"driver_missing", "failed"}
        and not any(r.backend == report.backend for r in d.runtimes)
    ]
    words = set(listed.description.lower().split())
    same_kind = [d for d in gpus if (d.kind == "igpu") == (listed.kind == "igpu")] or gpus
    return max(same_kind, key=lambda d: len(words & set(d.name.lower().split())), default=None)


def _name(device: Device, listed: BackendDevice) -> str:
    """The driver's own name if the inventory's is only that of its id."""
    if any(e.key == gpu_ids.NAME_OF_ID for e in device.evidence):
        return gpu_ids.plain_name(listed.description) or device.name
    return device.name


def _memory(device: Device, listed: BackendDevice) -> Memory:
    """Memory limited to what the backend can reach: the smaller of both figures, never the larger."""
    memory = device.memory
    if device.kind == "cpu" or not listed.total_bytes:
        return memory
    total = memory.budget_bytes
    if total is None:
        return replace(
            memory,
            physical_bytes=memory.physical_bytes or listed.total_bytes,
            dedicated_bytes=None if memory.unified else listed.total_bytes,
            shared_limit_bytes=listed.total_bytes if memory.unified else None,
            available_bytes=min(listed.free_bytes, listed.total_bytes),
        )
    if device.vendor == "Apple":  # the working set that Metal reports replaces the assumed share of RAM
        limit = min(listed.total_bytes, memory.physical_bytes or listed.total_bytes)
        return replace(memory, shared_limit_bytes=limit, available_bytes=_minimum(memory.available_bytes, limit))
    available = memory.available_bytes
    if available is None or available == total:
        available = min(listed.free_bytes, total)
    return replace(memory, available_bytes=_minimum(available, total))


def _within_heaps(device: Device) -> Device:
    """The device, limited to its backends' heaps if all of them are smaller than the carve-out."""
    memory, reach = device.memory, heap_bytes(device)
    if device.kind != "igpu" or not reach or reach >= HEAPS_SHORT * (memory.dedicated_bytes or 0):
        return device
    available = _minimum(memory.available_bytes, reach)
    limited = replace(memory, dedicated_bytes=reach, shared_limit_bytes=0, available_bytes=available)
    return replace(device, memory=limited)


def heap_bytes(device: Device) -> int:
    """The most memory that a usable backend reports for this device: the sum of its heaps. 0: none reports any."""
    return max((r.total_bytes for r in device.runtimes if r.state == "usable"), default=0)


def _minimum(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _unlisted(report: BackendReport, listed: BackendDevice) -> Device:
    """A device that no inventory source shows: a software renderer, or one behind a layer such as WSL."""
    software = any(mark in listed.description.lower() for mark in SOFTWARE)
    unified = software or listed.kind in {"igpu", "npu"}
    return Device(
        id=listed.device_id or f"{report.backend}:{listed.name.lower()}",
        kind="npu" if listed.kind == "npu" else "igpu" if unified else "dgpu",
        vendor="software" if software else _vendor(report, listed),
        name=gpu_ids.plain_name(listed.description) or listed.name,
        state="present",
        memory=Memory(
            physical_bytes=listed.total_bytes,
            dedicated_bytes=None if unified else listed.total_bytes,
            shared_limit_bytes=listed.total_bytes if unified else None,
            available_bytes=min(listed.free_bytes, listed.total_bytes),
            unified=unified,
        ),
        evidence=(Evidence(report.library, "device", listed.description),),
    )


def _vendor(report: BackendReport, listed: BackendDevice) -> str:
    """The vendor by the device's name, else by the backend if it is for one vendor only."""
    name = listed.description.lower()
    by_name = next((vendor for vendor, words in VENDORS.items() if any(word in name for word in words)), None)
    only = next((b.vendors for b in BACKENDS if b.name == report.backend), ())
    return by_name or (next(iter(only)) if len(only) == 1 else UNKNOWN)


def _settled(device: Device, machine: Machine) -> Device:  # noqa: PLR0911 - one for each state
    if any(r.state == "usable" for r in device.runtimes):
        return replace(device, state="usable", reason="", fix_hint=None)
    if device.state != "present":
        return device if device.fix_hint else replace(device, fix_hint=fix_hints.UNKNOWN)
    if device.kind == "npu":
        return (
            device
            if device.fix_hint
            else replace(device, fix_hint=fix_hints.NPU_RUNTIME.get(device.vendor, fix_hints.UNKNOWN))
        )
    candidates = [b for b in BACKENDS if device.kind in b.kinds and (not b.vendors or device.vendor in b.vendors)]
    reports = {r.backend: r for r in machine.backends}
    failed = [
        r for b in candidates if (r := reports.get(b.name)) is not None and r.state in {"failed", "no_device"}
    ]
    if failed:
        reason = "; ".join(f"{r.backend}: {r.reason}" for r in failed)
        state: State = "failed" if any(r.state == "failed" for r in failed) else "present"
        return replace(device, state=state, reason=reason, fix_hint=failed[0].fix_hint or fix_hints.UNKNOWN)
    names = [b.name for b in candidates if machine.system in b.systems]
    if not names:
        return replace(device, state="unknown", reason=types.NO_BACKEND_KNOWN, fix_hint=fix_hints.UNKNOWN)
    for name in names:
        if name != openvino.BACKEND and name in reports and reports[name].state == "usable":
            driver = install_hints.no_device(name, machine.system) or fix_hints.UNKNOWN
            return replace(device, reason=types.NOT_OFFERED, fix_hint=driver)
    absent = reports.get(names[0])
    if absent is not None and absent.state == "not_built" and absent.reason != types.NOT_INSTALLED:
        return replace(device, reason=absent.reason, fix_hint=absent.fix_hint)
    hint = absent.fix_hint if absent else install_hints.missing_backend(names[0], machine.system, machine.arch)
    return replace(device, reason=types.NO_KERNELS, fix_hint=hint)
