"""The input of a job's plan: expected losses, KV cache types, and the types that lose nothing."""

from pathlib import Path

import msgspec

from quantize.child import answer_of
from quantize.files.measurement_folder import cache_result, cached_result, file_sha256
from quantize.gptq.exact import ExactRequest, ExactTypes
from quantize.job.forecast import effort_of
from quantize.job.request import QuantizeRequest
from quantize.measure.kv_cache import LONGEST, USUAL, KvCacheLoss, KvRequest, kv_damage, with_damage
from quantize.measure.quick_loss import cached_quick_loss
from quantize.measurements import CancelCheck, Measured, MeasureRequest, OnProgress
from quantize.plan.plan import PlanInput
from quantize.plan.priors import prior_damage
from quantize.types import EvidenceRef, ModelSpec, Rounding


def plan_input(
    request: QuantizeRequest,
    rounding: Rounding,
    spec: ModelSpec,
    header_bytes: int,
    measured: Measured | None,
    imatrix: Path | None,
    exact: ExactTypes,
) -> PlanInput:
    """The input for a plan; unmeasured values (None) come from priors, `exact` from `exact_types_of`."""
    gptq = rounding == Rounding.GPTQ
    tested = cached_quick_loss(request.source, request.cache_dir) if measured is None else None
    reference = EvidenceRef(
        tier=request.tier,
        # A plan before measuring assumes the importance matrix that measuring will produce.
        has_imatrix=imatrix is not None or request.tier != "instant",
        imatrix_sha256=file_sha256(imatrix) if imatrix else "",
        sensitivity_sha256=measured.evidence.sha256 if measured else "",
        gptq=gptq,
        quick_test=tested is not None,
    )
    evidence = measured.evidence if measured else None
    # Measured on ggml's rounding, so GPTQ is expected to lose less.
    prior = {} if evidence else prior_damage(spec, tested.kld if tested else None)
    gain = effort_of(request.tier).kld_factor / effort_of("instant").kld_factor if gptq else 1.0
    return PlanInput(
        model=spec,
        damage=evidence.damage(rounding) if evidence else _scaled(prior, gain),
        stock_damage=evidence.damage(Rounding.STOCK) if evidence else prior,
        evidence=reference,
        header_bytes=header_bytes,
        kv=request.kv,
        locks=request.locks,
        doubled_head_types=frozenset(request.doubled_head_types),
        device=request.device,
        speeds=request.speeds or None,
        # A plan that follows another names the tensors that ggml rounds.
        exact={n: types for n, types in exact.types.items() if not request.plan or n not in request.plan.plain},
        added=exact.added,
    )


def _scaled(damage: dict[str, dict[str, float]], factor: float) -> dict[str, dict[str, float]]:
    return {name: {qtype: factor * kld for qtype, kld in row.items()} for name, row in damage.items()}


def exact_types_of(
    request: QuantizeRequest, source: Path, on_progress: OnProgress, cancelled: CancelCheck
) -> ExactTypes:
    """The tensors whose weights already lie on a grid, with the types that hold them without loss.

    Empty if llama-quantize's own bytes were requested. Cached for a file's path, size and time.

    Raises: Unreadable. Same as `quantize.child.run_task`.
    """
    if request.rounding == Rounding.STOCK and request.plan is None:
        return ExactTypes(types={})
    exact = None if source.is_dir() else cached_result("grids", source, request.cache_dir, ExactTypes)
    if exact is None:
        exact = answer_of(ExactTypes, "exact", ExactRequest(source=source), on_progress, cancelled)
        if not source.is_dir():  # sampled more coarsely than its conversion
            cache_result("grids", source, request.cache_dir, exact)
    return exact


# KV cache types: whether a job chooses among several, and measuring their cost for this model.


def has_choice(request: QuantizeRequest) -> bool:
    """Whether there are several KV cache types, and whether the tier measures them."""
    return request.tier != "instant" and not request.plan_only and len(request.kv) > 1


def measured_cache(
    request: QuantizeRequest, measure: MeasureRequest, on_progress: OnProgress, cancelled: CancelCheck
) -> tuple[QuantizeRequest, tuple[KvCacheLoss, ...]]:
    """The request with measured KL divergences instead of expected ones, and the table of measurements.

    Tier max measures up to the requested context length. Raises: same as `kv_damage`.
    """
    n_ctx = request.goal.n_ctx or 0
    types = {t for o in request.kv for t in (o.type_k, o.type_v)}
    longest = min(LONGEST, max(USUAL, n_ctx)) if request.tier == "max" else USUAL
    task = KvRequest(measure=measure, types=tuple(sorted(types)), longest=longest)
    losses = kv_damage(task, on_progress, cancelled)
    return msgspec.structs.replace(request, kv=with_damage(request.kv, losses, n_ctx)), losses
