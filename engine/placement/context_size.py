"""Context, requests at once, cells of the cache, and copies of states: how large where nobody chose a number."""

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
from engine.placement.history import Use
from engine.placement.shape import ModelShape
from engine.placement.types import Need, Overrides
from engine.runner.protocol import LoadSettings

# A larger context must pay for itself in memory: of what the weights leave, this part stays for a second model.
FREE_FRAC: Final = 0.25
# Up to so many tokens it need not: coding agents begin with 11,000 to 24,000.
AGENT_CONTEXT: Final = 32_768
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
    if most is None or overrides.n_ctx is not None or base.engine_args.n_ctx is not None or trained <= least:
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
        if found is not None and (found.leaves_enough or n_ctx <= AGENT_CONTEXT):
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

    @property
    def leaves_enough(self) -> bool:
        """Another model has its part."""
        return self.taken_bytes <= self.free_bytes * (1 - FREE_FRAC)


def capacity_for(need: Need, machine: Machine, ledger: Ledger, owner: str) -> Capacity | None:
    """What a need takes beside the weights; None where it takes nothing here."""
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


def _why(n_ctx: int, refused: int, trained: int, capacity: Capacity) -> Reason:
    facts: dict[str, str | float] = {
        "tokens": _short(n_ctx),
        "taken_gb": capacity.taken_bytes / 1e9,
        "free_gb": capacity.free_bytes / 1e9,
    }
    if refused:
        kind = "context_by_room" if refused <= AGENT_CONTEXT else "context_by_memory"
        return because(kind, **facts, more=_short(refused))
    if n_ctx == trained:
        return because("context_as_trained", **facts)
    return because("context_as_usual", **facts)


def _short(tokens: int) -> str:
    """Tokens as people write them: 64k."""
    return f"{tokens // _K}k" if tokens % _K == 0 else str(tokens)


def open_context(*, asked: bool) -> int | None:
    """Up to which context the dispatcher may go by itself; None where somebody asked for a number."""
    return None if asked else LARGEST_DEFAULT_CONTEXT


# Beyond one full context, a cache grows to this for the sake of parallel requests. llama.cpp zeroes all of it at
# the load, at about a GB a second. Measured: docs/log.md, engine.
ROOMY_BYTES: Final = 256 << 20


# Of four requests at once on average, some wait.
BUSY: Final = 3.0
MORE_PARALLEL: Final = 8


def grown(overrides: Overrides, use: Use | None) -> Overrides:
    """`overrides` with more requests at once where nobody chose their number and the model's use asks for more."""
    if overrides.n_parallel is not None or not _several(use) or use is None or use.at_once < BUSY:
        return overrides
    return msgspec.structs.replace(overrides, n_parallel=MORE_PARALLEL)


def _several(use: Use | None) -> bool:
    return use is not None and use.tokens >= ENOUGH_TOKENS and use.at_once > HARDLY_TWO


def cap_kv_cells(settings: LoadSettings, shape: ModelShape, overrides: Overrides, use: Use | None) -> LoadSettings:
    """`settings` whose shared cache holds one whole context, which is what one person needs.

    Where the user asked for requests at once, or the model's use shows some, it holds more, up to ROOMY_BYTES.
    """
    if settings.kv_cells <= settings.n_ctx:
        return settings
    if overrides.n_parallel is None and not _several(use):
        return msgspec.structs.replace(settings, kv_cells=settings.n_ctx)
    one = sum(kv_layer_bytes(shape, msgspec.structs.replace(settings, kv_cells=0)))
    cells = settings.n_ctx * ROOMY_BYTES // one if one else settings.kv_cells
    cells -= cells % CELL_PADDING
    return msgspec.structs.replace(settings, kv_cells=min(settings.kv_cells, max(cells, settings.n_ctx)))


# Five rows a step with the newest token: kernels take rows by four, and each further token is accepted less often.
MAX_ROLLBACK: Final = 4
# Copies of states may take so much, or this part of the file where that is more. A prior, not measured.
COPIES_BYTES: Final = 256 << 20
COPIES_DIVISOR: Final = 8


def with_speculation(settings: LoadSettings, shape: ModelShape) -> LoadSettings:
    """`settings` with what speculation needs; the same where nothing is drafted."""
    if settings.max_draft <= 0 or settings.embeddings:
        return settings
    back = _affordable(settings, shape)
    head = shape.has_head and settings.draft_path is None and (back > 0 or not shape.recurrent)
    return msgspec.structs.replace(settings, mtp=head, max_rollback=back)


def _affordable(settings: LoadSettings, shape: ModelShape) -> int:
    """Rejected tokens that recurrent states can be taken back by, within what their copies may cost."""
    if not shape.recurrent or not shape.rolls_back:
        return 0
    one = settings.n_parallel * sum(layer.state_bytes for layer in shape.layers)
    budget = max(COPIES_BYTES, shape.file_bytes // COPIES_DIVISOR)
    return min(MAX_ROLLBACK, settings.max_draft, budget // one)
