"""Numbers that a load and the prediction of its memory must agree on."""

from typing import Final

import msgspec

from devices.backends import openvino
from devices.backends.cpu_kernels import ATTENTION
from engine.runner.engine_args import NO_ARGS
from engine.runner.protocol import LoadSettings
from quantize.kv_cache_types import CACHE_TYPES

# llama.cpp's own names, `ggml_type` values of the cache types it accepts.
KV_TYPES: Final = {name: row.ggml_type for name, row in CACHE_TYPES.items()}
# Hard limit of llama.cpp (LLAMA_MAX_SEQ).
MAX_SEQUENCES: Final = 256
# Longest draft that is verified in one step; llama.cpp sizes its output buffer by it.
MAX_DRAFT: Final = 16
# With more sequences than this a step is full of real tokens, and guesses would only slow it.
MAX_DRAFTING: Final = 2
# Rows of a step that reads the prompt of a deterministic request: what is kept of a prompt is a multiple of it,
# others wait no longer for it on a processor, and a GPU is used well.
EXACT_ROWS, EXACT_GPU_ROWS = 64, 512
# The same for a request that repeats (a seed, or temperature 0) while it runs alone. Smaller steps recompute less
# of a cached prompt, but prefill slower: 32 rows take 1.19 of the time of 512, 64 rows 1.00.
# Measured: docs/log.md, "answers that repeat".
STEADY_ROWS: Final = 64
# Tokens of a prompt that a draft model reads in one step of the engine: others wait no longer than this.
DRAFT_CHUNK: Final = 512


def growth_limit(settings: LoadSettings) -> int:
    """How far the context of a load may grow; its own size where it cannot.

    Not where a part of the cache lies on another machine, where a compiler has built the size in, or where a raw
    argument names it. An embedding model has no cache.
    """
    args = settings.engine_args
    fixed = settings.embeddings or settings.remotes or args.rpc or args.n_ctx is not None
    if fixed or openvino.target_of(settings.devices):
        return settings.n_ctx
    return max(settings.n_ctx, settings.max_ctx)


def draft_settings(settings: LoadSettings) -> LoadSettings:
    """How the draft model of a load is loaded: the same place and cache types, for the few sequences that draft."""
    return msgspec.structs.replace(
        mtp_settings(settings),
        path=settings.draft_path or settings.path,
        draft_path=None,
        mmproj_path=None,
        lora=(),
        expert_bytes=0,
        engine_args=NO_ARGS,
        max_rollback=0,
        n_gpu_layers=-1 if settings.devices and settings.n_gpu_layers else 0,
        cache_dir=None,
        cache_ram_bytes=0,
        cache_disk_bytes=0,
    )


def mtp_settings(settings: LoadSettings) -> LoadSettings:
    """How the context of a model's own head is made: for the few sequences that draft, in steps of DRAFT_CHUNK."""
    parallel = min(settings.n_parallel, MAX_DRAFTING)
    return msgspec.structs.replace(
        settings,
        n_parallel=parallel,
        kv_cells=parallel * settings.n_ctx,
        n_batch=min(settings.n_batch, DRAFT_CHUNK),
        n_ubatch=min(settings.n_ubatch, DRAFT_CHUNK),
    )


def exact_settings(settings: LoadSettings) -> LoadSettings:
    """How the context of deterministic requests is made: one sequence, and nothing that use or luck decides."""
    offloads = bool(settings.devices and settings.n_gpu_layers)
    rows = EXACT_GPU_ROWS if offloads else EXACT_ROWS
    return msgspec.structs.replace(
        settings,
        n_parallel=1,
        kv_cells=settings.n_ctx,
        n_batch=rows,
        n_ubatch=rows,
        # On a processor fused attention of one row divides the text among the threads: sums depend on their number.
        flash_attn="auto" if offloads else "off",
        tiles=tuple(name for name in settings.tiles if name != ATTENTION),
        # What type the shared cache has may be a choice of memory or of tuning, which must not change the bits.
        type_k=_unquantized(settings.type_k),
        type_v=_unquantized(settings.type_v),
        max_draft=0,
        mtp=False,
        draft_path=None,
        mmproj_path=None,
        max_rollback=0,
        cache_dir=None,
        cache_ram_bytes=0,
        cache_disk_bytes=0,
    )


def _unquantized(kv_type: str) -> str:
    return kv_type if kv_type in {"f32", "f16", "bf16"} else "f16"


def rollback(settings: LoadSettings) -> int:
    """Tokens by which recurrent states can be taken back.

    llama.cpp keeps that many and one more of a step in one ubatch, and ends the process where they do not fit.
    """
    return max(0, min(settings.max_rollback, settings.n_ubatch - 2))


def sequences(settings: LoadSettings, *, keeps_state: bool) -> int:
    """Sequences a context is made for.

    Recurrent state is paid per sequence, so such models get no idle sequences beside the parallel ones.
    """
    if keeps_state:
        return settings.n_parallel
    return min(2 * settings.n_parallel + 8, MAX_SEQUENCES)
