"""Folders that vLLM runs: on which GPU, with which part of its memory, or on the CPU by vLLM's CPU build."""

import math
from typing import Final

import msgspec

from devices.memory_ledger import Ledger
from devices.msgspec_lock import learned
from devices.types import Device, Machine
from engine.message_catalog.reasons import because
from engine.placement.estimate import CPU
from engine.placement.fit_report import overdraft
from engine.placement.need_types import Need, Part
from engine.placement.types import Placement
from engine.runner.protocol import LoadSettings
from engine.vllm.detect import VllmModel, describe, folder_of

BACKEND: Final = "vllm"
# Beside weights and cache: CUDA's context, the largest step's activations and CUDA graphs; and on the host the
# API server's and the engine's Python. Source: vLLM's own logs of 7B and 8B models; not measured by this project.
GPU_WORK_BYTES: Final = 3_000_000_000
HOST_BYTES: Final = 3_000_000_000
# vLLM takes a part of the GPU, given in hundredths here, and refuses to start where less is free.
_STEPS: Final = 100
GIB: Final = 1 << 30


def place_vllm(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str = "") -> Placement:
    """On the NVIDIA GPU with most room, else on the CPU. Raises: BadModelFile."""
    model = describe(folder_of(settings.path))
    gpus = _gpus(machine)
    gpu = max(gpus, key=lambda d: ledger.available(d.id, machine, exclude=owner), default=None)
    chosen = _on(settings, model, gpu, gpus)
    need = vllm_need(chosen, model, gpu)
    cpu = machine.device(CPU)
    where = because("vllm_gpu", gb=need.device_bytes(gpu.id) / 1e9) if gpu else because("vllm_processor")
    return Placement(
        device=gpu.id if gpu else CPU,
        device_name=gpu.name if gpu else cpu.name if cpu else CPU,
        backend=BACKEND,
        n_layers=0,
        settings=chosen,
        need=need,
        fits=overdraft(ledger, need, owner) is None,
        reasons=(because("vllm"), where, because("untried")),
    )


def vllm_need(settings: LoadSettings, model: VllmModel, gpu: Device | None) -> Need:
    """Weights, cache and work of a load; on a GPU rounded up to the part that vLLM is given."""
    cache = settings.kv_cells * model.token_bytes
    if gpu is None:
        cache = cache_gib(settings, model) * GIB
        parts = [_part("weights", CPU, model.weights_bytes), _part("kv", CPU, cache)]
    else:
        given = int(settings.gpu_frac * (gpu.memory.physical_bytes or 0))
        work = max(0, given - model.weights_bytes - cache)
        parts = [
            _part("weights", gpu.id, model.weights_bytes),
            _part("kv", gpu.id, cache),
            _part("compute", gpu.id, work),
        ]
    parts.append(_part("overhead", CPU, HOST_BYTES))
    return Need(
        n_ctx=settings.n_ctx,
        kv_cells=settings.kv_cells,
        n_sequences=settings.n_parallel,
        type_k="",
        type_v="",
        n_gpu_layers=0,
        parts=tuple(parts),
        resident_bytes=sum(part.num_bytes for part in parts if part.device == CPU),
    )


def cache_gib(settings: LoadSettings, model: VllmModel) -> int:
    """GiB of cache that the CPU build is given: whole ones, at least one."""
    return max(1, math.ceil(settings.kv_cells * model.token_bytes / GIB))


def vllm_claim(settings: LoadSettings, machine: Machine) -> tuple[Need, str]:
    """What a load takes, and the key of its measurements. Raises: BadModelFile."""
    gpu = next((d for i, d in enumerate(_gpus(machine)) if settings.provider == f"cuda:{i}"), None)
    return vllm_need(settings, describe(folder_of(settings.path)), gpu), f"vllm|{gpu.id if gpu else CPU}"


def _gpus(machine: Machine) -> list[Device]:
    """NVIDIA's, in the order of their PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID counts them."""
    found = [d for d in machine.devices if d.kind == "dgpu" and d.vendor == "NVIDIA" and d.state == "usable"]
    return sorted((d for d in found if d.memory.physical_bytes), key=lambda d: d.id)


def _on(settings: LoadSettings, model: VllmModel, gpu: Device | None, gpus: list[Device]) -> LoadSettings:
    if gpu is None:
        return msgspec.structs.replace(settings, provider=CPU, gpu_frac=0.0)
    wanted = model.weights_bytes + settings.kv_cells * model.token_bytes + GPU_WORK_BYTES
    part = math.ceil(wanted / (gpu.memory.physical_bytes or 1) * _STEPS) / _STEPS
    return msgspec.structs.replace(settings, provider=f"cuda:{gpus.index(gpu)}", gpu_frac=part)


def _part(name: str, device: str, num_bytes: int) -> Part:
    return msgspec.convert(
        {"name": name, "device": device, "num_bytes": num_bytes, "basis": "prior"}, learned(Part)
    )
