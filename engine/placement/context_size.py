"""How many tokens of context a model gets where nobody asked for a number: as many as memory has room for."""

from collections.abc import Callable
from typing import Final

import msgspec

from devices.backends.openvino import BACKEND
from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.core.defaults import LARGEST_DEFAULT_CONTEXT
from engine.message_catalog.reasons import Reason, because
from engine.placement.candidates import Candidate
from engine.placement.need_types import Need
from engine.placement.shape import ModelShape
from engine.placement.types import Overrides
from engine.runner.protocol import LoadSettings

# A larger context must pay for itself in memory: of what the weights leave, this part stays for a second model.
FREE_FRAC: Final = 0.25
_K: Final = 1024


class ContextChoice(msgspec.Struct, frozen=True):
    """A number of tokens, and why it is that."""

    n_ctx: int
    reason: Reason


def larger_context(
    base: LoadSettings,
    overrides: Overrides,
    shape: ModelShape,
    place: Callable[[int], Candidate],
    capacity: Callable[[Need], "Capacity | None"],
) -> ContextChoice | None:
    """The largest context whose caches and buffers fit beside the weights; None where that of `base` stays.

    What the user, a client or raw arguments asked for counts first. `place` is the choice with so many tokens,
    which must be the same place for all, so that no layer leaves a GPU for a longer context.
    """
    least, most, trained = base.n_ctx, overrides.max_ctx, shape.context_train
    if most is None or overrides.n_ctx is not None or base.engine_args.ctx_size is not None or trained <= least:
        return None
    usual = place(least)
    if not usual.fits or usual.streaming is not None or usual.backend == BACKEND:
        return None
    sizes, size = [], least
    while 2 * size <= min(trained, most):
        size *= 2
        sizes.append(size)
    if min(trained, most) > size:
        sizes.append(min(trained, most))
    refused = 0
    for n_ctx in reversed(sizes):
        tried = place(n_ctx)
        found = capacity(tried.need) if tried.fits and _same_place(tried, usual) else None
        if found is not None:
            return ContextChoice(n_ctx, _why(n_ctx, refused, trained, found))
        refused = n_ctx
    found = capacity(usual.need)
    if not refused or found is None:
        return None
    return ContextChoice(least, _why(least, refused, trained, found))


class Capacity(msgspec.Struct, frozen=True):
    """Bytes that caches and buffers take of those that are free beside the weights, where that is tightest."""

    taken_bytes: int
    free_bytes: int


def capacity_for(need: Need, machine: Machine, ledger: Ledger, owner: str) -> Capacity | None:
    """What a need takes beside the weights; None where it leaves less than the part for a second model."""
    capacities = []
    for device in need.devices:
        weights = sum(p.num_bytes for p in need.parts if p.device == device and p.name == "weights")
        capacities.append(
            Capacity(
                need.device_bytes(device) - weights, ledger.available(device, machine, exclude=owner) - weights
            )
        )
    if any(capacity.taken_bytes > capacity.free_bytes * (1 - FREE_FRAC) for capacity in capacities):
        return None
    return max(capacities, key=lambda capacity: capacity.taken_bytes / max(1, capacity.free_bytes), default=None)


def _same_place(tried: Candidate, usual: Candidate) -> bool:
    return (
        (tried.device.id, tried.backend, tried.streaming) == (usual.device.id, usual.backend, None)
        and tried.settings.n_gpu_layers == usual.settings.n_gpu_layers
        and tried.settings.cpu_expert_layers == usual.settings.cpu_expert_layers
    )


def _why(n_ctx: int, refused: int, trained: int, capacity: Capacity) -> Reason:
    facts: dict[str, str | float] = {
        "tokens": _short(n_ctx),
        "taken_gb": capacity.taken_bytes / 1e9,
        "free_gb": capacity.free_bytes / 1e9,
    }
    if refused:
        return because("context_by_memory", **facts, more=_short(refused))
    if n_ctx == trained:
        return because("context_as_trained", **facts)
    return because("context_as_usual", **facts)


def _short(tokens: int) -> str:
    """Tokens as people write them: 64k."""
    return f"{tokens // _K}k" if tokens % _K == 0 else str(tokens)


def open_context(*, asked: bool) -> int | None:
    """Up to which context the dispatcher may go by itself; None where somebody asked for a number."""
    return None if asked else LARGEST_DEFAULT_CONTEXT
