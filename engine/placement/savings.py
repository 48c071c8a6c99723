"""Trade-offs that make a load fit, cheapest first, each with its bytes."""

import math
from collections.abc import Callable, Mapping

import msgspec

from devices.errors import TesseraError
from engine.message_catalog.reasons import Reason, because
from engine.placement.estimate import largest_context
from engine.placement.shape import ModelShape
from engine.placement.types import FitOption, MemoryEstimate, OptionKind
from engine.runner.load_limits import resize_context
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import BLOCK_SIZES
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.llama_cpp_presets import stock_types
from quantize.types import ModelSpec, TensorSpec

GIB, MIB = 1 << 30, 1 << 20
# Loss of each quantization recipe, smallest first.
MIX_COSTS: Mapping[str, float] = dict(
    sorted(((name, mix.loss) for name, mix in MIXES.items() if mix.loss is not None), key=lambda row: row[1])
)
KV_COSTS = {"q8_0": 0.5, "q4_0": 3.5}
PARALLEL_COST, UNLOAD_COST, CONTEXT_COST = 0.7, 1.0, 1.0
# A layer on the CPU costs speed, never quality; moving all of them loses the whole benefit of a GPU.
OFFLOAD_COST, MOST_OFFLOAD_COST = 0.6, 3.0
SHORTEST, WORTHWHILE_CONTEXT = 512, 2048

Judge = Callable[[MemoryEstimate], bool]
Estimate = Callable[[LoadSettings], MemoryEstimate]


def fit_options(
    shape: ModelShape,
    settings: LoadSettings,
    estimate: Estimate,
    fits: Judge,
    bytes_by_owner: Mapping[str, int],
    name: str = "MODEL",
    *,
    on_disk: bool = True,
) -> tuple[FitOption, ...]:
    """Options that make the load fit. `bytes_by_owner`: other loaded models and their bytes; `name`: the model's.

    `estimate` returns the need at other settings, `fits` evaluates it. Single steps come first; two steps are
    combined only if no single one is enough.
    """
    needed = estimate(settings).total_bytes
    options = [
        *_caches(settings, estimate, fits, needed),
        *_parallel(settings, estimate, fits, needed),
        *_contexts(shape, settings, estimate, fits, needed),
        *_offload(shape, settings, estimate, fits, needed),
        *_mixes(shape, settings, estimate, fits, name, on_disk=on_disk),
        *_unloads(estimate(settings), bytes_by_owner),
    ]
    return tuple(sorted(options, key=lambda way: way.cost))


def _caches(settings: LoadSettings, estimate: Estimate, fits: Judge, needed: int) -> list[FitOption]:
    options = []
    for kv_type, cost in KV_COSTS.items():
        if settings.type_k in {kv_type, "q4_0"}:
            continue
        need = estimate(msgspec.structs.replace(settings, type_k=kv_type, type_v=kv_type, flash_attn="on"))
        if fits(need):
            change = because("option_kv", kv_type=kv_type, before=settings.type_k)
            options.append(_way("kv", change, need, needed, cost))
    return options


def _parallel(settings: LoadSettings, estimate: Estimate, fits: Judge, needed: int) -> list[FitOption]:
    if settings.n_parallel == 1:
        return []
    single = msgspec.structs.replace(settings, n_parallel=1, kv_cells=0)
    need = estimate(single)
    if not fits(need):
        return []
    return [_way("parallel", because("option_parallel"), need, needed, PARALLEL_COST)]


def _contexts(
    shape: ModelShape, settings: LoadSettings, estimate: Estimate, fits: Judge, needed: int
) -> list[FitOption]:
    """A shorter context alone, and with an 8-bit cache if that allows a longer one; as trained at most."""
    options: list[FitOption] = []
    limit = min(settings.n_ctx, shape.context_train or settings.n_ctx)
    eight_bit = {"type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on", "n_parallel": 1, "kv_cells": 0}
    compact = msgspec.structs.replace(settings, **eight_bit)
    longest = 0
    for base, cost in ((settings, 0.0), (compact, 1.2)):
        n_ctx = largest_context(base, limit, lambda s: fits(estimate(s)))
        if not SHORTEST <= n_ctx < settings.n_ctx or n_ctx <= longest:
            continue
        longest = n_ctx
        need = estimate(resize_context(base, n_ctx))
        loss = CONTEXT_COST + math.log2(settings.n_ctx / n_ctx) + (2.0 if n_ctx < WORTHWHILE_CONTEXT else 0.0)
        change = because("option_context", n_ctx=n_ctx, before=settings.n_ctx)
        if base is compact:
            change = because("option_compact_context", **change.values)
        options.append(_way("combined" if base is compact else "context", change, need, needed, cost + loss))
    return options


