"""Effort levels of a job, from seconds to hours, and the best one for a given time."""

import msgspec

from quantize.ggml_types import MEASURED, USUAL
from quantize.job.forecast import JobShape, Rates, seconds_by_phase
from quantize.job.request import QuantizeRequest
from quantize.plan.speed import is_fast
from quantize.types import ModelSpec, Rounding, SizeTarget, Tier


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """One effort level. `kld_factor` is the expected KL divergence relative to the balanced level."""

    name: str
    tier: Tier
    rounding: Rounding
    max_tokens: int
    probe_tokens: int
    verify_tokens: int
    kld_factor: float


# From quick to thorough. `verify_tokens` is the usual length of a comparison, which stops once the result is clear.
# Measured: factors of the output error by tokens, the log ("Quantization in minutes"), and of max and instant
# ("Smoothing in balanced"); instant is allocation by priors with ggml's rounding, compared with GPTQ.
EFFORTS = (
    Effort(
        name="instant", tier="instant", rounding=Rounding.STOCK, max_tokens=0, probe_tokens=0, verify_tokens=2048,
        kld_factor=2.4,
    ),
    Effort(
        name="quick", tier="balanced", rounding=Rounding.GPTQ, max_tokens=8192, probe_tokens=768,
        verify_tokens=4096, kld_factor=1.12,
    ),
    Effort(
        name="balanced", tier="balanced", rounding=Rounding.GPTQ, max_tokens=32_768, probe_tokens=1536,
        verify_tokens=8192, kld_factor=1.0,
    ),
    Effort(
        name="max", tier="max", rounding=Rounding.GPTQ, max_tokens=32_768, probe_tokens=1536, verify_tokens=16_384,
        kld_factor=0.96,
    ),
)  # fmt: skip


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The effort level for a given time, its expected seconds, and the benefit of more time (empty: none)."""

    effort: Effort
    seconds: float
    more: str = ""


def effort_of(tier: Tier) -> Effort:
    """The default level of a tier."""
    return next(e for e in EFFORTS if e.name == tier)


# Below this many bits per weight of the whole file, the smallest types are measured too; ggml rounds to them
# slowly.
_SMALL_BITS = 3.5


def types_to_measure(request: QuantizeRequest, spec: ModelSpec) -> tuple[str, ...]:
    """The types to measure for a request, depending on its goal and on the measured speeds of this machine."""
    small = _is_small(request.goal, spec)
    return tuple(
        t.name
        for t in MEASURED
        if t in USUAL or (is_fast(t, request.device, request.speeds) if t.traits.if_fast else small)
    )


def _is_small(goal: SizeTarget, spec: ModelSpec) -> bool:
    bits = goal.bpw
    if bits is None and goal.limit_bytes is not None:
        bits = 8 * (goal.limit_bytes - goal.fixed_bytes) / max(1, sum(t.num_values for t in spec.tensors))
    return bits is not None and bits < _SMALL_BITS


def spend(shape: JobShape, time_s: float, rates: Rates) -> Spent:
    """The best effort level within a time; the quickest level if none fits."""
    needed = [(e, sum(seconds_by_phase(_at(shape, e), rates).values())) for e in EFFORTS]
    fitting = [(e, s) for e, s in needed if s <= time_s]
    effort, seconds = min(fitting or needed[:1], key=lambda pair: pair[0].kld_factor)
    better = [(e, s) for e, s in needed if e.kld_factor < effort.kld_factor]
    hints = []
    if not fitting:
        hints.append(f"even the fastest way takes about {_duration(seconds)}")
    if better:
        more, longer = min(better, key=lambda pair: pair[1])
        gain = 1 - more.kld_factor / effort.kld_factor
        hints.append(f"{_duration(longer)} in all ({more.name}) should lower the KL divergence by about {gain:.0%}")
    return Spent(effort=effort, seconds=seconds, more="; ".join(hints))


def job_shape(
    request: QuantizeRequest,
    rounding: Rounding,
    spec: ModelSpec,
    source_bytes: int,
    *,
    verifies: bool,
    measured: bool = False,
) -> JobShape:
    """The properties that determine how long a request takes on a model."""
    usual = next((e for e in EFFORTS if e.tier == request.tier and e.max_tokens == request.max_tokens), None)
    compared = (usual or effort_of(request.tier)).verify_tokens
    return JobShape(
        model=spec,
        tier=request.tier,
        rounding=rounding,
        max_tokens=request.max_tokens,
        probe_tokens=request.probe_tokens,
        verify_tokens=min(compared, request.verify_tokens) if verifies else 0,
        gate=request.gate,
        threads=request.threads,
        gpu_layers=request.gpu_layers,
        smallest=_is_small(request.goal, spec),
        source_bytes=source_bytes,
        converts=request.source.is_dir(),
        measured=measured,
    )


def _at(shape: JobShape, effort: Effort) -> JobShape:
    return msgspec.structs.replace(
        shape,
        tier=effort.tier,
        rounding=effort.rounding,
        max_tokens=effort.max_tokens,
        probe_tokens=effort.probe_tokens,
        verify_tokens=effort.verify_tokens if shape.verify_tokens else 0,
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
