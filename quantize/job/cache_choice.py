"""Which ways to store the KV cache a job chooses among, and what each of them costs the model in hand."""

import msgspec

from quantize.job.request import QuantizeRequest
from quantize.measure.kv_cache import LONGEST, USUAL, KvDamage, KvRequest, kv_damage, with_damage
from quantize.measurements import CancelCheck, MeasureRequest, OnProgress


def has_choice(request: QuantizeRequest) -> bool:
    """Whether there is anything to measure, and time for it."""
    return request.tier != "instant" and not request.plan_only and len(request.kv) > 1


def measured_cache(
    request: QuantizeRequest, measure: MeasureRequest, on_progress: OnProgress, cancelled: CancelCheck
) -> tuple[QuantizeRequest, tuple[KvDamage, ...]]:
    """The request with what was measured in place of expectations, and the table of it.

    Tier max looks at contexts as long as the one that is promised. Raises: as `kv_damage`.
    """
    n_ctx = request.goal.n_ctx or 0
    types = {t for o in request.kv for t in (o.type_k, o.type_v)}
    longest = min(LONGEST, max(USUAL, n_ctx)) if request.tier == "max" else USUAL
    task = KvRequest(measure=measure, types=tuple(sorted(types)), longest=longest)
    found = kv_damage(task, on_progress, cancelled)
    return msgspec.structs.replace(request, kv=with_damage(request.kv, found, n_ctx)), found
