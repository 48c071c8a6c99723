"""What the planner is asked: the model, what its types cost as far as that is known, and what the user wants."""

from pathlib import Path

from quantize.files.measurement_folder import file_sha256
from quantize.job.request import QuantizeRequest
from quantize.measurements import Measured
from quantize.plan.plan import Question
from quantize.plan.priors import prior_damage
from quantize.types import EvidenceRef, ModelSpec, Rounding


def question_of(
    request: QuantizeRequest,
    rounding: Rounding,
    spec: ModelSpec,
    header_bytes: int,
    measured: Measured | None,
    imatrix: Path | None,
) -> Question:
    """The question for a plan; what was not measured (None) is taken from priors."""
    reference = EvidenceRef(
        tier=request.tier,
        # A plan before measuring counts on the importance matrix that measuring will give.
        has_imatrix=imatrix is not None or request.tier != "instant",
        imatrix_sha256=file_sha256(imatrix) if imatrix else "",
        sensitivity_sha256=measured.evidence.sha256 if measured else "",
        gptq=rounding == Rounding.GPTQ,
    )
    evidence = measured.evidence if measured else None
    return Question(
        model=spec,
        damage=evidence.damage(rounding) if evidence else prior_damage(spec),
        stock_damage=evidence.damage(Rounding.STOCK) if evidence else None,
        evidence=reference,
        header_bytes=header_bytes,
        kv=request.kv,
        locks=request.locks,
        doubled_head_types=frozenset(request.doubled_head_types),
        device=request.device,
        speeds=request.speeds or None,
    )
