"""Models that another program holds: Tessera neither places them nor counts their memory, and says so."""

from devices.types import Machine
from engine.dispatch.types import Placement
from engine.fit.types import Need
from engine.flm.detect import PREFIX
from engine.runner.protocol import LoadSettings


def is_external(path: str) -> bool:
    """Whether the settings name a model of FastFlowLM instead of a file."""
    return path.startswith(PREFIX)


def place_external(settings: LoadSettings, machine: Machine) -> Placement:
    """On the NPU that FastFlowLM drives."""
    npu = next((d for d in machine.devices if d.kind == "npu" and d.vendor == "AMD"), None)
    seen = "FastFlowLM runs it on its own" if npu else "FastFlowLM runs it on its own, though no NPU was found here"
    return Placement(
        device=npu.id if npu else "npu",
        device_name=npu.name if npu else "NPU",
        backend="flm",
        n_layers=0,
        settings=settings,
        need=Need(n_ctx=settings.n_ctx, kv_cells=0, n_sequences=1, type_k="", type_v="", n_gpu_layers=0, parts=()),
        fits=True,
        reasons=(seen, "its memory is not in Tessera's ledger", "not tried on hardware by this project"),
    )