def _offload(
    shape: ModelShape, settings: LoadSettings, estimate: Estimate, fits: Judge, needed: int
) -> list[FitOption]:
    """Fewer layers on the GPU than requested: the largest number that fits."""
    total = len(shape.layers) + 1
    requested = total if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, total)
    if not settings.devices:
        return []
    for layers in range(requested - 1, -1, -1):
        need = estimate(msgspec.structs.replace(settings, n_gpu_layers=layers))
        if fits(need):
            change = because("option_processor")
            if layers:
                change = because("option_layers", layers=layers, all_layers=total - 1)
            cost = OFFLOAD_COST + MOST_OFFLOAD_COST * (requested - layers) / total
            return [_way("offload", change, need, needed, cost)]
    return []


def _mixes(
    shape: ModelShape, settings: LoadSettings, estimate: Estimate, fits: Judge, name: str, *, on_disk: bool
) -> list[FitOption]:
    """llama.cpp presets of this model, sized tensor by tensor with llama.cpp's own fallbacks.

    The best preset that fits, and a better one that fits with an 8-bit cache if both together lose less.
    """
    options: list[FitOption] = []
    compact = msgspec.structs.replace(settings, type_k="q8_0", type_v="q8_0", flash_attn="on")
    smaller_cache = settings.type_k not in {"q8_0", "q4_0"}
    for base, extra in ((settings, 0.0), *(((compact, KV_COSTS["q8_0"]),) if smaller_cache else ())):
        need = estimate(base)
        if extra and fits(need):
            break  # the cache alone is enough
        for mix, saved in mix_savings(shape).items():
            smaller, cost = _with_weights(need, saved), 1.0 + MIX_COSTS[mix] + extra
            if saved <= 0 or not fits(smaller):
                continue
            if options and cost >= options[0].cost:
                break
            budget = max(1, (shape.file_bytes - saved) // MIB)
            change = because("option_quantize", mix=mix, budget_mib=budget, model=name)
            if extra:
                change = because("option_quantize_kv", mix=mix, budget_mib=budget, model=name)
            if not on_disk:
                repository = name.partition(":")[0]
                change = because("option_fetch", mix=mix, budget_mib=budget, repository=repository)
                if extra:
                    change = because("option_fetch_kv", mix=mix, budget_mib=budget, repository=repository)
            which: OptionKind = "combined" if extra else "quantization"
            options.append(_way(which, change, smaller, estimate(settings).total_bytes, cost))
            break  # the best one that fits; smaller ones would lose quality without need
    return options


def mix_savings(shape: ModelShape) -> dict[str, int]:
    """Bytes that each llama.cpp preset is smaller than the file, best quality first; negative if larger."""
    spec = ModelSpec(
        architecture=shape.architecture,
        num_layers=len(shape.layers),
        num_heads=shape.heads,
        num_kv_heads=shape.heads,
        num_experts=shape.experts,
        tensors=tuple(TensorSpec(t.name, t.shape, t.ggml_type.name) for t in shape.tensors),
    )
    current = sum(t.nbytes for t in shape.tensors)
    savings = {}
    for mix in MIX_COSTS:
        try:
            types = stock_types(spec, mix, has_imatrix=False)
        except (TesseraError, KeyError, ValueError):
            continue
        size = 0
        for tensor in shape.tensors:
            ggml_type = types.get(tensor.name, tensor.ggml_type)
            block, width = BLOCK_SIZES[ggml_type]
            size += tensor.num_values // block * width
        savings[mix] = current - size
    return savings


def _with_weights(need: MemoryEstimate, saved: int) -> MemoryEstimate:
    """The same need with smaller weights, subtracted from each device in proportion."""
    total = need.part_bytes("weights")
    if not total:
        return need
    parts = tuple(
        msgspec.structs.replace(
            p,
            num_bytes=p.num_bytes - saved * p.num_bytes // total,
            mapped_bytes=p.mapped_bytes - saved * p.mapped_bytes // total,
        )
        if p.name == "weights"
        else p
        for p in need.parts
    )
    return msgspec.structs.replace(need, parts=parts)


def _unloads(need: MemoryEstimate, bytes_by_owner: Mapping[str, int]) -> list[FitOption]:
    """Options to unload another model; whether its bytes are enough is known only afterwards."""
    return [
        FitOption(
            kind="unload",
            change=because("option_unload", model=owner, held_gib=size / GIB),
            needed_bytes=need.total_bytes,
            saved_bytes=size,
            cost=UNLOAD_COST,
        )
        for owner, size in bytes_by_owner.items()
    ]


def _way(kind: OptionKind, change: Reason, need: MemoryEstimate, needed: int, cost: float) -> FitOption:
    saved = needed - need.total_bytes
    return FitOption(kind=kind, change=change, needed_bytes=need.total_bytes, saved_bytes=saved, cost=cost)
