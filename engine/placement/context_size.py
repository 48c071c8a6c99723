"""Default sizes of the context, parallel requests, KV cells and state copies when the user chose none."""

from collections.abc import Callable
from typing import Final

import msgspec

from devices.backends.openvino import BACKEND
from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.core.defaults import LARGEST_DEFAULT_CONTEXT
from engine.message_catalog.reasons import Reason, because
from engine.placement.candidates import Candidate
from engine.placement.cpu_choices import ENOUGH_TOKENS, HARDLY_TWO
from engine.placement.estimate import CELL_PADDING, kv_layer_bytes
from engine.placement.fit import resize_context
from engine.placement.history import ModelUsage
from engine.placement.shape import ModelShape
from engine.placement.types import MemoryEstimate, PlacementLimits
from engine.runner.protocol import LoadSettings
from quantize.kv_cache_types import EIGHT_BIT, K_DAMAGE, V_DAMAGE

# Share of the memory left by the weights that a larger context leaves free for a second model.
FREE_FRAC: Final = 0.25
# A context up to this size need not leave that: coding agents start with 11,000 to 24,000 tokens.
AGENT_CONTEXT: Final = 32_768
_K: Final = 1024


class ContextChoice(msgspec.Struct, frozen=True):
    """A context length in tokens, and its reason. `offer`: an 8-bit cache would give AGENT_CONTEXT tokens."""

    n_ctx: int
    reason: Reason
    offer: Reason | None = None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reason and the offer."""
        return (self.reason,) if self.offer is None else (self.reason, self.offer)


def larger_context(
    base: LoadSettings,
    overrides: PlacementLimits,
    shape: ModelShape,
    place: Callable[[LoadSettings], Candidate],
    capacity: Callable[[MemoryEstimate], "Capacity | None"],
) -> ContextChoice | None:
    """The largest context whose caches and buffers fit next to the weights; None if that of `base` stays.

    Values set by the user, a client or raw arguments take precedence. `place` is the placement with given settings.
    It must be the same place for all contexts, so that no layer leaves a GPU for a longer context.
    """
    least, most, trained = base.n_ctx, overrides.max_ctx, shape.context_train
    if most is None or overrides.n_ctx is not None or base.engine_args.n_ctx is not None or trained <= least:
        return None
    usual = place(base)
    if not usual.fits or usual.streaming is not None or usual.backend == BACKEND:
        return None
    sizes, size = [], least
    while 2 * size <= min(trained, most):
        size *= 2
        sizes.append(size)
    if min(trained, most) > size:
        sizes.append(min(trained, most))
    refused, reaches = 0, min(trained, most) >= AGENT_CONTEXT
    for n_ctx in reversed(sizes):
        tried = place(resize_context(base, n_ctx))
        found = capacity(tried.need) if tried.fits and _same_place(tried, usual) else None
        if found is not None and (found.leaves_enough or n_ctx <= AGENT_CONTEXT):
            offer = _offer(base, overrides, n_ctx, usual, place, capacity) if reaches else None
            return ContextChoice(n_ctx, _context_reason(n_ctx, refused, trained, found), offer)
        refused = n_ctx
    found = capacity(usual.need)
    if not refused or found is None:
        return None
    offer = _offer(base, overrides, least, usual, place, capacity) if reaches else None
    return ContextChoice(least, _context_reason(least, refused, trained, found), offer)


def _offer(
    base: LoadSettings,
    overrides: PlacementLimits,
    n_ctx: int,
    usual: Candidate,
    place: Callable[[LoadSettings], Candidate],
    capacity: Callable[[MemoryEstimate], "Capacity | None"],
) -> Reason | None:
    """Offers an 8-bit cache if only that gives AGENT_CONTEXT tokens, and nobody chose a cache type."""
    args = base.engine_args
    if n_ctx >= AGENT_CONTEXT or overrides.type_k or args.type_k or args.type_v or args.flash_attn == "off":
        return None
    small = msgspec.structs.replace(base, type_k=EIGHT_BIT, type_v=EIGHT_BIT, flash_attn="on")
    tried = place(resize_context(small, AGENT_CONTEXT))
    found = capacity(tried.need) if tried.fits and _same_place(tried, usual) else None
    if found is None:
        return None
    return because(
        "context_8_bit",
        more=_short(AGENT_CONTEXT),
        tokens=_short(n_ctx),
        taken_gib=found.taken_bytes / 2**30,
        free_gib=found.free_bytes / 2**30,
        loss=K_DAMAGE[EIGHT_BIT] + V_DAMAGE[EIGHT_BIT],
    )


class Capacity(msgspec.Struct, frozen=True):
    """Bytes used by caches and buffers, and bytes free next to the weights, on the device with the least room."""

    taken_bytes: int
    free_bytes: int

    @property
    def leaves_enough(self) -> bool:
        """Whether enough memory stays free for another model."""
        return self.taken_bytes <= self.free_bytes * (1 - FREE_FRAC)


def capacity_for(need: MemoryEstimate, machine: Machine, ledger: Ledger, owner: str) -> Capacity | None:
    """Memory used in addition to the weights; None if nothing is used on this machine."""
    capacities = []
    for device in need.devices:
        weights = sum(p.num_bytes for p in need.parts if p.device == device and p.name == "weights")
        capacities.append(
            Capacity(
                need.device_bytes(device) - weights, ledger.available(device, machine, exclude=owner) - weights
            )
        )
    return max(capacities, key=lambda capacity: capacity.taken_bytes / max(1, capacity.free_bytes), default=None)


def _same_place(tried: Candidate, usual: Candidate) -> bool:
    return (
        (tried.device.id, tried.backend, tried.streaming) == (usual.device.id, usual.backend, None)
        and tried.settings.n_gpu_layers == usual.settings.n_gpu_layers
        and tried.settings.cpu_expert_layers == usual.settings.cpu_expert_layers
    )


def _context_reason(n_ctx: int, refused: int, trained: int, capacity: Capacity) -> Reason:
    facts: dict[str, str | float] = {
        "tokens": _short(n_ctx),
        "taken_gib": capacity.taken_bytes / 2**30,
        "free_gib": capacity.free_bytes / 2**30,
    }
    if refused:
        kind = "context_by_room" if refused <= AGENT_CONTEXT else "context_by_memory"
        return because(kind, **facts, more=_short(refused))
    if n_ctx == trained:
        return because("context_as_trained", **facts)
    return because("context_as_usual", **facts)


def _short(tokens: int) -> str:
    """Short form of a token count, such as 64k."""
    return f"{tokens // _K}k" if tokens % _K == 0 else str(tokens)


def open_context(*, asked: bool) -> int | None:
    """Largest context that placement may choose by itself; None if the user requested one."""
    return None if asked else LARGEST_DEFAULT_CONTEXT


# Beyond one full context, a cache grows to this size for parallel requests. llama.cpp zeroes all of it during the
# load, at about 1 GB/s. Measured: log-archive.md, engine.
ROOMY_BYTES: Final = 256 << 20


# With four slots and this many parallel requests on average, some wait.
BUSY: Final = 3.0
MORE_PARALLEL: Final = 8


def grown(overrides: PlacementLimits, use: ModelUsage | None) -> PlacementLimits:
    """`overrides` with more parallel requests, if the user set no number and the model's use needs more."""
    if overrides.n_parallel is not None or not _several(use) or use is None or use.at_once < BUSY:
        return overrides
    return msgspec.structs.replace(overrides, n_parallel=MORE_PARALLEL)


