"""What a model whose last layers lie on workers takes, here and on each of them."""

from typing import Final

import msgspec

from engine.placement.estimate import compute_prior, estimate, kv_layer_bytes, work_bytes
from engine.placement.need_types import DryRun, Need, Part
from engine.placement.shape import BLOCK, ModelShape
from engine.runner.load_limits import rollback, sequences
from engine.runner.protocol import LoadSettings

_FAR: Final = "far"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a worker. `buffer` is llama.cpp's name for it; the output counts as a layer.

    `process_bytes` are held there before any tensor is; a CPU also keeps scratch memory of its kernels.
    """

    device: str
    buffer: str
    layers: int
    process_bytes: int = 0
    computes_on_cpu: bool = False


def unit_bytes(shape: ModelShape, settings: LoadSettings) -> list[int]:
    """Weights and cache of every layer, and last of the output, as they lie on a device that rewrites nothing."""
    weights = weight_units(shape)
    kv = kv_layer_bytes(shape, settings)
    count = sequences(settings, keeps_state=shape.recurrent) * (1 + rollback(settings))
    caches = [cache + layer.state_bytes * count for cache, layer in zip(kv, shape.layers, strict=True)]
    return [size + cache for size, cache in zip(weights, [*caches, 0], strict=True)]


def weight_units(shape: ModelShape) -> list[int]:
    """Weights of every layer, and last of the output."""
    trunk = len(shape.layers)
    units = [0] * (trunk + 1)
    for tensor in shape.tensors:
        match = BLOCK.match(tensor.name)
        if match is not None:
            if int(match[1]) < trunk:
                units[int(match[1])] += tensor.nbytes
        elif tensor.name.startswith("output") or (shape.tied and tensor.name == "token_embd.weight"):
            units[trunk] += tensor.nbytes
    return units


def spread_need(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    holders: tuple[Holder, ...],
    dry_run: DryRun | None = None,
) -> Need:
    """The need by device: layers in the order of `holders`, the last of them with the output."""
    count = sum(h.layers for h in holders)
    at = msgspec.structs.replace(settings, n_gpu_layers=count)
    whole = estimate(shape, at, isa, gpu=_FAR, dry_run=dry_run)
    parts = [part for part in whole.parts if part.device != _FAR]
    if dry_run is None:
        parts.append(Part(name="compute", device="cpu", num_bytes=compute_prior(shape, at), basis="prior"))
    weights = weight_units(shape)
    caches = [all_of - size for all_of, size in zip(unit_bytes(shape, at), weights, strict=True)]
    end = len(weights)
    for holder in reversed(holders):
        begin = end - holder.layers
        compute = dry_run.compute_bytes.get(holder.buffer, 0) if dry_run else compute_prior(shape, at)
        work = work_bytes(shape, at) if holder.computes_on_cpu else 0
        parts += [
            Part(name="weights", device=holder.device, num_bytes=sum(weights[begin:end])),
            Part(name="kv", device=holder.device, num_bytes=sum(caches[begin:end])),
            Part(name="compute", device=holder.device, num_bytes=compute, basis="probe" if dry_run else "prior"),
            Part(name="overhead", device=holder.device, num_bytes=holder.process_bytes + work, basis="prior"),
        ]
        end = begin
    nonempty = tuple(part for part in parts if part.num_bytes)
    return msgspec.structs.replace(whole, parts=nonempty, n_gpu_layers=count)
