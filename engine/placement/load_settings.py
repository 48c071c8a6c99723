"""Settings of a load: the library's defaults, sizes of contexts and caches, cores, sampling."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from devices.backends.openvino import BACKEND
from devices.memory_ledger import Ledger
from devices.process_memory import allowed_cores
from devices.types import Machine
from engine.core.defaults import DEFAULT_CONTEXT, LARGEST_DEFAULT_CONTEXT
from engine.core.errors import InputFault
from engine.core.sampling import Recommended, of_card, recommended
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import Reason, because
from engine.placement.candidates import Candidate
from engine.placement.cpu_choices import ENOUGH_TOKENS, HARDLY_TWO, TILE_KERNELS
from engine.placement.dry_run import DryRunFailed
from engine.placement.estimate import CELL_PADDING, kv_layer_bytes
from engine.placement.external import external_settings
from engine.placement.history import ModelUsage
from engine.placement.shape import ModelShape
from engine.placement.types import MemoryEstimate, ModelSettings, PlacementLimits
from engine.runner.engine_args import BadEngineArg, EngineArgs, check, given
from engine.runner.load_limits import resize_context
from engine.runner.protocol import LoadSettings
from quantize.kv_cache_types import EIGHT_BIT, K_DAMAGE, V_DAMAGE

# Slots for one person: a chat, its title, an editor and one spare. Use may add more (`grown` in context_size.py).
DEFAULT_PARALLEL: Final = 4
ONNX_PARALLEL: Final = 2
# A model this small stays in a core's cache and has hundreds of barriers per millisecond: a second thread gains
# little on an idle machine and makes it ten times slower on a busy one. Measured: log-archive.md, engine.
ONE_THREAD_BYTES: Final = 64 << 20
# Prefixes stored outside the KV cache. A chat of 4k tokens takes 50 MB (tiny) to 500 MB (0.6B, f16).
PREFIX_RAM_BYTES: Final = 512 << 20
PREFIX_DISK_MIB: Final = 4096


def load_settings(
    entry: ModelEntry, context: int | None = None, cache: Path | None = None, lora: tuple[str, ...] = ()
) -> LoadSettings:
    """The settings of a load with `context` tokens (None: the default), at most the model's training context.

    `cache` is the folder for prefixes on disk, `lora` the adapter files to load.
    """
    n_ctx = default_context(entry.context_train, context)
    embeds = bool({"embedding", "rerank"} & set(entry.capabilities))
    external = external_settings(entry.format, entry.folder or "", n_ctx)
    if external is not None:
        return external
    onnx = entry.format == "onnx"  # one generator per sequence, each with a full-length cache
    # Passages to embed are wide batches, which use many threads well; a query takes one (runner/llama/batch).
    wide = embeds and entry.format == "gguf"
    threads = 1 if entry.size_bytes < ONE_THREAD_BYTES and not wide else usable_cores()
    return LoadSettings(
        path=str(entry.path),
        mmproj_path=None if embeds else entry.projector,
        n_ctx=n_ctx,
        max_ctx=entry.context_train if entry.format == "gguf" and not embeds else 0,
        chosen_ctx=n_ctx if context else 0,
        kv_cells=n_ctx * (ONNX_PARALLEL if onnx else DEFAULT_PARALLEL),
        n_parallel=ONNX_PARALLEL if onnx else DEFAULT_PARALLEL,
        allow_fallback=onnx and os.environ.get("TESSERA_ONNX_FALLBACK") == "1",
        embeddings=embeds,
        n_threads=threads,
        n_threads_batch=threads,
        cache_dir=str(cache / "prefixes") if cache else None,
        cache_ram_bytes=PREFIX_RAM_BYTES,
        cache_disk_bytes=_prefix_disk_bytes(),
        lora=lora,
    )


def _prefix_disk_bytes() -> int:
    """Limit for prefixes on disk: the setting cache.prefix_mib, passed on in this variable."""
    text = os.environ.get("TESSERA_CACHE_PREFIX_MIB", "")
    return (int(text) if text.isdecimal() else PREFIX_DISK_MIB) << 20


def default_context(trained: int, context: int | None = None) -> int:
    """Default context of a model with the training context `trained` (0: unknown)."""
    return min(context or DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)


def usable_cores() -> int:
    """Physical cores that this process may use: hyperthreads slow the kernels down."""
    allowed = allowed_cores()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def require_sound(entry: ModelEntry, args: EngineArgs) -> None:
    """Check the arguments for a model. Raises: InputFault: llama.cpp does not run it, or an argument is invalid."""
    if given(args) and entry.format != "gguf":
        raise InputFault(because("engine_args_not_for", model=entry.id), "engine_args")
    try:
        check(args)
    except BadEngineArg as error:
        reason = because("engine_args_wrong", name=error.name, why=str(error))
        raise InputFault(reason, f"engine_args.{error.name}") from error


def recommended_for(entry: ModelEntry, user: ModelSettings) -> Recommended:
    """Recommended sampling from the user, the file, the publisher and the model card."""
    names = (entry.id, entry.name, entry.details.title, entry.origin.repo or "")
    chats = "chat" in entry.capabilities
    return recommended(
        user=user.sampling,
        file=entry.details.sampling,
        publisher=entry.details.publisher_sampling,
        card=of_card(entry.architecture, names) if chats else None,
        reasons="reasoning" in entry.capabilities,
    )


# Arguments that are also load settings.
SETTINGS: Final = (
    "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "type_k", "type_v", "flash_attn", "use_mmap",
    "use_mlock", "repack",
)  # fmt: skip


def with_engine_args(settings: LoadSettings, args: EngineArgs) -> LoadSettings:
    """The settings before placement, with the arguments applied; `decided` applies them again afterwards."""
    settings = msgspec.structs.replace(settings, engine_args=args)
    if args.n_ctx is not None:
        settings = resize_context(settings, args.n_ctx)
    return decided(settings)


def decided(settings: LoadSettings) -> LoadSettings:
    """Settings in which the user's arguments override what was placed, tuned or measured."""
    args = settings.engine_args
    changes: dict[str, object] = {name: v for name in SETTINGS if (v := getattr(args, name)) is not None}
    if args.tiles is not None:
        changes["tiles"] = TILE_KERNELS if args.tiles else ()
    if args.n_ubatch is not None and args.n_batch is None:
        changes["n_batch"] = max(settings.n_batch, args.n_ubatch)
    if args.n_batch is not None and args.n_ubatch is None:
        changes["n_ubatch"] = min(settings.n_ubatch, args.n_batch)
    devices = args.devices or tuple(f"RPC{n}" for n in range(len(args.rpc)))
    if devices:
        changes |= {"devices": devices, "n_gpu_layers": settings.n_gpu_layers or -1, "tensor_split": ()}
    if args.n_gpu_layers is not None and (settings.devices or devices):
        changes["n_gpu_layers"] = args.n_gpu_layers
    return msgspec.structs.replace(settings, **changes) if changes else settings


