"""Models that another program holds: Tessera neither places them nor counts their memory, and says so."""

from typing import Final

from devices.types import Machine
from engine.dispatch.types import Placement
from engine.fit.types import Need
from engine.flm.detect import PREFIX
from engine.runner.protocol import LoadSettings

# What stands before the names of models that another server runs.
UPSTREAM: Final = "upstream:"


def is_external(path: str) -> bool:
    """Whether the settings name a model of FastFlowLM or of an upstream instead of a file."""
    return path.startswith((PREFIX, UPSTREAM))


def place_external(settings: LoadSettings, machine: Machine) -> Placement:
    """On the NPU that FastFlowLM drives, or on the upstream that has the model."""
    if settings.path.startswith(UPSTREAM):
        return place_remote(settings)
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


def place_remote(settings: LoadSettings, why: str = "") -> Placement:
    """On an upstream: its device is `remote:` and its name."""
    name, _, model = settings.path.removeprefix(UPSTREAM).partition("/")
    seen = f"{name} runs it as {model}; its memory is not in this ledger, its speed is not predicted"
    return Placement(
        device=f"remote:{name}",
        device_name=name,
        backend="remote",
        n_layers=0,
        settings=settings,
        need=Need(n_ctx=settings.n_ctx, kv_cells=0, n_sequences=1, type_k="", type_v="", n_gpu_layers=0, parts=()),
        fits=True,
        reasons=(why, seen) if why else (seen,),
    )