def _several(use: ModelUsage | None) -> bool:
    return use is not None and use.tokens >= ENOUGH_TOKENS and use.at_once > HARDLY_TWO


def cap_kv_cells(
    settings: LoadSettings, shape: ModelShape, overrides: PlacementLimits, use: ModelUsage | None
) -> LoadSettings:
    """`settings` whose shared cache holds one whole context, which is enough for one person.

    If the user set parallel requests, or the model's use has some, the cache holds more, up to ROOMY_BYTES.
    """
    if settings.kv_cells <= settings.n_ctx:
        return settings
    if overrides.n_parallel is None and not _several(use):
        return msgspec.structs.replace(settings, kv_cells=settings.n_ctx)
    one = sum(kv_layer_bytes(shape, msgspec.structs.replace(settings, kv_cells=0)))
    cells = settings.n_ctx * ROOMY_BYTES // one if one else settings.kv_cells
    cells -= cells % CELL_PADDING
    return msgspec.structs.replace(settings, kv_cells=min(settings.kv_cells, max(cells, settings.n_ctx)))


# Five rows per step including the newest token: kernels take rows in fours, and each further draft token is
# accepted less often.
MAX_ROLLBACK: Final = 4
# Limit for state copies: this size, or this share of the file if that is more. A prior, not measured.
COPIES_BYTES: Final = 256 << 20
COPIES_DIVISOR: Final = 8


def with_speculation(settings: LoadSettings, shape: ModelShape) -> LoadSettings:
    """`settings` with what speculative decoding needs; unchanged if nothing is drafted."""
    if settings.max_draft <= 0 or settings.embeddings:
        return settings
    back = _affordable(settings, shape)
    head = shape.has_head and settings.draft_path is None and (back > 0 or not shape.recurrent)
    return msgspec.structs.replace(settings, mtp=head, max_rollback=back)


def _affordable(settings: LoadSettings, shape: ModelShape) -> int:
    """Number of rejected tokens that recurrent states can be rolled back by, within the memory limit for copies."""
    if not shape.recurrent or not shape.rolls_back:
        return 0
    one = settings.n_parallel * sum(layer.state_bytes for layer in shape.layers)
    budget = max(COPIES_BYTES, shape.file_bytes // COPIES_DIVISOR)
    return min(MAX_ROLLBACK, settings.max_draft, budget // one)
