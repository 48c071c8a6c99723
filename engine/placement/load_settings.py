"""Settings of a library model before placement: context, parallel requests, caches, cores, sampling."""

import os
from pathlib import Path
from typing import Final

import msgspec
import psutil

from devices.process_memory import allowed_cores
from engine.core.defaults import DEFAULT_CONTEXT
from engine.core.errors import InputFault
from engine.core.sampling import Recommended, of_card, recommended
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because
from engine.placement.cpu_choices import TILE_KERNELS
from engine.placement.external import external_settings
from engine.placement.fit import DryRunFailed, resize_context
from engine.placement.types import ModelSettings
from engine.runner.engine_args import BadEngineArg, EngineArgs, check, given
from engine.runner.protocol import LoadSettings

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
    found = os.environ.get("TESSERA_CACHE_PREFIX_MIB", "")
    return (int(found) if found.isdecimal() else PREFIX_DISK_MIB) << 20


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
