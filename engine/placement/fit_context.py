"""Needs at other settings than the dry run's, and the largest context that fits."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.placement.draft_need import draft_shape, with_draft, with_head
from engine.placement.estimate import compute_prior, estimate, kv_layer_bytes
from engine.placement.need_types import DryRun, Need
from engine.placement.shape import ModelShape
from engine.runner.load_limits import draft_settings
from engine.runner.protocol import LoadSettings

STEP = 256
SMALLEST = 512


def rescaled(shape: ModelShape, dry_run: DryRun, before: LoadSettings, after: LoadSettings) -> DryRun:
    """What a dry run at `after` would say: caches scale as the formula does, scratch memory by its own rule.

    Exact for the caches of every architecture whose formula agrees with llama.cpp at `before`.
    """
    old, new = sum(kv_layer_bytes(shape, before)), sum(kv_layer_bytes(shape, after))
    kv = dry_run.kv_bytes * new // old if old else 0
    change = compute_prior(shape, after) - compute_prior(shape, before)
    compute = dict(dry_run.compute_bytes)
    if compute:
        largest = max(compute, key=lambda name: compute[name])
        compute[largest] = max(0, compute[largest] + change)
    return msgspec.structs.replace(dry_run, kv_bytes=kv, compute_bytes=compute)


def need_at(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    gpu: str | None,
    measured: tuple[LoadSettings, DryRun] | None,
    correction: float = 1.0,
) -> Need:
    """The need at `settings`, from a dry run made at other settings where there is one."""
    run = rescaled(shape, measured[1], measured[0], settings) if measured else None
    projector = Path(settings.mmproj_path) if settings.mmproj_path else None
    size = projector.stat().st_size if projector is not None and projector.is_file() else 0
    need = estimate(shape, settings, isa, gpu=gpu, dry_run=run, projector_bytes=size, correction=correction)
    if settings.mtp and shape.has_head:
        need = with_head(need, shape, settings, gpu)
    if settings.draft_path is None:
        return need
    return with_draft(need, estimate(draft_shape(settings.draft_path), draft_settings(settings), isa, gpu=gpu))


def largest_context(settings: LoadSettings, limit: int, fits: Callable[[LoadSettings], bool]) -> int:
    """The largest context, in steps of 256, that `fits`; 0 when not even 512 tokens do."""
    low, high = 0, max(limit, SMALLEST) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if fits(resize_context(settings, middle * STEP)):
            low = middle
        else:
            high = middle - 1
    return low * STEP if low * STEP >= SMALLEST else 0


def resize_context(settings: LoadSettings, n_ctx: int, n_parallel: int | None = None) -> LoadSettings:
    """The same load with `n_ctx` tokens of context, for `n_parallel` requests at once (None: as many as before).

    A cache of a single context stays one. One with room for several holds as many of the new ones, or one for each
    of `n_parallel`.
    """
    parallel = n_parallel or settings.n_parallel
    cells = settings.kv_cells
    if cells > settings.n_ctx:
        cells = n_ctx * parallel if n_parallel else cells * n_ctx // settings.n_ctx
    elif cells:
        cells = n_ctx
    return msgspec.structs.replace(settings, n_ctx=n_ctx, n_parallel=parallel, kv_cells=cells)
