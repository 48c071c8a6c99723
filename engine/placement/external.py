"""Models that another program holds: Tessera does not place them; of FastFlowLM's it counts the memory."""

from typing import Final

import msgspec

from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.flm.detect import PREFIX, FlmModel, installed_model, tag_of
from engine.message_catalog.reasons import Reason, because
from engine.placement.estimate import CPU
from engine.placement.fit_report import claim, overdraft
from engine.placement.need_types import FitReport, Need, Part
from engine.placement.types import Placement
from engine.placement.vllm import place_vllm, vllm_claim
from engine.runner.protocol import LoadSettings
from engine.vllm.detect import PREFIX as VLLM

# What stands before the names of models that another server runs.
UPSTREAM: Final = "upstream:"
# Its server without a model, and a model of which its list tells nothing (a 3B of its list). Not measured: no NPU.
FLM_BYTES: Final = 300_000_000
UNKNOWN_BYTES: Final = 3_000_000_000


def is_external(path: str) -> bool:
    """Whether the settings name a model of FastFlowLM, of vLLM or of an upstream instead of a file."""
    return path.startswith((PREFIX, VLLM, UPSTREAM))


def place_external(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str = "") -> Placement:
    """On the NPU that FastFlowLM drives, where vLLM runs it, or on the upstream that has the model."""
    if settings.path.startswith(VLLM):
        return place_vllm(settings, machine, ledger, owner)
    if settings.path.startswith(UPSTREAM):
        return place_remote(settings)
    model = installed_model(tag_of(settings.path))
    npu = next((d for d in machine.devices if d.kind == "npu" and d.vendor == "AMD"), None)
    return Placement(
        device=npu.id if npu else "npu",
        device_name=npu.name if npu else "NPU",
        backend="flm",
        n_layers=0,
        settings=settings,
        need=flm_need(settings, model),
        fits=overdraft(ledger, flm_need(settings, model), owner) is None,
        reasons=(because("flm" if npu else "flm_without_npu"), _why_memory(model), because("untried")),
    )


def flm_need(settings: LoadSettings, model: FlmModel) -> Need:
    """What its list says that a model takes, and its server; an NPU of AMD works in the CPU's memory."""
    parts = (
        Part(name="weights", device=CPU, num_bytes=model.footprint_bytes or UNKNOWN_BYTES, basis="prior"),
        Part(name="overhead", device=CPU, num_bytes=FLM_BYTES, basis="prior"),
    )
    return Need(
        n_ctx=settings.n_ctx,
        kv_cells=0,
        n_sequences=1,
        type_k="",
        type_v="",
        n_gpu_layers=0,
        parts=parts,
        resident_bytes=sum(part.num_bytes for part in parts),
    )


def admit_external(model_id: str, settings: LoadSettings, machine: Machine, ledger: Ledger) -> None:
    """Reserve what a load takes here; an upstream's takes nothing. Raises: NotEnoughMemory, BadModelFile."""
    if settings.path.startswith(UPSTREAM):
        return
    if settings.path.startswith(VLLM):
        need, key = vllm_claim(settings, machine)
    else:
        need, key = flm_need(settings, installed_model(tag_of(settings.path))), "flm|npu"

    def report() -> FitReport:
        placed = place_external(settings, machine, ledger, model_id)
        return external_report(model_id, msgspec.structs.replace(placed, need=need, fits=False), machine, ledger)

    claim(model_id, need, key, machine, ledger, report)


def external_report(model_id: str, placement: Placement, machine: Machine, ledger: Ledger) -> FitReport:
    """Whether it fits now; another server's always does."""
    need, path = placement.need, placement.settings.path
    if path.startswith(UPSTREAM):
        return FitReport(model=model_id, fits=True, need=need, available_bytes={}, largest_context=0)
    return FitReport(
        model=model_id,
        fits=placement.fits,
        need=need,
        available_bytes={device: ledger.available(device, machine, exclude=model_id) for device in need.devices},
        largest_context=need.n_ctx if placement.fits else 0,
        notes=(because("vllm_memory" if path.startswith(VLLM) else "flm_cache"),),
    )


def _why_memory(model: FlmModel) -> Reason:
    if not model.footprint_bytes:
        return because("flm_memory_unknown", gb=UNKNOWN_BYTES / 1e9)
    return because("flm_memory", gb=model.footprint_bytes / 1e9)


def place_remote(settings: LoadSettings, why: Reason | None = None) -> Placement:
    """On an upstream: its device is `remote:` and its name."""
    name, _, model = settings.path.removeprefix(UPSTREAM).partition("/")
    seen = because("upstream", upstream=name, model=model)
    return Placement(
        device=f"remote:{name}",
        device_name=name,
        backend="remote",
        n_layers=0,
        settings=settings,
        need=Need(n_ctx=settings.n_ctx, kv_cells=0, n_sequences=1, type_k="", type_v="", n_gpu_layers=0, parts=()),
        fits=True,
        reasons=(why, seen) if why is not None else (seen,),
    )
