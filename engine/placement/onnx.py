"""Places ONNX folders: memory by formula, and the rule by which an NPU gets work."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from devices.battery import is_unplugged
from devices.errors import TesseraError
from devices.memory_ledger import Ledger
from devices.types import Device, Machine
from engine.core.errors import BadModelFile
from engine.message_catalog.reasons import Reason, because
from engine.onnx.folder import OnnxFolder, read_folder
from engine.onnx.providers import ADAPTERS, UNTRIED, Adapter, adapter_of
from engine.placement.estimate import overdraft
from engine.placement.fit_report import claim
from engine.placement.npu_rule import busy_igpu, expected_power, npu_reason
from engine.placement.types import Alternative, FitReport, MemoryEstimate, MemoryPart, Placement, PlacementLimits
from engine.runner.protocol import LoadSettings

# Python, ONNX Runtime and onnxruntime-genai with nothing loaded. Measured: log-archive.md, onnx.
OVERHEAD_BYTES: Final = 110 << 20
# Scratch memory of one prompt chunk of 256 tokens next to the widest layer, generously.
COMPUTE_BYTES: Final = 64 << 20


def is_folder(path: str) -> bool:
    """Whether these settings are for the ONNX runner: it opens folders, llama.cpp opens files."""
    return Path(path).is_dir()


def folder_at(path: str) -> OnnxFolder:
    """The folder's facts. Raises: BadModelFile."""
    try:
        return read_folder(Path(path))
    except (TesseraError, OSError) as error:
        raise BadModelFile(path, str(getattr(error, "reason", error))) from error


def onnx_need(folder: OnnxFolder, settings: LoadSettings) -> MemoryEstimate:
    """Memory of the load: ONNX Runtime stores 16-bit weights as 32 bits, and a full cache for each sequence."""
    stated = folder.own.get("resident_bytes")
    files = sum(p.stat().st_size for g in folder.graphs for p in g.parent.iterdir() if p.is_file())
    kv = folder.kv_bytes(settings.n_ctx) * settings.n_parallel
    parts = (
        MemoryPart(
            name="weights",
            device="cpu",
            num_bytes=stated if isinstance(stated, int) and stated > 0 else files,
        ),
        MemoryPart(name="kv", device="cpu", num_bytes=kv),
        MemoryPart(name="compute", device="cpu", num_bytes=COMPUTE_BYTES, basis="prior"),
        MemoryPart(name="overhead", device="cpu", num_bytes=OVERHEAD_BYTES, basis="prior"),
    )
    return MemoryEstimate(
        n_ctx=settings.n_ctx,
        kv_cells=settings.n_ctx * settings.n_parallel,
        n_sequences=settings.n_parallel,
        type_k="f32",
        type_v="f32",
        n_gpu_layers=0,
        parts=parts,
        resident_bytes=sum(part.num_bytes for part in parts),
    )


def place_folder(
    folder: OnnxFolder,
    base: LoadSettings,
    overrides: PlacementLimits,
    machine: Machine,
    ledger: Ledger,
    owner: str = "",
    environ: Mapping[str, str] | None = None,
) -> Placement:
    """Where the folder runs, and why not elsewhere. Raises: BadModelFile: it was compiled for missing hardware."""
    environ = os.environ if environ is None else environ
    settings = msgspec.structs.replace(base, n_ctx=overrides.n_ctx or base.n_ctx, devices=(), n_gpu_layers=0)
    need = onnx_need(folder, settings)
    choice = choose_provider(folder, settings, overrides, machine, busy_igpu(machine, ledger, owner), environ)
    settings = msgspec.structs.replace(settings, provider=choice.provider)
    device = choice.device or machine.devices[0]
    return Placement(
        device=device.id,
        device_name=device.name,
        backend=f"onnx:{choice.provider or 'CPUExecutionProvider'}",
        n_layers=folder.layers,
        settings=settings,
        need=need,
        fits=overdraft(ledger, need, owner) is None,
        reasons=choice.reasons,
        alternatives=choice.alternatives,
    )


class ProviderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A provider (empty: the CPU) on a device, with reasons and rejected alternatives."""

    provider: str = ""
    device: Device | None = None
    reasons: tuple[Reason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


def choose_provider(
    folder: OnnxFolder,
    settings: LoadSettings,
    overrides: PlacementLimits,
    machine: Machine,
    igpu_busy: bool,
    environ: Mapping[str, str],
) -> ProviderChoice:
    """Choose a provider. A pin beats the folder's own choice, which beats the mode; otherwise it is the CPU.

    Raises: BadModelFile: the pinned provider, or the one the folder was compiled for, cannot be used here.
    """
    npus = [d for d in machine.devices if d.kind == "npu"]
    adapters = [a for a in map(adapter_of, folder.providers) if a is not None]
    pin = settings.provider or _pinned(overrides, npus)
    if adapters and not pin:
        return _compiled(folder, adapters[0], npus, environ)
    if pin and pin.lower() not in {"cpu", "cpuexecutionprovider"}:
        adapter = adapter_of(pin) or _for_vendor(npus, machine.system)
        if adapter is None:
            raise BadModelFile(str(folder.path), because("provider_unknown", pin=pin))
        problem = adapter.problem(folder.release, environ)
        if problem:
            raise BadModelFile(str(folder.path), problem)
        device = next((d for d in npus if d.vendor in adapter.vendors), None)
        return ProviderChoice(
            provider=adapter.provider, device=device, reasons=(because("pinned_provider"), _tried(adapter))
        )
    why = _npu_reason(folder, overrides, igpu_busy)
    rows: list[Alternative] = []
    for npu in npus:
        adapter = _for_vendor([npu], machine.system)
        no = _not_usable(npu, adapter, folder, environ)
        if no is None and why is not None and adapter is not None and not pin:
            chosen_for = (why, expected_power(npu.vendor), _tried(adapter))
            return ProviderChoice(provider=adapter.provider, device=npu, reasons=chosen_for)
        reason = no or because("pinned_processor" if pin else "npu_rule")
        rows.append(Alternative(device=npu.id, backend="onnx", n_gpu_layers=0, decode_tok_s=None, reason=reason))
    reasons = [because("pinned_processor")] if pin else []
    if why is not None and npus and not pin:
        reasons.append(because("npu_wanted_but", why=why, problem=rows[0].reason))
    reasons.append(because("onnx_on_processor" if npus else "no_npu"))
    return ProviderChoice(reasons=tuple(reasons), alternatives=tuple(rows))


def with_power(overrides: PlacementLimits) -> PlacementLimits:
    """The overrides with the current power source: battery or mains."""
    return msgspec.structs.replace(overrides, on_battery=True) if is_unplugged() else overrides


def admit(model_id: str, settings: LoadSettings, machine: Machine, ledger: Ledger) -> None:
    """Reserve the memory of a load. Raises: NotEnoughMemory, BadModelFile."""
    folder = folder_at(settings.path)
    need = onnx_need(folder, settings)

    def report() -> FitReport:
        placement = Placement(
            device="cpu", device_name="", backend="onnx", n_layers=folder.layers, settings=settings, need=need,
            fits=False,
        )  # fmt: skip
        return folder_report(model_id, placement, machine, ledger)

    claim(model_id, need, f"{folder.architecture}|onnx", machine, ledger, report)


def _compiled(
    folder: OnnxFolder, adapter: Adapter, npus: list[Device], environ: Mapping[str, str]
) -> ProviderChoice:
    """The provider for a folder compiled by a vendor: it can run only there."""
    problem = adapter.problem(folder.release, environ)
    if problem:
        raise BadModelFile(str(folder.path), problem)
    device = next((d for d in npus if d.vendor in adapter.vendors), None)
    compiled = because("compiled_for", provider=adapter.title)
    if folder.release:
        compiled = because("compiled_for_release", provider=adapter.title, release=folder.release)
    return ProviderChoice(device=device, reasons=(compiled, _tried(adapter)))


def _pinned(overrides: PlacementLimits, npus: list[Device]) -> str:
    if overrides.device is None:
        return ""
    pin = overrides.device.lower()
    if pin in {"cpu", "npu"} or adapter_of(pin) is not None:
        return pin
    return next(("npu" for d in npus if d.id.lower() == pin), "")


def _npu_reason(folder: OnnxFolder, overrides: PlacementLimits, igpu_busy: bool) -> Reason | None:
    """Why an NPU should get this model, or None."""
    side_work = folder.kind != "generate"  # a chat in ONNX may be of any size
    return npu_reason(overrides, igpu_busy=igpu_busy and side_work, side_work=side_work)


def _for_vendor(npus: list[Device], system: str) -> Adapter | None:
    """The provider that accepts plain ONNX graphs on these NPUs; AMD's accepts only compiled folders."""
    vendors = {d.vendor for d in npus}
    for adapter in ADAPTERS.values():
        if vendors & set(adapter.vendors) and system in adapter.systems and adapter.genai_name in _NPU_PROVIDERS:
            return adapter
    return None


_NPU_PROVIDERS: Final = ("RyzenAI", "OpenVINO", "QNN")


def _not_usable(
    npu: Device, adapter: Adapter | None, folder: OnnxFolder, environ: Mapping[str, str]
) -> Reason | None:
    if npu.state not in {"usable", "present"}:
        return because("device_problem", device=npu.name, why=npu.reason)
    if adapter is None:
        return because("no_provider", device=npu.name)
    if adapter.genai_name == "RyzenAI":
        return because("npu_compiled_only", device=npu.name)
    return adapter.problem(folder.release, environ)


def _tried(adapter: Adapter) -> Reason:
    if adapter.tried == UNTRIED:
        return because("provider_untried", provider=adapter.title)
    return because("provider_tried", provider=adapter.title, tried=adapter.tried)


def folder_report(model_id: str, placement: Placement, machine: Machine, ledger: Ledger) -> FitReport:
    """Whether that placement fits now."""
    free = ledger.available("cpu", machine, exclude=model_id)
    fixed = sum(part.num_bytes for part in placement.need.parts if part.name != "kv")
    per_token = placement.need.part_bytes("kv") // max(1, placement.need.kv_cells)
    sequences = max(1, placement.need.n_sequences)
    largest = max(0, free - fixed) // (per_token * sequences) if per_token else placement.need.n_ctx
    return FitReport(
        model=model_id,
        fits=placement.fits,
        need=placement.need,
        available_bytes={"cpu": free},
        largest_context=int(largest),
        notes=(because("onnx_cache"),),
    )
