"""Mixtures that do not fit: how many of their experts are cached, and how fast the others come from the disk."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from devices.disk_speed import disk_of, read_gbs
from engine.core.expert_use import ExpertUse, folder_of, use_store
from engine.message_catalog.reasons import Reason, because
from engine.placement.resources import Resources
from engine.placement.shape import ModelShape
from engine.placement.types import Streaming
from engine.runner.expert_tensors import held_bytes, least_bytes, reader_bytes, stacks
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo

GIB: Final = 1 << 30
# Before a disk was measured: a solid-state disk at SATA.
UNKNOWN_DISK_GBS: Final = 0.5
# What asking for each layer's routing costs a token. Measured: docs/log.md, mixtures.
LAYER_S: Final = 0.0003
# Of the memory that is left, so much goes to experts; the rest to what reads the file besides.
CACHED_FRACTION: Final = 15 / 16
# How skewed routing is where nothing was seen: the cached part, to this power, is the hit rate. Source:
# OLMoE-1B-7B over 50,000 tokens (colibri, issue 864): 6, 12.5, 25 and 50 % of the experts got 21, 35, 52 and 75 %
# of what was asked; larger mixtures are reported to be more skewed.
SKEW: Final = 0.5


def expert_layers(shape: ModelShape) -> Mapping[int, tuple[TensorInfo, ...]]:
    """The stacks of experts that can be streamed, by layer; none where the routing is not understood."""
    trunk = len(shape.layers)
    return {n: found for n, found in stacks(shape.tensors, shape.experts).items() if n < trunk}


def whole_bytes(shape: ModelShape) -> int:
    """What all streamed experts would take."""
    return sum(shape.experts * held_bytes(layer, shape.experts) for layer in expert_layers(shape).values())


def streamed_settings(shape: ModelShape, settings: LoadSettings) -> LoadSettings | None:
    """`settings` with the least memory for experts; None where they cannot be streamed or the user said no."""
    args = settings.engine_args
    refused = (
        args.mmap is False or args.mlock or settings.use_mlock or args.repack or args.tiles or args.check_tensors
    )
    layers = expert_layers(shape)
    if refused or not layers or not shape.experts_used or settings.embeddings or not settings.use_mmap:
        return None
    return msgspec.structs.replace(
        settings,
        expert_bytes=least_bytes(layers, shape.experts),
        repack=False,
        tiles=tuple(name for name in settings.tiles if name == ATTENTION),
        mtp=False,
        kv_cells=0,
    )


def with_spare(shape: ModelShape, settings: LoadSettings, spare_bytes: int) -> LoadSettings:
    """`settings` with as much more memory for experts as is left beside the least."""
    wanted = settings.expert_bytes + int(max(0, spare_bytes) * CACHED_FRACTION)
    layers = expert_layers(shape)
    all_of_them = whole_bytes(shape) + least_bytes(layers, shape.experts)
    return msgspec.structs.replace(settings, expert_bytes=min(wanted, all_of_them))


def disk_gbs(resources: Resources, shape: ModelShape, path: str, owner: str) -> float | None:
    """How fast the model's disk reads, or that of downloads; measured once, if its experts may not fit."""
    if not shape.experts or resources.models is None:
        return None
    if shape.file_bytes < resources.ledger.available("cpu", exclude=owner):
        return None
    source = Path(path) if Path(path).is_file() else resources.models
    disk = disk_of(source)
    measured = resources.history.disk_gbs(disk)
    if measured is None and disk is not None and (measured := read_gbs(source)) is not None:
        resources.history.record_disk(disk, round(measured, 3))
    return measured


def recorded_use(settings: LoadSettings) -> ExpertUse:
    """What earlier loads of this file saw."""
    folder = folder_of(settings.cache_dir)
    return use_store(folder, Path(settings.path)).get() if folder else ExpertUse()


def forecast(
    shape: ModelShape, expert_bytes: int, use: ExpertUse, gbs: float, compute_s: float, *, measured: bool
) -> Streaming:
    """What a token costs with `expert_bytes` of memory for experts, from a disk of `gbs` GB/s.

    `compute_s` is what it would take with all of them in memory. The worst is routing without any skew.
    """
    layers = expert_layers(shape)
    each_layer = sum(held_bytes(layer, shape.experts) for layer in layers.values())
    whole = shape.experts * each_layer
    cached_bytes = min(whole, expert_bytes - reader_bytes(layers, shape.experts))
    part = cached_bytes / whole
    each_token = shape.experts_used * each_layer
    hit = use.hit_rate(part) if use.is_meaningful else part**SKEW

    def speed(rate: float) -> float:
        seconds = compute_s + LAYER_S * len(layers) + (1 - rate) * each_token / 1e9 / gbs
        return 1 / seconds

    return Streaming(
        expert_bytes=whole,
        cached_bytes=cached_bytes,
        hit_rate=round(hit, 3),
        worst_hit_rate=round(part, 3),
        decode_tok_s=speed(hit),
        worst_tok_s=speed(part),
        disk_gbs=gbs,
        disk_measured=measured,
        seen_tokens=round(use.tokens) if use.is_meaningful else 0,
    )


def reasons(found: Streaming) -> tuple[Reason, ...]:
    """Why and how."""
    why = because("experts_by_use", kept_gib=found.cached_bytes / GIB, all_gib=found.expert_bytes / GIB)
    hits = because("experts_asked_guessed", hit_rate=found.hit_rate, tok_s=found.decode_tok_s)
    if found.seen_tokens:
        seen, rate = found.seen_tokens, found.hit_rate
        hits = because("experts_asked_seen", hit_rate=rate, tokens=seen, tok_s=found.decode_tok_s)
    worst = because(
        "experts_worst" if found.disk_measured else "experts_worst_guessed",
        hit_rate=found.worst_hit_rate,
        tok_s=found.worst_tok_s,
        disk_gbs=found.disk_gbs,
    )
    return why, hits, worst


def prompt_tok_s(shape: ModelShape, found: Streaming, n_ubatch: int, compute_tok_s: float) -> float:
    """Prefill speed, tokens a second: each ubatch asks for nearly all experts and reads those not cached."""
    missing_s = (found.expert_bytes - found.cached_bytes) / 1e9 / found.disk_gbs
    compute_s = n_ubatch / compute_tok_s if compute_tok_s else 0.0
    seconds = math.fsum((missing_s, compute_s, LAYER_S * len(shape.layers)))
    return n_ubatch / seconds
