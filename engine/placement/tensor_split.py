"""Layers over several GPUs: which device gets which by llama.cpp's rule, what each then holds, and good shares."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from devices.types import Machine
from engine.placement.estimate import gpu_layer_start, on_gpu
from engine.placement.need_types import Need, Part
from engine.placement.shape import BLOCK, ModelShape
from engine.runner.protocol import LoadSettings


def owners(shape: ModelShape, settings: LoadSettings, shares: Sequence[float]) -> tuple[int | None, ...]:
    """Which device (its number) each layer and, last, the output lie on; None: the CPU.

    Source: llama-model.cpp, load_tensors: shares are summed up, and a layer's place among those offloaded decides.
    """
    count, start = len(shape.layers) + 1, gpu_layer_start(shape, settings.n_gpu_layers)
    sums = list(accumulate(shares))
    ends = [at / (sums[-1] or 1.0) for at in sums]
    offloaded = max(1, count - start)
    return tuple(
        None if layer < start else min(bisect_right(ends, (layer - start) / offloaded), len(ends) - 1)
        for layer in range(count)
    )


def layer_bytes(shape: ModelShape, settings: LoadSettings, kv_layers: Sequence[int]) -> list[int]:
    """Bytes of weights and cache of each layer, and last of the output, that lie on GPUs."""
    there, trunk = on_gpu(shape, settings), len(shape.layers)
    held = [*kv_layers, 0]
    for tensor in shape.tensors:
        match = BLOCK.match(tensor.name)
        layer = int(match[1]) if match else trunk
        if there(tensor) and layer <= trunk:
            held[layer] += tensor.nbytes
    return held


def layer_counts(sizes: Sequence[int], free: Sequence[int]) -> tuple[float, ...]:
    """How many layers, in their order, each device gets for its part of all bytes to match its free memory."""
    whole, capacity = sum(sizes) or 1, sum(free) or 1
    ends = [at / capacity for at in accumulate(free)]
    counts, done = [0] * len(free), 0
    for size in sizes:
        middle = (done + size / 2) / whole
        counts[min(bisect_right(ends, middle), len(free) - 1)] += 1
        done += size
    return tuple(map(float, counts))


def shared_out(need: Need, shape: ModelShape, settings: LoadSettings, machine: Machine, gpu: str | None) -> Need:
    """`need` with what lies on `gpu` divided over the devices that layers are split over.

    Each of them has scratch memory of its own; what belongs to no layer stays on the first.
    """
    args = settings.engine_args
    if gpu is None or len(settings.devices) < 2 or args.split_mode == "none":  # noqa: PLR2004 - nothing to share
        return need
    ids = [_device_id(name, machine) or gpu for name in settings.devices]
    shares = args.tensor_split or settings.tensor_split or tuple(1.0 for _ in ids)
    held = layer_bytes(shape, settings, need.kv_layer_bytes)
    parts: list[Part] = []
    by_device = [0] * len(ids)
    for owner, size in zip(owners(shape, settings, shares), held, strict=True):
        if owner is not None:
            by_device[owner] += size
    whole = sum(by_device) or 1
    for part in need.parts:
        if part.device != gpu or part.name in {"projector", "draft", "correction"}:
            parts.append(part)
            continue
        for device, size in zip(ids, by_device, strict=True):
            mine = part.num_bytes if part.name == "compute" else round(part.num_bytes * size / whole)
            parts.append(msgspec.structs.replace(part, device=device, num_bytes=mine))
    return msgspec.structs.replace(need, parts=tuple(part for part in parts if part.num_bytes))


def _device_id(name: str, machine: Machine) -> str | None:
    return next((d.id for d in machine.devices if any(r.device_name == name for r in d.runtimes)), None)
