"""Raw engine arguments and a placement: which settings they decide."""

from typing import Final

import msgspec

from engine.core.errors import InputFault
from engine.message_catalog.reasons import because
from engine.placement.cpu_kernels import TILE_KERNELS
from engine.placement.dry_run import DryRunFailed
from engine.placement.fit_context import resize_context
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings

# Arguments that are settings of a load by other names.
SETTINGS: Final = {
    "batch_size": "n_batch", "ubatch_size": "n_ubatch", "threads": "n_threads", "threads_batch": "n_threads_batch",
    "cache_type_k": "type_k", "cache_type_v": "type_v", "flash_attn": "flash_attn", "mmap": "use_mmap",
    "mlock": "use_mlock", "repack": "repack",
}  # fmt: skip


def with_engine_args(settings: LoadSettings, args: EngineArgs) -> LoadSettings:
    """The settings before dispatch, with what the arguments ask for; they decide again afterwards (`decided`)."""
    settings = msgspec.structs.replace(settings, engine_args=args)
    if args.ctx_size is not None:
        settings = resize_context(settings, args.ctx_size)
    return decided(settings)


def decided(settings: LoadSettings) -> LoadSettings:
    """Settings in which the user's arguments stand before what was dispatched, tuned or measured."""
    args = settings.engine_args
    changes: dict[str, object] = {}
    for name, field in SETTINGS.items():
        value = getattr(args, name)
        if value is not None:
            changes[field] = value
    if args.tiles is not None:
        changes["tiles"] = TILE_KERNELS if args.tiles else ()
    if args.ubatch_size is not None and args.batch_size is None:
        changes["n_batch"] = max(settings.n_batch, args.ubatch_size)
    if args.batch_size is not None and args.ubatch_size is None:
        changes["n_ubatch"] = min(settings.n_ubatch, args.batch_size)
    devices = args.devices or tuple(f"RPC{n}" for n in range(len(args.rpc)))
    if devices:
        changes |= {"devices": devices, "n_gpu_layers": settings.n_gpu_layers or -1, "tensor_split": ()}
    if args.n_gpu_layers is not None and (settings.devices or devices):
        changes["n_gpu_layers"] = args.n_gpu_layers
    return msgspec.structs.replace(settings, **changes) if changes else settings


def refused(error: DryRunFailed) -> InputFault:
    """The error for arguments that llama.cpp does not take."""
    return InputFault(because("engine_args_refused", why=str(error)), "engine_args")
