"""Which GGUF files OpenVINO's backend accepts, what it loses on them, and the settings it needs.

Source: ggml-openvino of llama.cpp as shipped (ggml-openvino.cpp, ggml-openvino-extra.cpp, ggml-quants.cpp,
docs/backend/OPENVINO.md) and the trials of log-archive.md, OpenVINO.
"""

from collections import Counter
from typing import Final

import msgspec

from devices.backends.openvino import BACKEND, NPU
from devices.types import Device, Machine, Runtime
from engine.message_catalog.reasons import Reason, because
from engine.placement.shape import ModelShape
from engine.placement.types import CPU, MemoryEstimate, MemoryPart
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import GgmlType

# An NPU's graphs have the context compiled in; beyond this its memory cannot hold the attention mask.
NPU_CONTEXT: Final = 4096
# Memory of the runtime's libraries and of compilation leftovers; and how often it stores the weights: as extracted
# by ggml's backend and as the device's kernels need them. Measured: log-archive.md, OpenVINO.
RUNTIME_BYTES: Final = 250 << 20
WEIGHT_COPIES: Final = 2
# KLD of a file whose offsets were rounded (0.38) compared with one with 16-bit weights (0.001): log-archive.md,
# OpenVINO.
_TAKEN: Final = frozenset(kind for kind in GgmlType if kind.traits.openvino)


def is_openvino(settings: LoadSettings) -> bool:
    """Whether these settings are for an OpenVINO device."""
    return any(name.startswith(f"{BACKEND}:") for name in settings.devices)


def refusal(shape: ModelShape, settings: LoadSettings, runtime: Runtime) -> Reason | None:
    """Why this model cannot run there; None if it can be tried."""
    strange = sorted(kind.name for kind in set(_types(shape)) - _TAKEN)
    if strange:
        supported = tuple(sorted(kind.name for kind in _TAKEN))
        return because("openvino_type", type=strange[0], taken=supported)
    if shape.recurrent and runtime.device_name == NPU:
        return because("npu_recurrent")
    if settings.embeddings:
        return because("openvino_embeddings")
    if settings.lora:
        return because("openvino_adapters")
    return because("openvino_pictures") if settings.mmproj_path else None


def cost(shape: ModelShape, runtime: Runtime) -> Reason | None:
    """Reason that names the loss of the file's types on this device; None if there is no loss."""
    kinds = _types(shape)
    total = sum(kinds.values())
    if runtime.device_name == NPU:
        share = sum(n for kind, n in kinds.items() if not kind.traits.is_float) / total
        return because("weights_rounded_again", share=share) if share else None
    rounded = [kind for kind in kinds if kind.traits.openvino == "rounded"]
    if rounded:
        share = sum(kinds[kind] for kind in rounded) / total
        return because("weights_lose_offsets", share=share, types=tuple(kind.name for kind in rounded))
    widened = tuple(kind.name for kind in kinds if kind.traits.openvino == "widened")
    return because("weights_widened", types=widened) if widened else None


def settings_for(base: LoadSettings, runtime: Runtime, device: Device) -> LoadSettings:
    """`base` as OpenVINO needs it: all layers, one sequence, 16-bit cache, fused attention."""
    n_ctx = min(base.n_ctx, NPU_CONTEXT) if device.kind == "npu" else base.n_ctx
    settings = msgspec.structs.replace(
        base,
        devices=(runtime.device_name,),
        n_gpu_layers=-1,
        n_ctx=n_ctx,
        n_parallel=1,
        kv_cells=n_ctx,
        type_k="f16",
        type_v="f16",
        flash_attn="on",
        mtp=False,
        max_rollback=0,
        max_draft=0,
        draft_path=None,
    )
    if device.kind == "npu":  # a prompt is one batch with one output; the backend splits it itself
        settings = msgspec.structs.replace(settings, n_batch=n_ctx, n_ubatch=n_ctx)
    return settings


def pin_refused(shape: ModelShape, settings: LoadSettings, machine: Machine, pin: str) -> Reason | None:
    """Why the OpenVINO device that the user pinned is not used; None if the pin is not an OpenVINO device."""
    for device in machine.devices:
        for runtime in device.runtimes:
            names = {runtime.device_name.lower(), f"{device.id}/{runtime.backend}".lower()}
            if runtime.backend == BACKEND and pin.lower() in names:
                return refusal(shape, settings, runtime)
    return None


def need(estimate: MemoryEstimate) -> MemoryEstimate:
    """Memory of a load with OpenVINO: it stores its own copy of the weights and maps no file pages."""
    parts = tuple(
        msgspec.structs.replace(p, mapped_bytes=0) if p.name == "weights" else p
        for p in (*estimate.parts, MemoryPart(name="overhead", device=CPU, num_bytes=RUNTIME_BYTES, basis="prior"))
    )
    own = RUNTIME_BYTES + estimate.part_bytes("weights") * (WEIGHT_COPIES - 1)
    extra = MemoryPart(name="compute", device=CPU, num_bytes=own - RUNTIME_BYTES, basis="prior")
    return msgspec.structs.replace(estimate, parts=(*parts, extra), resident_bytes=estimate.resident_bytes + own)


def _types(shape: ModelShape) -> Counter[GgmlType]:
    """Values by type, without the token embedding: the CPU looks that up."""
    counts: Counter[GgmlType] = Counter()
    for tensor in shape.tensors:
        if not tensor.name.startswith("token_embd") or shape.tied:
            counts[tensor.ggml_type] += tensor.num_values
    return counts
