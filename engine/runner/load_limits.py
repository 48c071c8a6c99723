"""Limits that a load and the estimate of its memory share."""

import sys
from typing import Final

import msgspec

from devices.backends import openvino
from devices.backends.cpu_kernels import ATTENTION
from engine.runner.engine_args import NO_ARGS
from engine.runner.protocol import LoadSettings
from quantize.kv_cache_types import CACHE_TYPES

# The cache types that llama.cpp accepts, with their `ggml_type` values.
KV_TYPES: Final = {name: row.ggml_type for name, row in CACHE_TYPES.items()}
# Hard limit of llama.cpp (LLAMA_MAX_SEQ).
MAX_SEQUENCES: Final = 256
# Longest draft that one step verifies; it determines the size of llama.cpp's output buffer.
MAX_DRAFT: Final = 16
# With more sequences than this, a step is full of real tokens, and draft tokens would only slow it.
MAX_DRAFTING: Final = 2
# Rows of a prefill step of a deterministic request. The cached length of its prompt is a multiple of this; on a CPU
# other requests wait no longer for it, and a GPU is used well.
EXACT_ROWS, EXACT_GPU_ROWS = 64, 512
# The same for a reproducible request (a seed, or temperature 0) while it runs alone. Smaller steps recompute less
# of a cached prompt, but prefill slower: 32 rows take 1.19 times as long as 512, 64 rows 1.00.
# Measured: log-archive.md, "answers that repeat".
STEADY_ROWS: Final = 64
# Prompt tokens that a draft model reads in one step of the engine: other requests wait no longer than this.
DRAFT_CHUNK: Final = 512
# A load that copies less than this part of its file keeps all of the file's pages in memory.
COPIED_DIVISOR: Final = 16


def is_resizable(settings: LoadSettings) -> bool:
    """Whether the context of a load can get another size.

    It cannot if a part of the cache is on another machine, if a compiler has fixed the size, if a raw argument sets
    it, or if another program serves the model. An embedding model has no cache.
    """
    args = settings.engine_args
    fixed = settings.embeddings or settings.remotes or args.rpc or args.n_ctx is not None
    return not (fixed or settings.external is not None or openvino.target_of(settings.devices))


def growth_limit(settings: LoadSettings) -> int:
    """Return the size to which the context of a load may grow; the current size if it cannot."""
    return max(settings.n_ctx, settings.max_ctx) if is_resizable(settings) else settings.n_ctx


def own_growth_limit(settings: LoadSettings) -> int:
    """Return the size to which the context may grow unless a client names one: at most what the user set."""
    limit = growth_limit(settings)
    return max(settings.n_ctx, min(limit, settings.chosen_ctx or limit))


def drops_copied(settings: LoadSettings) -> bool:
    """Whether the runner drops the file's pages after it has copied the weights in them."""
    mapped = settings.use_mmap and not settings.use_mlock and not settings.n_gpu_layers
    return sys.platform == "linux" and settings.repack and mapped


def draft_settings(settings: LoadSettings) -> LoadSettings:
    """Return the settings of a load's draft model: same device and cache types, few sequences."""
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
    """Return the settings of an MTP head's context: only the few drafting sequences, in steps of DRAFT_CHUNK."""
    parallel = min(settings.n_parallel, MAX_DRAFTING)
    return msgspec.structs.replace(
        settings,
        n_parallel=parallel,
        kv_cells=parallel * settings.n_ctx,
        n_batch=min(settings.n_batch, DRAFT_CHUNK),
        n_ubatch=min(settings.n_ubatch, DRAFT_CHUNK),
    )


def exact_settings(settings: LoadSettings) -> LoadSettings:
    """Return the settings of the deterministic context: one sequence, independent of load and tuning."""
    offloads = bool(settings.devices and settings.n_gpu_layers)
    rows = EXACT_GPU_ROWS if offloads else EXACT_ROWS
    return msgspec.structs.replace(
        settings,
        n_parallel=1,
        kv_cells=settings.n_ctx,
        n_batch=rows,
        n_ubatch=rows,
        # On a CPU, flash attention of one row divides the text among the threads: sums depend on their number. On a
        # GPU it may be off because its results are wrong.
        flash_attn="auto" if offloads and settings.flash_attn != "off" else "off",
        tiles=tuple(name for name in settings.tiles if name != ATTENTION),
        # The shared cache's type may depend on memory or tuning, which must not change the results.
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
    """Return the number of tokens by which recurrent states can be rolled back.

    llama.cpp stores that many states and one more of a step in one ubatch, and aborts the process if they do not
    fit.
    """
    return max(0, min(settings.max_rollback, settings.n_ubatch - 2))


def sequences(settings: LoadSettings, *, keeps_state: bool) -> int:
    """Return the number of sequences of a context.

    Recurrent state takes memory per sequence, so such models get no idle sequences in addition to the parallel
    ones.
    """
    if keeps_state:
        return settings.n_parallel
    return min(2 * settings.n_parallel + 8, MAX_SEQUENCES)


def resize_context(settings: LoadSettings, n_ctx: int, n_parallel: int | None = None) -> LoadSettings:
    """The same load with `n_ctx` tokens of context, for `n_parallel` parallel requests (None: unchanged).

    A cache of a single context stays one. A cache for several contexts holds as many of the new ones, or one for
    each of `n_parallel`.
    """
    parallel = n_parallel or settings.n_parallel
    cells = settings.kv_cells
    if cells > settings.n_ctx:
        cells = n_ctx * parallel if n_parallel else cells * n_ctx // settings.n_ctx
    elif cells:
        cells = n_ctx
    return msgspec.structs.replace(settings, n_ctx=n_ctx, n_parallel=parallel, kv_cells=cells)
