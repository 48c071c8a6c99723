"""What a job will take, before it starts: time, disk, memory. Rates are of one core; a cache makes it less."""

from quantize.job.request import Forecast
from quantize.types import ModelSpec, QuantPlan, Rounding, Tier

# Million weights a second a core. Measured: docs/log.md, plan ("Costs").
_WRITE_MWEIGHTS_S = 8.0
_ERRORS_MWEIGHTS_S = 0.9
_CRAFT_MWEIGHTS_S = 0.35
# Weights times tokens a core goes through in a second of evaluation.
_EVAL_MWEIGHT_TOKENS_S = 40_000.0
_CALIBRATION_TOKENS, _PROBE_TOKENS, _SEQUENTIAL_TOKENS, _VERIFY_TOKENS = 131_072, 3_072, 32_768, 32_768
# Places of a layer whose inputs the sequential pass collects anew: attention, its output, both halves of the rest.
_STAGES_PER_LAYER = 4
_SAMPLED_FRAC_CAP = 64e6  # weights of a tensor's rows that errors are measured on, all types together


def forecast(
    model: ModelSpec, plan: QuantPlan, *, tier: Tier, rounding: Rounding, threads: int, verified: bool
) -> Forecast:
    """Seconds, bytes of free disk and bytes of memory for the whole job."""
    weights = sum(t.num_values for t in model.tensors) / 1e6
    cores = max(1, threads)
    seconds = weights / (_WRITE_MWEIGHTS_S * cores)
    evaluation = weights / (_EVAL_MWEIGHT_TOKENS_S * cores)
    if tier != "instant":
        matrices = sum(1 for t in model.tensors if len(t.shape) > 1)
        probes = matrices if tier == "max" else 4 * model.num_layers + 1
        measured = min(weights, _SAMPLED_FRAC_CAP * matrices / 1e6)
        seconds += measured / (_ERRORS_MWEIGHTS_S * cores)
        seconds += evaluation * (2 * _CALIBRATION_TOKENS + probes * _PROBE_TOKENS)
    if rounding in {"craft", "sequential"}:
        seconds += weights / (_CRAFT_MWEIGHTS_S * cores)
    if rounding == "sequential":  # both models, each time up to the layer in hand: half of them on average
        seconds += _STAGES_PER_LAYER * model.num_layers * evaluation * _SEQUENTIAL_TOKENS
    source_bytes = sum(t.num_values for t in model.tensors) * 2
    files = 2 if verified else 1
    if verified:
        seconds += 3 * evaluation * _VERIFY_TOKENS + weights / (_WRITE_MWEIGHTS_S * cores)
    packed = plan.file_bytes if rounding != "stock" else 0
    resident = source_bytes if tier != "instant" or verified else 0
    return Forecast(
        seconds=seconds,
        disk_bytes=files * plan.file_bytes + packed,
        memory_bytes=resident + (2 << 30 if tier != "instant" else 256 << 20),
        kld=plan.damage,
    )