def refused(error: DryRunFailed) -> InputFault:
    """The error for arguments that llama.cpp rejects."""
    return InputFault(because("engine_args_refused", why=str(error)), "engine_args")


# Default sizes of the context, parallel requests, KV cells and state copies when the user chose none.

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
        return (self.reason,) if self.offer is None else (self.reason, self.offer)


def larger_context(
    base: LoadSettings,
    overrides: PlacementLimits,
    shape: ModelShape,
    place: Callable[[LoadSettings], Candidate],
    capacity: Callable[[MemoryEstimate], "Capacity | None"],
) -> ContextChoice | None:
    """The largest context whose caches and buffers fit next to the weights; None if the context of `base` stays.

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
        spare = capacity(tried.need) if tried.fits and _same_place(tried, usual) else None
        if spare is not None and (spare.leaves_enough or n_ctx <= AGENT_CONTEXT):
            offer = _offer(base, overrides, n_ctx, usual, place, capacity) if reaches else None
            return ContextChoice(n_ctx, _context_reason(n_ctx, refused, trained, spare), offer)
        refused = n_ctx
    spare = capacity(usual.need)
    if not refused or spare is None:
        return None
    offer = _offer(base, overrides, least, usual, place, capacity) if reaches else None
    return ContextChoice(least, _context_reason(least, refused, trained, spare), offer)


def _offer(
    base: LoadSettings,
    overrides: PlacementLimits,
    n_ctx: int,
    usual: Candidate,
    place: Callable[[LoadSettings], Candidate],
    capacity: Callable[[MemoryEstimate], "Capacity | None"],
) -> Reason | None:
    """Offers an 8-bit cache if only that gives AGENT_CONTEXT tokens, and the user chose no cache type."""
    args = base.engine_args
    if n_ctx >= AGENT_CONTEXT or overrides.type_k or args.type_k or args.type_v or args.flash_attn == "off":
        return None
    small = msgspec.structs.replace(base, type_k=EIGHT_BIT, type_v=EIGHT_BIT, flash_attn="on")
    tried = place(resize_context(small, AGENT_CONTEXT))
    spare = capacity(tried.need) if tried.fits and _same_place(tried, usual) else None
    if spare is None:
        return None
    return because(
        "context_8_bit",
        more=_short(AGENT_CONTEXT),
        tokens=_short(n_ctx),
        taken_gib=spare.taken_bytes / 2**30,
        free_gib=spare.free_bytes / 2**30,
        loss=K_DAMAGE[EIGHT_BIT] + V_DAMAGE[EIGHT_BIT],
    )


class Capacity(msgspec.Struct, frozen=True):
    """Bytes used by caches and buffers, and bytes free next to the weights, on the device with the least space."""

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


def open_context(*, is_chosen: bool) -> int | None:
    """Largest context that placement may choose by itself; None if the user requested one."""
    return None if is_chosen else LARGEST_DEFAULT_CONTEXT


# Beyond one full context, a cache grows to this size for parallel requests. llama.cpp zeroes all of it during the
# load, at about 1 GB/s. Measured: log-archive.md, engine.
ROOMY_BYTES: Final = 256 << 20


# With four slots and this many parallel requests on average, some requests have to wait.
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
