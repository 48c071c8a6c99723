"""What "fits this machine at this context" means in bytes: what weights and cache may share."""

from pathlib import Path

import msgspec

from engine.placement.dry_run import DryRunFailed, dry_run
from engine.placement.estimate import estimate, kv_layer_bytes
from engine.placement.need_types import DryRun
from engine.placement.repack import is_repacked
from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import MEASURED
from quantize.kv_cache_types import K_DAMAGE, V_DAMAGE
from quantize.types import Goal, KvOption


class FitGoal(msgspec.Struct, frozen=True):
    """The goal and the ways to store the cache, as `quantize.job.QuantizeRequest` takes them.

    `doubled_head_types`: kept a second time for the head, where the embedding is the head.
    """

    goal: Goal
    kv: tuple[KvOption, ...]
    doubled_head_types: tuple[str, ...] = ()


def promised(path: Path | str, n_ctx: int, n_seq: int) -> LoadSettings:
    """The load that a fitted file is for: every sequence has the whole context to itself."""
    return LoadSettings(path=str(path), n_ctx=n_ctx, kv_cells=n_ctx * n_seq, n_parallel=n_seq)


def fit_goal(
    shape: ModelShape,
    memory_bytes: int,
    settings: LoadSettings,
    isa: frozenset[str] = frozenset(),
    *,
    dry: DryRun | None = None,
    apart: bool = False,
) -> FitGoal:
    """Divide memory between what no plan can change and what it can.

    `settings` are the load that is promised (see `promised`); `dry` a dry run of the unquantized source at them.
    `apart`: K and V may differ, which processors can; on GPUs llama.cpp's kernels want them alike.
    """
    fixed = _fixed_bytes(shape, settings, isa, dry)
    n_seq = max(1, settings.n_parallel)
    goal = Goal(kind="fit", limit_bytes=memory_bytes, fixed_bytes=fixed, n_ctx=settings.n_ctx, n_seq=n_seq)
    kv = tuple(
        KvOption(k, v, sum(kv_layer_bytes(shape, _with_kv(settings, k, v))), K_DAMAGE[k] + V_DAMAGE[v])
        for k in K_DAMAGE
        for v in V_DAMAGE
        if apart or k == v
    )
    return FitGoal(goal, kv, _doubled(shape, isa) if shape.tied else ())


def source_dry_run(settings: LoadSettings, cache: Path | None = None) -> DryRun | None:
    """What llama.cpp says the source takes beside weights and cache; None where it does not load."""
    try:
        return dry_run(settings, cache)
    except DryRunFailed:
        return None


def _fixed_bytes(shape: ModelShape, settings: LoadSettings, isa: frozenset[str], dry: DryRun | None) -> int:
    """Scratch memory, logits, recurrent states and the process itself, at the cache type that needs most."""
    alike = [(k, k) for k in K_DAMAGE]
    needs = (estimate(shape, _with_kv(settings, k, v), isa, dry_run=dry) for k, v in alike)
    return max(n.total_bytes - n.part_bytes("weights") - n.part_bytes("kv") for n in needs)


def _with_kv(settings: LoadSettings, type_k: str, type_v: str) -> LoadSettings:
    return msgspec.structs.replace(settings, type_k=type_k, type_v=type_v)


def _doubled(shape: ModelShape, isa: frozenset[str]) -> tuple[str, ...]:
    embedding = next((t for t in shape.tensors if t.name == "token_embd.weight"), None)
    if embedding is None:
        return ()
    tensors = (TensorInfo(embedding.name, embedding.shape, qtype, 0, 0) for qtype in MEASURED)
    return tuple(t.ggml_type.name for t in tensors if is_repacked(t, isa, as_head=True))
